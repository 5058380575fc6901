"""Searching what is said and written, and one ranking of it with pictures."""
