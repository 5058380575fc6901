"""Datasets, training, evaluation and experiments: everything a paper needs."""
