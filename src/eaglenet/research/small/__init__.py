"""Training of the model ``small``."""
