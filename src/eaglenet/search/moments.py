"""The moment of a hit: where in its file the query is shown.

A clip ends where its ten seconds end, not where what it shows ends. So the frames of the
neighbouring clips count too: the moment is the run of frames around the best frame of the clip with
the largest sum of scores above a threshold. ``benchmarks/moments.py`` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter

from eaglenet.core.hits import Moment

NEIGHBOURS = 2
"""Clips before and after that are looked at."""
THRESHOLD = 0.5
"""Where between the mean over the store (0) and the best frame (1) a frame begins to count."""
MAX_GAP = 1
"""Frames below the threshold, after each other, that a moment passes over."""
FLAT = 1e-6
"""Frames whose scores differ by less than this are equal: the moment is the whole clip."""


def find_moment(
    scores: Sequence[float],
    seconds: Sequence[float],
    clip: tuple[float, float],
    span: tuple[float, float] | None = None,
    background: float | None = None,
) -> Moment:
    """Find the run of frames around the best frame of a clip that scores best as a whole.

    scores, seconds: of the frames of the clip and its neighbours, in any order; a frame that is in
        two clips may be there twice. -inf marks padding.
    clip: first and last second of the clip, which holds the best frame.
    span: first and last second of the clip and its neighbours; None: the clip alone.
    background: mean score of the query over clips of the store. So all of a video that shows the
        query throughout is the moment. None, or if no frame is better: the mean of the frames.

    With t = background + THRESHOLD (best - background), the run maximises sum_f (s_f - t). Unlike
    a run of frames that all reach t, it passes over one bad frame between good ones. It extends
    halfway to the frames beside it, and to the end of the span if there are none.
    """
    start, end = span or clip
    pairs = {
        second: score for second, score in zip(seconds, scores, strict=True) if math.isfinite(score)
    }
    frames = sorted(pairs.items(), key=itemgetter(0))
    inside = [frame for frame in frames if clip[0] <= frame[0] <= clip[1]] or frames
    if not frames:
        return Moment(clip[0], clip[1], (clip[0] + clip[1]) / 2)
    peak = max(inside, key=itemgetter(1))
    best_time = min(max(peak[0], clip[0]), clip[1])
    values = [score for _, score in frames]
    if max(values) - min(values) < FLAT:
        return Moment(clip[0], clip[1], best_time)
    best = frames.index(peak)
    if background is None or background >= peak[1]:
        background = sum(values) / len(values)
    threshold = background + THRESHOLD * (peak[1] - background)
    above = [value - threshold for value in values]
    first = best - _longest_gain(above[best::-1])
    last = best + _longest_gain(above[best:])
    begin = start if first == 0 else (frames[first - 1][0] + frames[first][0]) / 2
    finish = end if last + 1 == len(frames) else (frames[last][0] + frames[last + 1][0]) / 2
    return Moment(max(start, min(begin, best_time)), min(end, max(finish, best_time)), best_time)


def _longest_gain(values: Sequence[float]) -> int:
    """Index at which the sum from the first value on is largest; of equal ones the first.

    More than ``MAX_GAP`` negative values after each other are the end: what comes then is another
    moment.
    """
    total, highest, index, gap = 0.0, -math.inf, 0, 0
    for number, value in enumerate(values):
        gap = gap + 1 if value < 0 else 0
        if gap > MAX_GAP:
            break
        total += value
        if total > highest:
            highest, index = total, number
    return index
