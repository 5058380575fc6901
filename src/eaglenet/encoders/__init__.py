"""Pixels and tokens to features."""
