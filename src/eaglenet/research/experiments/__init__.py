"""Whole experiments: what is trained on what, its run folder, several of them side by side."""
