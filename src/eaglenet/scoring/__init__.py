"""The same scores, faster."""
