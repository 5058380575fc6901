"""From the scores of a clip's frames to a span of time."""

from __future__ import annotations

import torch
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
    real = torch.isfinite(scores)
    if not bool(real.any()):
        return Moment(start, end, (start + end) / 2)
    times, order = seconds[real].double().sort(stable=True)
    values = scores[real].double()[order]
    best = int(values.argmax())
    moment = float(times[best].clamp(start, end))
    if float(values.max() - values.min()) < FLAT:
        return Moment(start, end, moment)
    good = (values >= (values.mean() + values.max()) / 2).tolist()
    first = last = best
    while first > 0 and good[first - 1]:
        first -= 1
    while last + 1 < len(good) and good[last + 1]:
        last += 1
    begin = start if first == 0 else float(times[first - 1] + times[first]) / 2
    finish = end if last + 1 == len(good) else float(times[last] + times[last + 1]) / 2
    return Moment(max(start, min(begin, moment)), min(end, max(finish, moment)), moment)
