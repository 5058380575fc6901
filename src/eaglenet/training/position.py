"""Where a training run stands: what a checkpoint keeps of it beside weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Position:
    """Where a run stands. ``evaluated`` is the last step after which evaluation was done.

    A resumed run goes on from its last checkpoint, and so do these counts.
    """

    step: int = 0
    evaluated: int = 0
    best_score: float = float("-inf")
    best_epoch: int = 0
    evaluations_since_best: int = 0
    pairs: int = 0
    """Pairs of a text and a video that it has learnt from."""
    seconds: float = 0.0
    """Spent on it, evaluations included; the attempts of an interrupted run together."""
    step_seconds: float = 0.0
    """Spent on steps alone, waiting for data included."""
    epoch_seconds: float | None = None
    """Of them for an epoch, once one is complete."""
    peak_bytes: int | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
