"""Encoded queries, plain and composed, and the exact scores of clips for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.model import ClipFeatures, EncodedTexts, SearchModel

Vectors = NDArray[np.float32]

NEGATIVE_WEIGHT = 0.5
"""Weight of the negatives of a query against its text."""
MIN_NORM = 1e-12
MIN_DEVIATION = 1e-6


class EncodedQuery(Protocol):
    """Query in the form that clips are scored with."""

    vector: Vectors
    """Vector whose dot product with the vectors of clips ranks the shortlist."""
    hubness_weight: float
    """Weight of the hubness offset of a clip, which is subtracted from that product."""
    exact_hubness_weight: float
    """Weight of the hubness offset in exact scores."""

    def score(self, clips: ClipFeatures) -> Vectors:
        """Return the exact scores ``[clips]``."""
        ...

    def frame_scores(self, clips: ClipFeatures) -> Vectors:
        """Return the scores of frames ``[clips, frames]``; -inf for padding."""
        ...


class EncodedText:
    """Encoded text and negatives of a query.

    score(v) = s(text, v) - w * mean_n s(negative_n, v), with w = ``NEGATIVE_WEIGHT``, where s is
    the cosine for the shortlist and the exact score for the ranking. Every s contains the hubness
    offset of v once, so with negatives its weight is 1 - w. Exact scores are not corrected if the
    model corrects hubness itself, or if it is a cross-encoder, whose scores are not cosines.
    """

    def __init__(self, model: SearchModel, texts: EncodedTexts) -> None:
        """Row 0 of ``texts`` is the text of the query, the others are its negatives."""
        self.model = model
        self.texts = texts
        vectors = texts.vectors
        self.vector = _subtract_negatives(vectors)
        self.hubness_weight = float(_subtract_negatives(np.ones(len(vectors), np.float32)))
        self.exact_hubness_weight = self.hubness_weight if model.has_cosine_scores else 0.0

    def score(self, clips: ClipFeatures) -> Vectors:
        return _subtract_negatives(self.model.score(self.texts, clips))

    def frame_scores(self, clips: ClipFeatures) -> Vectors:
        scores = self.model.frame_scores(self.texts, clips)
        with np.errstate(invalid="ignore"):  # -inf - -inf, in padding
            return np.where(clips.mask, _subtract_negatives(scores), np.float32("-inf"))


class EncodedFrames:
    """Encoded frames of an image, a video or a clip.

    score(v) = mean over the frames of the query of the best cosine with a frame of v. A clip that
    contains all of these frames, in any order, scores 1. Hubness offsets are computed from texts,
    so they do not apply.
    """

    hubness_weight = exact_hubness_weight = 0.0

    def __init__(self, model: SearchModel, example: ClipFeatures) -> None:
        """``example`` holds the features of one video."""
        self.vector = model.vectors(example)[0]
        self.frames = unit_vectors(example.frames[0][example.mask[0]])

    def _cosines(self, clips: ClipFeatures) -> Vectors:
        """Return the cosines ``[query frames, clips, frames]``."""
        frames = unit_vectors(clips.frames)
        cosines = self.frames @ frames.reshape(-1, frames.shape[-1]).T
        cosines = cosines.reshape(len(self.frames), *frames.shape[:2])
        return np.where(clips.mask[None], cosines, np.float32("-inf"))

    def score(self, clips: ClipFeatures) -> Vectors:
        scores: Vectors = self._cosines(clips).max(axis=-1).mean(axis=0, dtype=np.float32)
        return scores

    def frame_scores(self, clips: ClipFeatures) -> Vectors:
        scores: Vectors = self._cosines(clips).max(axis=0)
        return scores


def spaced_indices(count: int, limit: int) -> NDArray[np.int64]:
    """Return up to ``limit`` evenly spaced indices into ``count`` items."""
    return np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64)


def unit_vectors(vectors: Vectors) -> Vectors:
    """Scale vectors along the last axis to unit length."""
    norms = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))
    unit: Vectors = vectors / np.maximum(norms, np.float32(MIN_NORM))[..., None]
    return unit


def _subtract_negatives(values: Vectors) -> Vectors:
    """Return row 0 minus the weighted mean of the other rows."""
    result: Vectors = values[0]
    if len(values) > 1:
        result = result - np.float32(NEGATIVE_WEIGHT) * values[1:].mean(axis=0, dtype=np.float32)
    return result


class EncodedComposition:
    """Weighted sum of encoded queries: s(v) = sum_p w_p s_p(v) / sum_p |w_p|.

    The formula applies to cosines and to exact scores. The cosines of an image vary several times
    more than those of a text and would outweigh them. So every part is scaled to the standard
    deviation of the first part over a sample of clips; a single part keeps its scores.
    """

    def __init__(
        self, parts: Sequence[tuple[float, EncodedQuery]], sample: Vectors | None = None
    ) -> None:
        """``sample``: vectors of some clips; None: do not scale the parts."""
        deviations = [1.0] * len(parts)
        if sample is not None and len(sample) > 1 and len(parts) > 1:
            deviations = [
                max(float((sample @ query.vector).std()), MIN_DEVIATION) for _, query in parts
            ]
        total = sum(abs(weight) for weight, _ in parts)
        self.parts = [
            (np.float32(weight / total * deviations[0] / deviation), query)
            for (weight, query), deviation in zip(parts, deviations, strict=True)
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
            [weight * query.score(clips) for weight, query in self.parts], axis=0, dtype=np.float32
        )
        return scores

    def frame_scores(self, clips: ClipFeatures) -> Vectors:
        total = np.zeros(clips.mask.shape, np.float32)
        for weight, query in self.parts:
            total += weight * np.where(clips.mask, query.frame_scores(clips), np.float32(0))
        return np.where(clips.mask, total, np.float32("-inf"))
