"""Search results. Does not import torch: searching with a compact model needs none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Modality = Literal["visual", "speech", "screen-text", "descriptions"]
"""Searchable part of a video: frames, subtitles and speech, on-screen text, or descriptions."""
TranscriptKind = Literal["subtitle", "speech", "text", "description"]
"""Origin of a transcript line: subtitles, speech recognition, on-screen text, or a description."""


@dataclass(frozen=True)
class Moment:
    """A span of a video file in seconds, and the time of its best frame."""

    start: float
    end: float
    best: float


@dataclass(frozen=True)
class TranscriptMatch:
    """A transcript line that matches a query.

    start, end: seconds in the file. language: as its source names it; may be empty.
    highlights: first and last + 1 character of each match in ``text``. by_meaning: the text matches
        by meaning rather than by words; it may span several lines.
    """

    text: str
    start: float
    end: float
    kind: TranscriptKind
    language: str = ""
    highlights: tuple[tuple[int, int], ...] = ()
    by_meaning: bool = False


@dataclass(frozen=True)
class Hit:
    """One search result. ``rank`` starts at 1; ``coarse_score`` is the shortlist's cosine.

    matched_in: the modalities that matched, the most important one first.
    transcript: the matching transcript lines, best first.
    confidence: probability that the hit is right; None if it was not measured for this model or
        this kind of query.
    """

    rank: int
    clip_id: str
    path: str
    score: float
    coarse_score: float
    moment: Moment
    duration: float
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    matched_in: tuple[Modality, ...] = ("visual",)
    transcript: tuple[TranscriptMatch, ...] = ()
    confidence: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def file_url(path: str) -> str:
    """Return the ``file://`` URL of a path; other URLs stay as they are."""
    return path if "://" in path else Path(path).absolute().as_uri()
