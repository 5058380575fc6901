"""Composed queries as clips are compared with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eaglenet.search.model import ClipFeatures
from eaglenet.search.reranking import EncodedQuery, Vectors

MIN_SPREAD = 1e-6


class EncodedComposition:
    """Parts with weights: s(v) = sum_p w_p s_p(v) / sum_p |w_p|, on cosines and exact scores.

    The cosines of an image with clips spread several times wider than those of a text, and would
    outweigh it. So every part is scaled to the spread that the first one has over a sample of the
    clips; a single part keeps its scores.
    """

    def __init__(
        self, parts: Sequence[tuple[float, EncodedQuery]], sample: Vectors | None = None
    ) -> None:
        """``sample``: vectors of some clips; without them parts are not scaled."""
        spreads = [1.0] * len(parts)
        if sample is not None and len(sample) > 1 and len(parts) > 1:
            spreads = [max(float((sample @ query.vector).std()), MIN_SPREAD) for _, query in parts]
        total = sum(abs(weight) for weight, _ in parts)
        self.parts = [
            (np.float32(weight / total * spreads[0] / spread), query)
            for (weight, query), spread in zip(parts, spreads, strict=True)
        ]
        self.vector: Vectors = np.sum(
            [weight * query.vector for weight, query in self.parts], axis=0, dtype=np.float32
        )
        self.hubness_weight = float(sum(w * query.hubness_weight for w, query in self.parts))
        self.exact_hubness_weight = float(
            sum(w * query.exact_hubness_weight for w, query in self.parts)
        )

    def score(self, clips: ClipFeatures) -> Vectors:
        scores: Vectors = np.sum(
            [weight * query.score(clips) for weight, query in self.parts],
            axis=0,
            dtype=np.float32,
        )
        return scores

    def frame_scores(self, clips: ClipFeatures) -> Vectors:
        total = np.zeros(clips.mask.shape, np.float32)
        for weight, query in self.parts:
            total += weight * np.where(clips.mask, query.frame_scores(clips), np.float32(0))
        return np.where(clips.mask, total, np.float32("-inf"))
