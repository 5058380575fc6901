"""How videos are cut; a module of its own for processes that do without the rest of a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Splitting:
    """How long videos are cut into clips."""

    clip_seconds: float = 10.0
    overlap: float = 2.0
    shots: bool = False
