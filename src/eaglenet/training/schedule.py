"""Learning rate against progress: linear warm-up, then half a cosine, or steps."""

from __future__ import annotations

import math
from typing import Literal

ScheduleName = Literal["cosine", "released", "epochs"]


def rate_factor(
    step: int,
    num_steps: int,
    *,
    warmup: float = 0.1,
    schedule: ScheduleName = "cosine",
    epochs: int = 1,
    decay: float = 1.0,
) -> float:
    """The share of the peak rate that optimizer step ``step`` (from 0) of ``num_steps`` uses.

    ``cosine`` rises as (step + 1) / warm-up steps and then falls as (1 + cos(pi x)) / 2, with x
    running from 0 at the end of the warm-up to 1 at the end. ``released`` starts at 0 and measures
    the cosine from the very beginning, so that the rate jumps from 1 to 0.976 after a warm-up of
    10%: what the authors' code does. ``epochs`` multiplies with ``decay`` after each of ``epochs``
    equal parts, as the methods over experts do.
    """
    progress = step / max(num_steps, 1)
    if schedule == "released":
        if progress < warmup:
            return progress / warmup
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    warmup_steps = round(warmup * num_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "epochs":
        return decay ** math.floor(progress * epochs)
    remaining = max(num_steps - warmup_steps, 1)
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / remaining))
