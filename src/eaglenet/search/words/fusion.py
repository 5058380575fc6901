"""One ranking of clips by what is seen and by what is said and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
