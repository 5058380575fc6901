"""Joint ranking of steps that follow each other in one file."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FrameSequence:
    """One frame per step, in the order of the steps; ``frames`` are columns of the scores."""

    score: float
    frames: tuple[int, ...]


def rank_sequences(
    scores: NDArray[np.floating],
    seconds: NDArray[np.floating],
    files: NDArray[np.integer],
    *,
    within: float | None = None,
    k: int = 10,
) -> list[FrameSequence]:
    """Find the best sequence of each file, and return the k best of all.

    scores: ``[steps, frames]``; -inf for padding. seconds: time of each frame in its file.
    files: number of the file of each frame. within: longest time from a step to the next.

    A sequence takes one frame per step of one file, each later than the one before; its score is
    the mean over the steps. Files are independent and each costs steps x frames.
    """
    values = np.asarray(scores, np.float64)
    sequences = []
    order = np.lexsort((seconds, files))
    boundaries = np.flatnonzero(np.diff(files[order])) + 1
    for own in np.split(order, boundaries):
        if len(own):
            sequence = _best_sequence(values[:, own], np.asarray(seconds[own], float), within)
            if sequence is not None:
                frames = tuple(int(own[frame]) for frame in sequence.frames)
                sequences.append(FrameSequence(sequence.score, frames))
    # Stable: of equal sequences the one in the first file.
    sequences.sort(key=lambda sequence: -sequence.score)
    return sequences[:k]


def _best_sequence(
    scores: NDArray[np.float64], seconds: NDArray[np.float64], within: float | None
) -> FrameSequence | None:
    """Best sequence in one file, whose frames are in the order of time."""
    num_steps = len(scores)
    totals = scores[0]
    origins = []
    for step in range(1, num_steps):
        best, origin = _best_before(totals, seconds, within)
        totals = best + scores[step]
        origins.append(origin)
    last = int(np.argmax(totals))
    if not np.isfinite(totals[last]):
        return None
    frames = [last]
    for origin in reversed(origins):
        frames.append(int(origin[frames[-1]]))
    return FrameSequence(float(totals[last]) / num_steps, tuple(reversed(frames)))


def _best_before(
    totals: NDArray[np.float64], seconds: NDArray[np.float64], within: float | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Best total at an earlier time per frame, not longer ago than ``within``, and its frame."""
    best = np.full(len(totals), -np.inf)
    origin = np.zeros(len(totals), np.int64)
    # Frames that may still be the best of a window, highest first.
    window: deque[int] = deque()
    following = 0
    for frame, time in enumerate(seconds):
        while following < len(seconds) and seconds[following] < time:
            while window and totals[window[-1]] < totals[following]:
                window.pop()
            window.append(following)
            following += 1
        while within is not None and window and seconds[window[0]] < time - within:
            window.popleft()
        if window:
            best[frame], origin[frame] = totals[window[0]], window[0]
    return best, origin
