"""A line of words with its times, and how much of it is believed."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

MAX_LINES = 200_000
"""Of one source: a line a second for two days."""
MAX_CHARACTERS = 2_000
"""Of one line; what is longer is cut."""
MAX_SECONDS = 1e6
"""A time beyond eleven days is a mistake."""


@dataclass(frozen=True)
class TranscriptLine:
    """``start`` and ``end`` in seconds of the file; ``language`` empty where nothing tells it."""

    start: float
    end: float
    text: str
    language: str = ""


def clean_lines(lines: Iterable[TranscriptLine]) -> list[TranscriptLine]:
    """In order of time, each once, without what no one could read or find.

    >>> clean_lines([TranscriptLine(2, 1, " so\\n it goes "), TranscriptLine(1, 3, "")])
    [TranscriptLine(start=2.0, end=2.0, text='so it goes', language='')]
    """
    found: dict[TranscriptLine, None] = {}
    for line in lines:
        if len(found) >= MAX_LINES:
            break
        start, end = float(line.start), float(line.end)
        text = clean_text(line.text)
        if not text or not math.isfinite(start) or not -1.0 <= start <= MAX_SECONDS:
            continue
        start = max(start, 0.0)
        end = min(end, MAX_SECONDS) if math.isfinite(end) and end >= start else start
        found[TranscriptLine(start, end, text, line.language[:35])] = None
    return sorted(found, key=lambda line: (line.start, line.end))


def clean_text(text: str) -> str:
    """One line of valid text; control characters and lone surrogates become spaces."""
    signs = (
        sign if sign.isprintable() or sign in "\u200c\u200d" else " "
        for sign in text[: 2 * MAX_CHARACTERS]
    )
    return " ".join("".join(signs).split())[:MAX_CHARACTERS].rstrip()


# Text as the terms it is found by: one analysis for what is stored, asked for and highlighted.

MAX_TERM = 64
"""Characters; nobody looks for longer words."""
_APOSTROPHES = "'\u2019\u02bc\u2018"
_DROPPED = ((0x300, 0x36F), (0x64B, 0x652), (0x5B0, 0x5C7))
"""Accents, and the vowels that Arabic and Hebrew leave out at will."""
# fmt: off
_SPACELESS = (
    (0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0x20000, 0x3134F),
)
# fmt: on
"""Thai, Lao, Burmese, Khmer, kana, Han, Hangul."""


@dataclass(frozen=True)
class Term:
    """A term and the characters of the text it stands for."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Analysis:
    """The terms of a text in order, and those that are found beside them."""

    terms: tuple[Term, ...]
    others: tuple[Term, ...]

    def stored(self) -> str:
        """What the full-text index is made of: terms between spaces."""
        return " ".join(term.text for term in (*self.terms, *self.others))


def analyse(text: str) -> Analysis:
    """
    >>> analyse("Zwei rote Autos!").stored()
    'zwei rote autos auto'
    >>> analyse("\u7ea2\u8272\u6c7d\u8f66").stored().split()[:3]
    ['\u7ea2\u8272', '\u8272\u6c7d', '\u6c7d\u8f66']
    """
    terms: list[Term] = []
    others: list[Term] = []
    for run in _runs(text):
        if _is_spaceless(run[0].text):
            if len(run) == 1:
                terms += run
            for first, second in pairwise(run):
                terms.append(Term(first.text + second.text, first.start, second.end))
            others += run if len(run) > 1 else ()
            continue
        word = "".join(part.text for part in run)[:MAX_TERM]
        terms.append(Term(word, run[0].start, run[-1].end))
        if singular(word) != word:
            others.append(Term(singular(word), run[0].start, run[-1].end))
    return Analysis(tuple(terms), tuple(others))


def singular(word: str) -> str:
    """Without the ending of a plural: Harman's S stemmer (1991), which hardly joins other words.

    >>> [singular(word) for word in ("dogs", "cities", "glass", "bus", "horses")]
    ['dog', 'city', 'glass', 'bus', 'horse']
    """
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return f"{word[:-3]}y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


def phrase_spans(terms: Sequence[Term], phrase: Sequence[str]) -> list[tuple[int, int]]:
    """Characters of a text in which the terms of a phrase follow each other."""
    size = len(phrase)
    return [
        (terms[place].start, terms[place + size - 1].end)
        for place in range(len(terms) - size + 1 if size else 0)
        if all(terms[place + step].text == phrase[step] for step in range(size))
    ]


def _runs(text: str) -> Iterator[list[Term]]:
    """Letters and digits that belong together, each folded."""
    run: list[Term] = []
    for place, sign in enumerate(text):
        if sign in _APOSTROPHES and run:
            continue  # "don't" is one word, and so is what it stands beside.
        folded = _fold(sign)
        if not folded:
            if not _is_mark(sign) and run:
                yield run
                run = []
            continue
        if run and _is_spaceless(run[-1].text) != _is_spaceless(folded):
            yield run
            run = []
        run.append(Term(folded, place, place + 1))
    if run:
        yield run


@lru_cache(maxsize=20_000)
def _fold(sign: str) -> str:
    """A character without case, accent and width; empty where it is no part of a word."""
    if not (sign.isalnum() or _is_mark(sign)):
        return ""
    parts = unicodedata.normalize("NFKD", sign.casefold())
    kept = "".join(part for part in parts if not _within(ord(part), _DROPPED))
    return "".join(unicodedata.normalize("NFC", kept).split())


@lru_cache(maxsize=20_000)
def _is_mark(sign: str) -> bool:
    return unicodedata.category(sign).startswith("M")


def _is_spaceless(text: str) -> bool:
    return _within(ord(text[0]), _SPACELESS)


def _within(number: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in ranges)
