"""Experiments: their settings, run folders, evaluation and comparison."""
