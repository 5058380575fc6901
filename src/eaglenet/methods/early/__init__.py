"""Methods from before CLIP, over features of several experts or with special towers.

Here they run on stored features (docs/how-to/experts.md) or on the towers of CLIP.
"""
