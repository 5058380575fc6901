"""Methods before CLIP: over several experts' features, or with towers of their own.

Here they run on stored features (docs/how-to/experts.md) or on CLIP's towers.
"""
