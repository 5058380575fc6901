"""Weights and checkpoints of the compared methods' official repositories."""
