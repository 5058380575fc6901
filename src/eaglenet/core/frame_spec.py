"""Settings for splitting videos into clips and sampling frames from them.

Does not import torch, so decoder processes and the command line start fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eaglenet.core.errors import ConfigError
from eaglenet.core.settings import option

Sampling = Literal[
    "uniform",
    "middle_frames",
    "before_middle",
    "first_to_last",
    "per_second",
    "whole_rate",
    "rounded_rate",
    "second_pairs",
]
Resize = Literal["crop", "stretch", "pad"]
ShortVideo = Literal["repeat", "repeat_last", "spread", "mask", "zeros"]
MAX_FRAMES = 4096
"""Frames per clip."""
MAX_SIDE = 4096
"""Pixels along one side of a frame."""


@dataclass(frozen=True)
class FrameSpec:
    """Sampling of frames from a video. Saved with every model and every feature store.

    sampling: ``uniform`` takes the middle of equal segments (the paper); ``per_second`` takes the
        first frame of each second, then an evenly spaced subset (common practice). The others count
        frames as released code does: ``whole_rate`` and ``rounded_rate`` take every n-th frame,
        where n is the frame rate rounded down or to the nearest integer, then an evenly spaced
        subset; ``middle_frames`` takes the middle frame of equal runs, ``before_middle`` the one
        before; ``first_to_last`` spaces frames evenly, from the first to the last;
        ``second_pairs`` takes the first and the last frame of clips of one second, which start at
        equal intervals and may overlap.
    resize: ``crop`` scales the short side and crops the centre; ``stretch`` ignores the aspect
        ratio; ``pad`` scales the long side and adds black on the right or below.
    short: treatment of videos with too few frames: ``repeat`` repeats frames, ``repeat_last``
        appends copies of the last one, ``spread`` spaces the frames evenly over the video,
        ``mask`` masks the missing ones, ``zeros`` appends frames of CLIP's mean colour (0 after
        normalisation) that count as real, as in the released code.
    fast: use the nearest keyframes instead of exact frames.
    square_pixels: ignore the file's pixel aspect ratio, as OpenCV does.
    """

    num_frames: int = 12
    size: int = 224
    sampling: Sampling = "uniform"
    resize: Resize = "crop"
    short: ShortVideo = "repeat"
    fast: bool = False
    square_pixels: bool = False

    def __post_init__(self) -> None:
        for name, limit in (("num_frames", MAX_FRAMES), ("size", MAX_SIDE)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= limit:
                raise ConfigError(f"{name} is {value!r:.60}; expected a whole number, 1 to {limit}")
        if self.sampling == "second_pairs" and self.num_frames % 2:
            raise ConfigError(
                f"num_frames is {self.num_frames}; with sampling=second_pairs it must be even"
            )


@dataclass(frozen=True)
class Splitting:
    """Length and overlap of clips, in seconds.

    frame_step: seconds between the frames of a whole clip, chosen for a new store so that
        overlapping clips share frames; 0 spreads the frames over each clip.
    """

    clip_seconds: float = option(10.0, "Set the length of clips.", group="Clips", metavar="SECONDS")
    overlap: float = option(2.0, "Set the overlap of clips.", group="Clips", metavar="SECONDS")
    shots: bool = option(False, "Start a clip at every shot change.", group="Clips")
    frame_step: float = 0.0
