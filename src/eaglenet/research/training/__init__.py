"""Training: configuration, steps, optimizers, checkpoints and several processes."""
