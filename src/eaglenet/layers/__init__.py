"""Layers that the methods share."""
