"""From lines that were found to clips, and how sure it is that a clip is what was asked for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UnreachableError
from eaglenet.core.types import FoundWords, Moment, Part, WordKind
from eaglenet.search.store.base import Store
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.words import WordIndex, WordQuestion, WordRow
from eaglenet.transcripts.lines import Analysis, analyse, phrase_places, singular

# What a query asks for in words: terms in any order, and exact phrases in quotes.

KINDS: dict[Part, tuple[WordKind, ...]] = {"speech": ("subtitle", "speech"), "text": ("text",)}
"""Of lines, by the part of a video they are searched as."""
MOST_TERMS = 64
"""Of a query; what comes after them is not looked for."""
_QUOTES = re.compile("[\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f\uff02]")


@dataclass(frozen=True)
class WordQuery:
    """A query as words are searched for.

    plain: without its quotes, as pictures are searched for. units: terms outside of quotes, each
    with what counts as the same. phrases: terms that must follow each other.
    """

    plain: str
    units: tuple[tuple[str, ...], ...]
    phrases: tuple[tuple[str, ...], ...]

    @property
    def is_quoted(self) -> bool:
        """Whether there is nothing but phrases, so that pictures cannot fit."""
        return bool(self.phrases) and not self.units

    def question(self, parts: Sequence[Part]) -> WordQuestion | None:
        """For the store; None where there is nothing to look for."""
        kinds = tuple(kind for part in parts for kind in KINDS.get(part, ()))
        terms = tuple(dict.fromkeys(term for unit in self.units for term in unit))
        if not kinds or not (terms or self.phrases):
            return None
        return WordQuestion(terms, self.phrases, kinds)


def parse(query: str) -> WordQuery:
    """Quotes of any kind enclose a phrase; one that is not closed is a sign like any other.

    >>> parse('signs that say "no entry"').phrases
    (('no', 'entry'),)
    """
    pieces = _QUOTES.sub('"', query).split('"')
    if len(pieces) % 2 == 0:
        pieces[-2:] = [" ".join(pieces[-2:])]
    phrases = [tuple(term.text for term in analyse(piece).terms) for piece in pieces[1::2]]
    outside = dict.fromkeys(term.text for piece in pieces[::2] for term in analyse(piece).terms)
    units = [tuple(dict.fromkeys((term, singular(term)))) for term in outside]
    return WordQuery(
        plain=" ".join(" ".join(pieces).split()),
        units=tuple(units[:MOST_TERMS]),
        phrases=tuple(phrase[:MOST_TERMS] for phrase in phrases if phrase),
    )


def why_no_line(query: WordQuery, parts: Sequence[Part], num_lines: int) -> str:
    """Why words found nothing, and what to try; empty where pictures were looked at too."""
    looks_at_pictures = "pictures" in parts
    if looks_at_pictures and not query.is_quoted:
        return ""
    what = "this phrase" if query.is_quoted else "these words"
    if not num_lines:
        reason = f"{what} can only be in speech and text, and this store holds none of both"
    elif num_lines == 1:
        reason = f"the one line of speech and text does not have {what}"
    else:
        reason = f"none of the {num_lines:,} lines of speech and text has {what}"
    if query.is_quoted:
        also = ", and pictures count" if looks_at_pictures else ""
        return f"{reason}; without quotes its words may stand apart{also}"
    return f"{reason}; pictures were not looked at"


LINES = 300
"""That are looked at for one query."""
MOST_LINES = 20_000
"""Where a filter leaves out most of them."""
MOST_CONTENTS = 500
"""That a condition on the lines may name; of more, lines are left out after they were found."""
SHOWN_LINES = 3
"""Of one clip."""
SHORTEST = 1.0
"""Seconds of a moment."""


@dataclass(frozen=True)
class ClipWords:
    """A clip whose words were found.

    coverage: share of what was asked for that it has. strength: that, times how telling it is.
    """

    row: int
    coverage: float
    strength: float
    lines: tuple[FoundWords, ...]
    parts: tuple[Part, ...]
    """``speech``, ``text``, or both; that of the best line first."""

    def moment(self, duration: float) -> Moment:
        """Of the best line, within the file."""
        line = self.lines[0]
        start = min(line.start, max(duration - SHORTEST, 0.0))
        end = max(min(line.end, duration), min(start + SHORTEST, duration))
        return Moment(start, end, (start + end) / 2)


def rank_clips(
    index: WordIndex,
    query: WordQuery,
    snapshot: Snapshot,
    parts: Sequence[Part],
    *,
    allowed: NDArray[np.bool_] | None = None,
    negatives: Sequence[WordQuery] = (),
) -> list[ClipWords]:
    """Clips with lines that fit, best first. ``allowed``: a mask over the snapshot's files.

    A line is of one clip: the one it is nearest to the middle of. What the lines of a clip have
    together counts, as a sentence may go over several. The strength of a clip is

        c (1 - 2^-m),   c = sum of w_t over terms it has / sum over all terms of the query,

    w_t = log(1 + (n - n_t + 1/2) / (n_t + 1/2)) for a term that n_t of the n lines found have, and
    m the first sum in units of the largest w_t: the number of telling words that were met.
    """
    found = [(line, analyse(line.words)) for line in _lines(index, query, snapshot, parts, allowed)]
    found = [pair for pair in found if not any(_has_all(pair[1], away) for away in negatives)]
    weights = _weights(query, [analysis for _, analysis in found])
    clips: dict[int, list[tuple[WordRow, Analysis]]] = {}
    for line, analysis in found:
        row = _row_of(snapshot, line)
        if row is not None:
            clips.setdefault(row, []).append((line, analysis))
    ranked = [_clip(row, lines, query, weights) for row, lines in clips.items()]
    # Stable: clips of one strength keep the order of BM25 of their best lines.
    return sorted(ranked, key=lambda clip: -clip.strength)


def _lines(
    index: WordIndex,
    query: WordQuery,
    snapshot: Snapshot,
    parts: Sequence[Part],
    allowed: NDArray[np.bool_] | None,
) -> list[WordRow]:
    question = query.question(parts)
    if question is None:
        return []
    contents = snapshot.files.contents
    if allowed is None:
        return index.find(question, LINES)
    wanted = [contents[number] for number in np.flatnonzero(allowed).tolist()]
    if len(wanted) <= MOST_CONTENTS:
        return index.find(question, LINES, wanted) if wanted else []
    kept, most = set(wanted), LINES
    while True:
        lines = index.find(question, most)
        fitting = [line for line in lines if line.content in kept]
        if len(fitting) >= LINES or len(lines) < most or most >= MOST_LINES:
            return fitting[:LINES]
        most *= 4


def _row_of(snapshot: Snapshot, line: WordRow) -> int | None:
    """The clip a line is in; None where its file is not (yet, any more) to be found."""
    rows = snapshot.rows_of_content(line.content)
    if not len(rows):
        return None
    middle = (line.start + line.end) / 2
    starts, ends = snapshot.columns["start"][rows], snapshot.columns["end"][rows]
    return int(rows[np.minimum(middle - starts, ends - middle).argmax()])


def _texts(analysis: Analysis) -> set[str]:
    return {term.text for term in (*analysis.terms, *analysis.others)}


def _has_all(analysis: Analysis, query: WordQuery) -> bool:
    texts = _texts(analysis)
    return all(not texts.isdisjoint(unit) for unit in query.units) and all(
        phrase_places(analysis.terms, phrase) for phrase in query.phrases
    )


def _weights(query: WordQuery, found: Sequence[Analysis]) -> dict[tuple[str, ...], float]:
    counts: Counter[tuple[str, ...]] = Counter()
    for analysis in found:
        texts = _texts(analysis)
        counts.update(unit for unit in query.units if not texts.isdisjoint(unit))
    return {
        unit: math.log1p((len(found) - counts[unit] + 0.5) / (counts[unit] + 0.5))
        for unit in query.units
    }


def _clip(
    row: int,
    lines: Sequence[tuple[WordRow, Analysis]],
    query: WordQuery,
    weights: dict[tuple[str, ...], float],
) -> ClipWords:
    matched = [
        {unit for unit in query.units if not _texts(analysis).isdisjoint(unit)}
        for _, analysis in lines
    ]
    largest = max(weights.values(), default=1.0)
    # A phrase is met whole, or its line would not be here.
    phrases = largest * sum(map(len, query.phrases))
    together = phrases + sum(weights[unit] for unit in set().union(*matched))
    coverage = together / (phrases + sum(weights.values()))
    strength = coverage * (1 - 2 ** (-together / largest))
    values = [-sum(weights[unit] for unit in units) for units in matched]
    shown: dict[str, FoundWords] = {}
    for number in sorted(range(len(lines)), key=values.__getitem__):
        line, analysis = lines[number]
        if len(shown) < SHOWN_LINES:
            shown.setdefault(line.words.casefold(), _shown(line, analysis, query))
    return ClipWords(row, coverage, strength, tuple(shown.values()), _parts(shown.values()))


def _parts(lines: Iterable[FoundWords]) -> tuple[Part, ...]:
    found = (part for line in lines for part, kinds in KINDS.items() if line.kind in kinds)
    return tuple(dict.fromkeys(found))


def _shown(line: WordRow, analysis: Analysis, query: WordQuery) -> FoundWords:
    wanted = {term for unit in query.units for term in unit}
    places = [
        (term.start, term.end)
        for term in (*analysis.terms, *analysis.others)
        if term.text in wanted
    ]
    for phrase in query.phrases:
        places += phrase_places(analysis.terms, phrase)
    return FoundWords(
        text=line.words,
        start=line.start,
        end=line.end,
        kind=line.kind,
        language=line.language,
        highlights=_joined(line.words, places),
    )


def _joined(text: str, places: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Overlapping places as one, and those with nothing but spaces between them."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if joined and not text[joined[-1][1] : start].strip():
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)


# One ranking of clips by what is seen and by what is said and written.

LEAST = 0.7
"""Coverage below which words are taken for chance: sentences share common words."""
RANKS = 60
"""How slowly places by pictures lose weight (Cormack, Clarke and Buettcher 2009)."""
WORDS = 2.0
"""The first place among words counts so often, times its strength: one word met as much as a
picture's place, three more than any picture."""


