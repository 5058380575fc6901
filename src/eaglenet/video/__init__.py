"""Files to frames and back: what is in a video, which frames of it, how they become pixels."""
