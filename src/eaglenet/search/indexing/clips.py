"""Cutting long videos into clips: fixed lengths that overlap, or shots."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from eaglenet.errors import UsageError
from eaglenet.frame_spec import FrameSpec
from eaglenet.search.store.splitting import Splitting
from eaglenet.video.sampling import shared_step

Window = tuple[float, float]

MIN_SHOT = 1.0
"""Seconds; shorter shots are joined to the one before."""


def check_splitting(splitting: Splitting) -> Splitting:
    """Refuse lengths that make no clips."""
    if not splitting.clip_seconds > 0:
        raise UsageError(f"--clip-seconds must be above 0, not {splitting.clip_seconds}")
    if not 0 <= splitting.overlap < splitting.clip_seconds:
        raise UsageError(
            f"--overlap must be at least 0 and below the clip's {splitting.clip_seconds} s, "
            f"not {splitting.overlap}"
        )
    return splitting


def with_shared_frames(splitting: Splitting, spec: FrameSpec) -> Splitting:
    """For a new store: overlapping clips look at the same frames, each of which is encoded once."""
    step = 0.0
    if spec.sampling == "uniform" and not spec.fast:
        step = shared_step(splitting.clip_seconds, splitting.overlap, spec.num_frames)
    return dataclasses.replace(splitting, frame_step=step)


def fixed_windows(
    duration: float, clip_seconds: float, overlap: float, start: float = 0.0
) -> list[Window]:
    """Windows of equal length over ``[start, start + duration]``; the last ends with the video.

    A rest that the last window could not show more than its overlap of is left to that window.

    >>> fixed_windows(20.0, 10.0, 2.0)
    [(0.0, 10.0), (8.0, 18.0), (16.0, 20.0)]
    """
    if duration <= clip_seconds:
        return [(start, start + duration)]
    step = clip_seconds - overlap
    windows: list[Window] = []
    position = 0.0
    while not windows or windows[-1][1] < start + duration - 1e-6:
        windows.append((start + position, start + min(position + clip_seconds, duration)))
        # Counting rather than adding up keeps the times of long films exact.
        position = len(windows) * step
    return windows


def shot_windows(
    cuts: Sequence[float], duration: float, clip_seconds: float, overlap: float
) -> list[Window]:
    """Windows between cuts (seconds); long shots are cut further, very short ones joined."""
    edges = [0.0]
    for cut in sorted(cuts):
        if cut - edges[-1] >= MIN_SHOT and duration - cut >= MIN_SHOT:
            edges.append(cut)
    edges.append(duration)
    windows: list[Window] = []
    for start, end in pairwise(edges):
        windows += fixed_windows(end - start, clip_seconds, overlap, start)
    return windows


def windows_of(
    path: Path, stretches: Sequence[tuple[float, float]], splitting: Splitting
) -> list[Window]:
    """The clips of a file, in the stretches of time in which frames are shown."""
    length, overlap = splitting.clip_seconds, splitting.overlap
    if splitting.shots and len(stretches) == 1:
        from eaglenet.video.decoding import shot_boundaries

        return shot_windows(shot_boundaries(path), stretches[0][1], length, overlap)
    return [
        window
        for start, end in stretches
        for window in fixed_windows(end - start, length, overlap, start)
    ]
