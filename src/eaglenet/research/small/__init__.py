"""How the model `small` is made."""
