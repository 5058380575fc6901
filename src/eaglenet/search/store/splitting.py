"""How videos are cut; a module of its own for processes that do without the rest of a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Splitting:
    """How long videos are cut into clips."""

    clip_seconds: float = 10.0
    overlap: float = 2.0
    shots: bool = False
    frame_step: float = 0.0
    """Seconds from one frame of a whole clip to the next, such that clips which overlap look at the
    same frames there; 0: the frames of each clip are spread over all of it. Chosen by the indexer
    for a new store, and kept by it."""
