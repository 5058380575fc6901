"""Demo world: a synthetic dataset of drawn shapes with captions."""
