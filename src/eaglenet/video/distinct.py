"""Frames that differ from those before them, whole and large enough to read."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eaglenet.video.picking import decode_through
from eaglenet.video.pixels import Pixels
from eaglenet.video.source import VideoSource, open_video
from eaglenet.video.stills import still_pixels
from eaglenet.video.suffixes import is_picture

EVERY = 1.0
"""Seconds between frames that are looked at."""
SHORT_SIDE = 720
"""Pixels at most: text of a film is read as well as at twice that, in a quarter of the time."""
STILL_SIDE = 1440
"""The same of a photograph, which may be of a page of print."""
BLOCK = 8
"""Pixels along a block whose mean is compared: about a letter."""
CHANGED, FEW = 16.0, 2
"""Levels of 256 by which a block has to change, and more blocks than so many for a frame."""


@dataclass(frozen=True)
class DistinctFrame:
    """``pixels`` [3, height, width], on show from ``start`` until the next one or ``end``."""

    start: float
    end: float
    pixels: Pixels


def distinct_frames(path: str | Path, start: float, end: float) -> list[DistinctFrame]:
    """A frame a second from ``start`` on, without those that look like the one before."""
    if is_picture(path):
        return [DistinctFrame(0.0, 0.0, still_pixels(path, STILL_SIDE))]
    with open_video(path, threads=1) as source:
        return _distinct(source, start, end)


def _distinct(source: VideoSource, start: float, end: float) -> list[DistinctFrame]:
    found: list[DistinctFrame] = []
    blocks: NDArray[np.float32] | None = None
    due = start
    first = source.zero + int(Fraction(start) / source.tick) if start else None
    shown = start
    for time, frame in decode_through(source, first):
        seconds = source.seconds(time)
        if seconds >= end:
            break
        shown = max(shown, seconds)
        if seconds < due - 1e-6:
            continue
        due = max(due + EVERY, seconds)
        pixels = source.picture(frame, min(SHORT_SIDE, frame.width, frame.height))
        now = _blocks(pixels)
        if blocks is None or blocks.shape != now.shape or _differs(blocks, now):
            found.append(DistinctFrame(seconds, end, pixels))
            blocks = now
    last = min(end, shown + EVERY)
    ends = [*(frame.start for frame in found[1:]), last]
    return [
        DistinctFrame(frame.start, max(stop, frame.start), frame.pixels)
        for frame, stop in zip(found, ends, strict=False)
    ]


def _blocks(pixels: Pixels) -> NDArray[np.float32]:
    """Means ``[3, rows, columns]``: colours may change where the brightness does not."""
    height, width = (max(BLOCK, side - side % BLOCK) for side in pixels.shape[1:])
    missing = [(0, 0), (0, max(0, height - pixels.shape[1])), (0, max(0, width - pixels.shape[2]))]
    whole = np.pad(pixels, missing)[:, :height, :width].astype(np.float32)
    parts = whole.reshape(3, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    means: NDArray[np.float32] = parts.mean(axis=(2, 4))
    return means


def _differs(before: NDArray[np.float32], now: NDArray[np.float32]) -> bool:
    return int((np.abs(before - now) > CHANGED).sum()) > FEW
