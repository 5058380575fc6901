"""Where a film cuts: one pass over small grey frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eaglenet.video.picking import decode_through

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource

GRID = 32
"""Side in pixels of the pictures that are compared: camera motion hardly shows at this size."""

BINS = 16

SHORTEST_SHOT = 0.5
"""Seconds. Nearer changes are flashes and fades of one cut."""


def find_boundaries(source: VideoSource, threshold: float) -> list[float]:
    """Seconds of frames that differ from the one before by more than ``threshold``.

    difference = mean |g_n - g_{n-1}| / 255 * 1/2 + |h_n - h_{n-1}|_1 / 2 * 1/2

    with g the grey picture and h its histogram, each part between 0 and 1.
    """
    boundaries: list[float] = []
    previous = None
    for time, frame in decode_through(source):
        grey = source.reformatter.reformat(
            frame, width=GRID, height=GRID, format="gray8", interpolation="AREA"
        ).to_ndarray()
        histogram = np.histogram(grey, bins=BINS, range=(0, 256))[0] / grey.size
        if previous is not None:
            moved = np.abs(grey.astype(np.int16) - previous[0]).mean() / 255
            changed = np.abs(histogram - previous[1]).sum() / 2
            seconds = source.seconds(time)
            is_new = not boundaries or seconds - boundaries[-1] >= SHORTEST_SHOT
            if (moved + changed) / 2 > threshold and is_new:
                boundaries.append(seconds)
        previous = (grey.astype(np.int16), histogram)
    return boundaries
