"""Step, trainer, checkpoints, distribution."""
