"""A compact pair of towers: a ViT that pools its patches early, and a short text transformer."""
