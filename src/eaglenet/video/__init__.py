"""Decode, sample, convert and write video files."""
