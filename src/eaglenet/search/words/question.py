"""What a query asks for in words: terms in any order, and exact phrases in quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from eaglenet.search.store.words import WordQuestion
from eaglenet.types import Part, WordKind
from eaglenet.words.terms import analyse, singular

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
