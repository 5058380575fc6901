"""Layers of the methods: one idea per file, plain keyword arguments."""
