"""A line of words with its times, and how much of it is believed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MAX_LINES = 200_000
"""Of one source: a line a second for two days."""
MAX_CHARACTERS = 2_000
"""Of one line; what is longer is cut."""
MAX_SECONDS = 1e6
"""A time beyond eleven days is a mistake."""


@dataclass(frozen=True)
class Line:
    """``start`` and ``end`` in seconds of the file; ``language`` empty where nothing tells it."""

    start: float
    end: float
    text: str
    language: str = ""


def clean_lines(lines: Iterable[Line]) -> list[Line]:
    """In order of time, each once, without what no one could read or find.

    >>> clean_lines([Line(2, 1, " so\\n it goes "), Line(1, 3, "")])
    [Line(start=2.0, end=2.0, text='so it goes', language='')]
    """
    found: dict[Line, None] = {}
    for line in lines:
        if len(found) >= MAX_LINES:
            break
        start, end = float(line.start), float(line.end)
        text = clean_text(line.text)
        if not text or not math.isfinite(start) or not -1.0 <= start <= MAX_SECONDS:
            continue
        start = max(start, 0.0)
        end = min(end, MAX_SECONDS) if math.isfinite(end) and end >= start else start
        found[Line(start, end, text, line.language[:35])] = None
    return sorted(found, key=lambda line: (line.start, line.end))


def clean_text(text: str) -> str:
    """One line of valid text; control characters and lone surrogates become spaces."""
    signs = (
        sign if sign.isprintable() or sign in "\u200c\u200d" else " "
        for sign in text[: 2 * MAX_CHARACTERS]
    )
    return " ".join("".join(signs).split())[:MAX_CHARACTERS].rstrip()
