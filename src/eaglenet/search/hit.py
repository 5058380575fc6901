"""Search results. Does not import torch: searching with a compact model needs none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eaglenet.store.records import TranscriptKind

Modality = Literal["visual", "speech", "screen-text", "descriptions"]
"""Searchable part of a video: frames, subtitles and speech, on-screen text, or descriptions."""
Label = Literal["sure", "likely", "unlikely", "not measured"]
SURE, LIKELY = 0.7, 0.3
"""Minimum confidence of the labels ``sure`` and ``likely``."""
TIMES = frozenset({"start", "end", "best", "duration", "clip_start", "clip_end"})
"""Names of values that are times in a file, in seconds."""


@dataclass(frozen=True)
class Moment:
    """A span of a video file in seconds, and the time of its best frame."""

    start: float
    end: float
    best: float

    def __repr__(self) -> str:
        times = (f"{name}={value}" for name, value in round_times(vars(self)).items())
        return f"Moment({', '.join(times)})"


@dataclass(frozen=True)
class TranscriptMatch:
    """A transcript line that matches a query.

    start, end: seconds in the file. language: as its source names it; may be empty.
    highlights: start and end (exclusive) of each match in ``text``, in characters.
    by_meaning: the text matches by meaning rather than by words; it may span several lines.
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

    def __repr__(self) -> str:
        """Show the fields that distinguish hits; :meth:`to_dict` has all of them."""
        confidence = None if self.confidence is None else round(self.confidence, 3)
        return (
            f"Hit(rank={self.rank}, score={self.score:.3f}, confidence={confidence}, "
            f"moment={self.moment!r}, path={self.path!r}, clip_id={self.clip_id!r})"
        )

    def set_display(self, display: Callable[[Hit], str]) -> None:
        """Render this hit with ``display`` in a notebook; its fields stay as they are."""
        object.__setattr__(self, "_display", display)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the display, which holds an open engine."""
        return {name: value for name, value in vars(self).items() if name != "_display"}

    def _repr_html_(self) -> str | None:
        """Show the moment in a notebook; plain text if the hit does not come from an engine."""
        display: Callable[[Hit], str] | None = vars(self).get("_display")
        return None if display is None else display(self)

    @property
    def match(self) -> Label:
        """The confidence as a label."""
        return label(self.confidence)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with ``match`` and with times rounded to milliseconds."""
        values: dict[str, Any] = round_times(dataclasses.asdict(self))
        return {**values, "match": self.match}


def label(confidence: float | None) -> Label:
    """Return the label of a confidence.

    >>> [label(value) for value in (0.9, 0.5, 0.01, None)]
    ['sure', 'likely', 'unlikely', 'not measured']
    """
    if confidence is None:
        return "not measured"
    return "sure" if confidence >= SURE else "likely" if confidence >= LIKELY else "unlikely"


def round_times(value: Any) -> Any:
    """Round the times in nested values to milliseconds; frame times are no more precise.

    >>> round_times({"moment": {"best": 42.58333206176758}, "score": 0.12345})
    {'moment': {'best': 42.583}, 'score': 0.12345}
    """
    if isinstance(value, Mapping):
        return {
            name: round(item, 3) if name in TIMES and isinstance(item, float) else round_times(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(map(round_times, value))
    return value


def file_url(path: str) -> str:
    """Return the ``file://`` URL of a path; other URLs stay as they are."""
    return path if "://" in path else Path(path).absolute().as_uri()
