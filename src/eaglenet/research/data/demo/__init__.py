"""The demo world: scenes, their frames, and both as a dataset."""