def fused_scores(pictures: Sequence[int], words: Mapping[int, float]) -> dict[int, float]:
    """Reciprocal ranks of both, added; at most 1.

        s(v) = (61 / (60 + r_p(v)) + 2 strength(v) / r_w(v)) / 3

    Places among words lose weight at once: lines that fit about as well are told apart by what is
    left of their order, which pictures, level over hundreds of places, would only shuffle.

    ``pictures``: rows, best first. ``words``: rows with their strengths, best first.
    """
    whole = 1 + WORDS
    scores = {row: (RANKS + 1) / (RANKS + rank) / whole for rank, row in enumerate(pictures, 1)}
    for rank, (row, strength) in enumerate(words.items(), 1):
        scores[row] = scores.get(row, 0.0) + WORDS * strength / rank / whole
    return scores


# The words of a store as they are now, opened when they are first asked for.


class Words:
    """Opened again when the store was written to. Importing LanceDB is left out where there are
    no words, for it takes seconds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._opened: tuple[Hashable, WordIndex | None] | None = None

    def now(self) -> WordIndex | None:
        """None where the store holds no words, and an error where nobody can tell."""
        opened = self._opened
        try:
            stamp = self.store.words_stamp()
        except OSError as error:
            if opened is None:
                raise UnreachableError(
                    f"the words of {self.store.location} cannot be read: {error}"
                ) from error
            return opened[1]  # The store went away; what is open can still be searched.
        if stamp is None:
            return None
        if opened is None or opened[0] != stamp:
            opened = self._opened = (stamp, self.store.words())
        return opened[1]
