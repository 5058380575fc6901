"""Transcript lines: terms for the full-text index, and windows for search by meaning."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

MAX_LINES = 200_000
"""Maximum lines per source: one per second for two days."""
MAX_CHARACTERS = 2_000
"""Maximum characters per line; longer lines are truncated."""
MAX_SECONDS = 1e6
"""Latest valid time: about eleven days."""


@dataclass(frozen=True)
class TranscriptLine:
    """A transcript line; ``start`` and ``end`` in seconds, ``language`` empty if unknown."""

    start: float
    end: float
    text: str
    language: str = ""


def clean_lines(lines: Iterable[TranscriptLine]) -> list[TranscriptLine]:
    """Sort lines by time and drop duplicates, empty lines and invalid times.

    >>> clean_lines([TranscriptLine(2, 1, " so\\n it goes "), TranscriptLine(1, 3, "")])
    [TranscriptLine(start=2.0, end=2.0, text='so it goes', language='')]
    """
    unique: dict[TranscriptLine, None] = {}
    for line in lines:
        if len(unique) >= MAX_LINES:
            break
        start, end = float(line.start), float(line.end)
        text = clean_text(line.text)
        if not text or not math.isfinite(start) or not -1.0 <= start <= MAX_SECONDS:
            continue
        start = max(start, 0.0)
        end = min(end, MAX_SECONDS) if math.isfinite(end) and end >= start else start
        unique[TranscriptLine(start, end, text, clean_text(line.language[:35]))] = None
    return sorted(unique, key=lambda line: (line.start, line.end))


def clean_text(text: str) -> str:
    """Collapse white space, and replace control characters and lone surrogates by spaces."""
    characters = (
        character if character.isprintable() or character in "\u200c\u200d" else " "
        for character in text[: 2 * MAX_CHARACTERS]
    )
    return " ".join("".join(characters).split())[:MAX_CHARACTERS].rstrip()


MAX_TERM = 64
"""Maximum characters per term; longer words are truncated."""
_APOSTROPHES = "'\u2019\u02bc\u2018"
_IGNORED_MARKS = ((0x300, 0x36F), (0x64B, 0x652), (0x5B0, 0x5C7))
"""Combining accents, and the optional vowel marks of Arabic and Hebrew."""
# fmt: off
_SPACELESS = (
    (0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0x20000, 0x3134F),
)
# fmt: on
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han, Hangul."""


@dataclass(frozen=True)
class Term:
    """A search term and its span of characters in the text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Analysis:
    """The terms of a text in order, and alternative forms that also match."""

    terms: tuple[Term, ...]
    alternatives: tuple[Term, ...]

    def index_text(self) -> str:
        """Return the terms separated by spaces, for the full-text index."""
        return " ".join(term.text for term in (*self.terms, *self.alternatives))


def analyse(text: str) -> Analysis:
    """Split text into terms without case and accents.

    Scripts without spaces between words become pairs of characters.

    >>> analyse("Zwei rote Autos!").index_text()
    'zwei rote autos auto'
    >>> analyse("\u7ea2\u8272\u6c7d\u8f66").index_text().split()[:3]
    ['\u7ea2\u8272', '\u8272\u6c7d', '\u6c7d\u8f66']
    """
    terms: list[Term] = []
    alternatives: list[Term] = []
    for run in _runs(text):
        if _is_spaceless(run[0].text):
            if len(run) == 1:
                terms += run
            for first, second in pairwise(run):
                terms.append(Term(first.text + second.text, first.start, second.end))
            alternatives += run if len(run) > 1 else ()
            continue
        word = "".join(character.text for character in run)[:MAX_TERM]
        terms.append(Term(word, run[0].start, run[-1].end))
        if singular(word) != word:
            alternatives.append(Term(singular(word), run[0].start, run[-1].end))
    return Analysis(tuple(terms), tuple(alternatives))


def singular(word: str) -> str:
    """Strip an English plural ending with Harman's S stemmer (1991).

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


def phrase_spans(
    terms: Sequence[Term], phrase: Sequence[str], gap: int | None = None
) -> list[tuple[int, int]]:
    """Return the character spans in which the terms of a phrase follow each other.

    With ``gap``, return the spans of terms that are near each other in any order, with at most
    ``gap`` other terms between the first and the last.
    """
    if gap is not None:
        return _near_spans(terms, set(phrase), gap)
    size, words, texts = len(phrase), list(phrase), [term.text for term in terms]
    return [
        (terms[first].start, terms[first + size - 1].end)
        for first in range(len(terms) - size + 1 if size else 0)
        if texts[first] == words[0] and texts[first : first + size] == words
    ]


def _near_spans(terms: Sequence[Term], phrase: set[str], gap: int) -> list[tuple[int, int]]:
    """Return spans of all terms of a phrase within ``gap + 2`` terms, in linear time."""
    positions = [number for number, term in enumerate(terms) if term.text in phrase]
    counts: Counter[str] = Counter()
    near: list[int] = []
    end = near_end = 0
    for index, first in enumerate(positions):
        while end < len(positions) and positions[end] - first <= gap + 1:
            counts[terms[positions[end]].text] += 1
            end += 1
        if len(counts) == len(phrase):
            near += positions[max(index, near_end) : end]
            near_end = end
        text = terms[first].text
        counts[text] -= 1
        if not counts[text]:
            del counts[text]
    return [(terms[number].start, terms[number].end) for number in near]


