"""What can be searched for: sentences, with sentences to keep away from, and frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eaglenet.core.errors import UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.search.reranking import Reranker
from eaglenet.search.store.layout import StoredClips

MAX_CHARACTERS = 4000
"""A tokenizer keeps some tens of words; longer queries are cut before it has to read them."""
NEGATIVE_WEIGHT = 0.5
"""How much a phrase to keep away from counts against the phrase to find."""


def clean_query(text: str) -> str:
    """One line of valid text; control characters and lone surrogates become spaces.

    >>> clean_query(" a red\\x00 car\\n")
    'a red car'
    """
    if not isinstance(text, str):
        raise UsageError(
            f"a query is one sentence, not {_shown(text)}; search_many takes a list of sentences"
        )
    kept = (
        sign if sign.isprintable() or sign in "\u200d\ufe0f" else " "
        for sign in text[:MAX_CHARACTERS]
    )
    cleaned = " ".join("".join(kept).split())
    if not cleaned:
        raise UsageError("the query is empty; write what should be seen, e.g. 'a man drives a car'")
    return cleaned


def clean_queries(texts: Sequence[str]) -> list[str]:
    """:func:`clean_query` of each; a single sentence would be taken for its letters."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UsageError(f"a list of sentences is expected, not {_shown(texts)}")
    return [clean_query(text) for text in texts]


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"


@torch.no_grad()
def encode_sentences(method: Method, texts: Sequence[str]) -> TextFeatures:
    """Features of sentences that were cleaned before."""
    tokens = method.tokenize(list(texts)).to(method.device)
    return method.encode_text(tokens)


class Query(Protocol):
    """How an engine asks for clips."""

    coarse: Float[Tensor, "dim"]
    """The shortlist is ranked by the dot product with this."""
    coarse_share: float
    """How much of a clip's level (``Snapshot.levels``) is taken off that product."""
    exact_share: float
    """The same for exact scores."""

    def score(self, clips: StoredClips) -> Tensor:
        """Exact scores ``[clips]``."""
        ...

    def frame_scores(self, clips: StoredClips) -> Tensor:
        """``[clips, frames]``, -inf for padding."""
        ...


class TextQuery:
    """A sentence, and phrases to keep away from.

    score(v) = s(query, v) - w * mean_n s(negative_n, v), with w = ``NEGATIVE_WEIGHT``: the same
    arithmetic on cosines for the shortlist and on exact scores for the ranking, so that a phrase
    means the same in both. A clip's level is a part of every s, and so counts as often as these do
    together; it is not taken off scores of a model that levels them itself, nor off those of a
    network that reads text and video together, which are no cosines.
    """

    def __init__(self, reranker: Reranker, text: TextFeatures) -> None:
        """Row 0 of ``text`` is the query, the others are the negatives."""
        self.reranker = reranker
        self.method = method = reranker.method
        self.text = text
        vectors = method.coarse_vectors(text)
        self.coarse = _minus_negatives(vectors)
        self.coarse_share = float(_minus_negatives(torch.ones(len(vectors))))
        is_plain = method.level_bank is None and not method.is_cross_encoder
        self.exact_share = self.coarse_share if is_plain else 0.0

    def score(self, clips: StoredClips) -> Tensor:
        return _minus_negatives(self.reranker.score(self.text, clips))

    def frame_scores(self, clips: StoredClips) -> Tensor:
        scores = self.method.frame_scores(self.text, clips.features)
        return torch.where(clips.features.mask, _minus_negatives(scores), float("-inf"))


class FrameQuery:
    """Frames of an image, a video or another clip.

    score(v) = mean over the query's frames of the best cosine with a frame of v, so a clip that
    shows all of the query scores 1 wherever in it that happens. Levels are against sentences, so
    nothing is taken off.
    """

    coarse_share = exact_share = 0.0

    def __init__(self, method: Method, features: VideoFeatures) -> None:
        """``features`` holds one video."""
        self.coarse = method.coarse_vectors(features)[0]
        self.frames = F.normalize(features.frames[0][features.mask[0]], dim=-1)

    def _similarity(self, clips: VideoFeatures) -> Float[Tensor, "query videos frames"]:
        frames = F.normalize(clips.frames, dim=-1)
        scores = torch.einsum("qd,vfd->qvf", self.frames, frames)
        return scores.masked_fill(~clips.mask[None], float("-inf"))

    def score(self, clips: StoredClips) -> Tensor:
        return self._similarity(clips.features).amax(dim=-1).mean(dim=0)

    def frame_scores(self, clips: StoredClips) -> Tensor:
        return self._similarity(clips.features).amax(dim=0)


def _minus_negatives(values: Tensor) -> Tensor:
    """Row 0 less the weighted mean of the other rows."""
    if len(values) == 1:
        return values[0]
    return values[0] - NEGATIVE_WEIGHT * values[1:].mean(dim=0)
