"""A recipe is a Python function that returns a whole experiment."""
