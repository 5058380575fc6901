"""Conversion of checkpoints of the official repositories of methods."""
