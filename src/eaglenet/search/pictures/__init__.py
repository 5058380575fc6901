"""Search results to look at: a page, a contact sheet."""
