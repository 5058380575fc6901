"""PE-Core, Meta's Perception Encoder: towers and their files."""