def _runs(text: str) -> Iterator[list[Term]]:
    """Yield words as lists of their characters without case and accents, with positions."""
    run: list[Term] = []
    for index, character in enumerate(text):
        if character in _APOSTROPHES and run:
            continue  # "don't" is one word.
        base = _fold(character)
        if not base:
            if not _is_mark(character) and run:
                yield run
                run = []
            continue
        if run and _is_spaceless(run[-1].text) != _is_spaceless(base):
            yield run
            run = []
        run.append(Term(base, index, index + 1))
    if run:
        yield run


@lru_cache(maxsize=20_000)
def _fold(character: str) -> str:
    """Remove case, accents and width; return an empty text if it is not part of a word."""
    if not (character.isalnum() or _is_mark(character)):
        return ""
    parts = unicodedata.normalize("NFKD", character.casefold())
    base = "".join(part for part in parts if not _is_within(ord(part), _IGNORED_MARKS))
    return "".join(unicodedata.normalize("NFC", base).split())


@lru_cache(maxsize=20_000)
def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _is_spaceless(text: str) -> bool:
    return _is_within(ord(text[0]), _SPACELESS)


def _is_within(number: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in ranges)


# Windows of lines for search by meaning. The constants were selected with
# ``benchmarks/transcript_search.py`` on its ``chosen`` queries.

WINDOW_WORDS = 32
"""Maximum words per window: about the longest sentence, and within the text encoders' limit."""
MAX_GAP = 4.0
"""Seconds of silence that end a window, since the topic often changes."""
OVERLAP = 0.5
"""Maximum fraction of the words of a window that the next one repeats, so that a sentence up to
this length is complete in one of them."""
FULL_COSINE = 0.8
"""Minimum cosine of a window with the same meaning as the query."""
MEANING_WEIGHT = 0.75
"""Strength of a window with the same meaning that contains no term of the query."""
MIN_COSINE = 0.3
"""Minimum cosine of a window that matches a query; few paraphrases have a lower one."""
CHANCE_COSINE, CHANCE_WINDOWS, CHANCE_RATE = 0.5, 160, 15.5
"""One in ten captions of unrelated videos has a cosine above 0.5 with one of 160 lines of speech.
The number of windows above a cosine c falls with exp(-15.5 c)."""


@dataclass(frozen=True)
class TranscriptWindow:
    """Consecutive transcript lines as one text; ``first`` and ``last`` are line indices."""

    start: float
    end: float
    text: str
    first: int
    last: int


def make_windows(
    lines: Sequence[TranscriptLine], max_words: int = WINDOW_WORDS
) -> list[TranscriptWindow]:
    """Cut a transcript into windows of up to ``max_words`` that overlap by half.

    A window has at least one line, ends before a pause of ``MAX_GAP`` seconds, and is not contained
    in another one.

    >>> lines = [TranscriptLine(0, 1, "the keys"), TranscriptLine(1, 2, "are lost")]
    >>> [window.text for window in make_windows(lines)]
    ['the keys are lost']
    """
    counts = [len(line.text.split()) for line in lines]
    windows: list[TranscriptWindow] = []
    first = 0
    while first < len(lines):
        last, num_words = first, counts[first]
        while last + 1 < len(lines):
            is_apart = lines[last + 1].start - lines[last].end > MAX_GAP
            if is_apart or num_words + counts[last + 1] > max_words:
                break
            last, num_words = last + 1, num_words + counts[last + 1]
        if windows and windows[-1].last == last:  # Contained in the previous window.
            first += 1
            continue
        text = " ".join(line.text for line in lines[first : last + 1])
        end = max(line.end for line in lines[first : last + 1])
        windows.append(TranscriptWindow(lines[first].start, end, text, first, last))
        num_common = num_words
        while first <= last and num_common > OVERLAP * num_words:
            num_common -= counts[first]
            first += 1
    return windows


def meaning_strength(cosine: float) -> float:
    """Return the strength of a window with this cosine, from 0 to ``MEANING_WEIGHT``.

    >>> meaning_strength(0.4), meaning_strength(0.1)
    (0.375, 0.0)
    """
    if cosine < MIN_COSINE:
        return 0.0
    return MEANING_WEIGHT * min(cosine / FULL_COSINE, 1.0)


def hybrid_strength(exact: float, meaning: float) -> float:
    """Combine the strengths by exact terms and by meaning: 1 - (1 - exact)(1 - meaning).

    If one of them is 0, the other decides. A window with all terms of the query ranks above one
    that only matches by meaning.
    """
    return 1 - (1 - exact) * (1 - meaning)


def chance_cosine(num_windows: int) -> float:
    """Return the cosine that the nearest of ``num_windows`` unrelated windows rarely reaches.

    >>> round(chance_cosine(100), 2), round(chance_cosine(10_000), 2)
    (0.5, 0.77)
    """
    excess = max(num_windows, CHANCE_WINDOWS) / CHANCE_WINDOWS
    return CHANCE_COSINE + math.log(excess) / CHANCE_RATE
