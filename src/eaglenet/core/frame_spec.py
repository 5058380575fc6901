"""How frames are taken from a video. Without torch: processes that only decode start without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eaglenet.core.errors import ConfigError

Sampling = Literal["uniform", "per_second", "whole_rate"]
Resize = Literal["crop", "stretch"]
ShortVideo = Literal["repeat", "mask", "zeros"]
MOST_FRAMES, MOST_PIXELS = 4096, 4096
"""Of one clip, and along the side of a frame."""


@dataclass(frozen=True)
class FrameSpec:
    """How frames are taken from a video. Saved with a model and with every store of features.

    sampling: ``uniform`` takes the middle of equal segments (the paper); ``per_second`` the first
        frame of each second, then an evenly spaced subset (the field's habit); ``whole_rate`` the
        same as the field's code counts seconds: every n-th frame, n the whole part of the rate.
    resize: ``crop`` scales the short side and crops the centre; ``stretch`` ignores the aspect.
    short: what a video with fewer frames than asked gives: ``repeat`` frames, ``mask`` them out,
        or ``zeros`` (frames of CLIP's mean colour, 0 once normalised, that count as real: the
        released code's behaviour).
    fast: nearest keyframes instead of exact frames.
    square_pixels: take stored pixels as square, as OpenCV does, whatever aspect a file gives them.
    """

    num_frames: int = 12
    size: int = 224
    sampling: Sampling = "uniform"
    resize: Resize = "crop"
    short: ShortVideo = "repeat"
    fast: bool = False
    square_pixels: bool = False

    def __post_init__(self) -> None:
        for name, most in (("num_frames", MOST_FRAMES), ("size", MOST_PIXELS)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"{name} is {value!r:.60}; expected a whole number, 1 to {most}")
