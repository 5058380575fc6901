"""From the scores of a clip's frames to a span of time."""

from __future__ import annotations

import math
from operator import itemgetter

from jaxtyping import Float
from torch import Tensor

from eaglenet.types import Moment

FLAT = 1e-6
"""Frames whose scores differ by less than this are equally good: the moment is the whole clip."""


def find_moment(
    scores: Float[Tensor, "frames"],
    seconds: Float[Tensor, "frames"],
    start: float,
    end: float,
) -> Moment:
    """The run of good frames around the best one.

    A frame is good if its score is at least half-way between the clip's mean and its best:
    s_f >= (mean + max) / 2. The run reaches half-way to the next frame that is not good, and
    never out of the clip. Frames with score -inf are padding.
    """
    start, end = float(start), float(end)
    # Plain numbers: a dozen operations on a dozen tensors' numbers cost more than all the rest.
    pairs = zip(seconds.tolist(), scores.tolist(), strict=True)
    known = sorted((pair for pair in pairs if math.isfinite(pair[1])), key=itemgetter(0))
    if not known:
        return Moment(start, end, (start + end) / 2)
    times, values = zip(*known, strict=True)
    highest = max(values)
    best = values.index(highest)
    moment = min(max(times[best], start), end)
    if highest - min(values) < FLAT:
        return Moment(start, end, moment)
    bound = (sum(values) / len(values) + highest) / 2
    first = last = best
    while first > 0 and values[first - 1] >= bound:
        first -= 1
    while last + 1 < len(values) and values[last + 1] >= bound:
        last += 1
    begin = start if first == 0 else (times[first - 1] + times[first]) / 2
    finish = end if last + 1 == len(values) else (times[last] + times[last + 1]) / 2
    return Moment(max(start, min(begin, moment)), min(end, max(finish, moment)), moment)
