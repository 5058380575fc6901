"""Search transcripts by meaning: windows of lines, and their strength beside exact terms.

The constants were chosen with ``benchmarks/transcript_search.py``, on its ``chosen`` questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eaglenet.transcripts.lines import TranscriptLine

WINDOW_WORDS = 32
"""Words per window at most: about the longest sentence, and what text encoders read whole."""
MAX_GAP = 4.0
"""Seconds of silence that end a window: what follows is often about something else."""
OVERLAP = 0.5
"""Share of a window's words that the next one has at most; a sentence up to that length is whole
in one of them."""
FULL_COSINE = 0.8
"""Cosine from which on a window means what the query means."""
MEANING_WEIGHT = 0.75
"""Strength of such a window, if it has no term of the query."""
MIN_COSINE = 0.3
"""Cosine below which a window has nothing to do with a query; few paraphrases have a lower one."""
CHANCE_COSINE, CHANCE_WINDOWS, CHANCE_RATE = 0.5, 160, 15.5
"""One in ten captions of unrelated videos has a cosine above 0.5 with one of 160 lines of talk. The
number of windows above a cosine c falls with exp(-15.5 c)."""


@dataclass(frozen=True)
class TranscriptWindow:
    """Neighbouring transcript lines read as one text; ``first`` to ``last`` index the lines."""

    start: float
    end: float
    text: str
    first: int
    last: int


def make_windows(
    lines: Sequence[TranscriptLine], max_words: int = WINDOW_WORDS
) -> list[TranscriptWindow]:
    """Cut a transcript into windows of up to ``max_words`` that overlap by half.

    A window has at least one line, ends before a pause of ``MAX_GAP`` seconds, and is no part of
    another one.

    >>> lines = [TranscriptLine(0, 1, "the keys"), TranscriptLine(1, 2, "are lost")]
    >>> [window.text for window in make_windows(lines)]
    ['the keys are lost']
    """
    counts = [len(line.text.split()) for line in lines]
    windows: list[TranscriptWindow] = []
    first = 0
    while first < len(lines):
        last, words = first, counts[first]
        while last + 1 < len(lines):
            is_apart = lines[last + 1].start - lines[last].end > MAX_GAP
            if is_apart or words + counts[last + 1] > max_words:
                break
            last, words = last + 1, words + counts[last + 1]
        if windows and windows[-1].last == last:  # Part of the window before.
            first += 1
            continue
        text = " ".join(line.text for line in lines[first : last + 1])
        end = max(line.end for line in lines[first : last + 1])
        windows.append(TranscriptWindow(lines[first].start, end, text, first, last))
        common = words
        while first <= last and common > OVERLAP * words:
            common -= counts[first]
            first += 1
    return windows


def meaning_strength(cosine: float) -> float:
    """Strength of a window by its cosine, 0 to ``MEANING_WEIGHT``.

    >>> meaning_strength(0.4), meaning_strength(0.1)
    (0.375, 0.0)
    """
    if cosine < MIN_COSINE:
        return 0.0
    return MEANING_WEIGHT * min(cosine / FULL_COSINE, 1.0)


def hybrid_strength(exact: float, meaning: float) -> float:
    """Strength by exact terms and by meaning together: 1 - (1 - exact)(1 - meaning).

    Where one of them is 0, the other decides; a window with all terms of the query comes before
    one that only means the same.
    """
    return 1 - (1 - exact) * (1 - meaning)


def chance_cosine(num_windows: int) -> float:
    """Cosine that the nearest of so many windows rarely reaches if it has another meaning.

    >>> round(chance_cosine(100), 2), round(chance_cosine(10_000), 2)
    (0.5, 0.77)
    """
    excess = max(num_windows, CHANCE_WINDOWS) / CHANCE_WINDOWS
    return CHANCE_COSINE + math.log(excess) / CHANCE_RATE
