"""Encoded queries and the exact scores of a shortlist."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.scoring import Scorer, choose
from eaglenet.scoring.scorer import ReferenceScorer
from eaglenet.search.store.layout import StoredClips

NEGATIVE_WEIGHT = 0.5
"""Weight of the negatives of a query against its text."""
CACHE_BYTES = 384 * 2**20
"""Size of the cache of prepared clips: 3,000 clips of EagleNet. Preparing a clip is half the work
of scoring it, and a few clips are on the shortlists of very many texts."""

Rows = Mapping[str, Tensor]
"""Tensors by name; the first axis of each is the keys."""


class RowCache:
    """The least recently used cache of rows of tensors, limited in bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._indices: OrderedDict[Hashable, int] = OrderedDict()
        self._tables: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._indices)

    def gather(
        self, keys: Sequence[Hashable], compute: Callable[[list[int]], Rows]
    ) -> dict[str, Tensor]:
        """Return the rows of distinct ``keys``; ``compute`` makes those that are not cached.

        It receives their positions in ``keys``, and may be called by several threads at once.
        """
        with self._lock:
            missing = [number for number, key in enumerate(keys) if key not in self._indices]
            if not missing:
                return self._read(keys)
            for key in keys:
                if key in self._indices:
                    self._indices.move_to_end(key)
        rows = compute(missing)
        with self._lock:
            self._write([keys[number] for number in missing], rows)
            if all(key in self._indices for key in keys):
                return self._read(keys)
        # More than fits, or another thread evicted some of them.
        return dict(rows if len(missing) == len(keys) else compute(list(range(len(keys)))))

    def _read(self, keys: Sequence[Hashable]) -> dict[str, Tensor]:
        for key in keys:
            self._indices.move_to_end(key)
        indices = torch.tensor([self._indices[key] for key in keys])
        return {name: table.index_select(0, indices) for name, table in self._tables.items()}

    def _write(self, keys: Sequence[Hashable], rows: Rows) -> None:
        if not self._tables:
            self._tables = self._allocate(rows)
        capacity = len(next(iter(self._tables.values()), ()))
        new = [number for number, key in enumerate(keys) if key not in self._indices][-capacity:]
        if not capacity or not new:
            return
        indices = []
        for number in new:
            index = len(self._indices)
            if index >= capacity:
                _, index = self._indices.popitem(last=False)
            self._indices[keys[number]] = index
            indices.append(index)
        for name, table in self._tables.items():
            table[torch.tensor(indices)] = rows[name][new]

    def _allocate(self, rows: Rows) -> dict[str, Tensor]:
        """Tables for as many rows as fit; the system commits memory as it is written."""
        row_bytes = sum(value[0].numel() * value.element_size() for value in rows.values())
        capacity = self.max_bytes // max(row_bytes, 1)
        return {name: value.new_empty((capacity, *value.shape[1:])) for name, value in rows.items()}


class Reranker:
    """Scores texts against stored clips as :func:`eaglenet.scoring.score_all` does.

    Choosing a back end reads the model's weights, which takes as long as scoring a few clips, so it
    happens once. Clips that the store holds in prepared form are not prepared again.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._scorer: Scorer | None = None
        self._cache = RowCache(CACHE_BYTES)

    @torch.no_grad()
    def prepare(self, clips: StoredClips, keys: Sequence[Hashable]) -> StoredClips:
        """Add what the scorer computes from each clip alone; ``keys`` identify the clips."""
        features = clips.features
        if clips.prepared or not len(features) or features.frames.device.type != "cpu":
            return clips
        scorer = self._scorer_for(clips)
        if isinstance(scorer, ReferenceScorer):
            return clips

        def compute(numbers: list[int]) -> Rows:
            rows: Rows = scorer.prepare(features[numbers])
            return rows

        return replace(clips, prepared=self._cache.gather(keys, compute))

    def _scorer_for(self, clips: StoredClips) -> Scorer:
        if self._scorer is None:
            scorer = choose(self.method, clips.features)
            scorer.hurry()
            self._scorer = scorer
        return self._scorer

    @torch.no_grad()
    def score(self, text: TextFeatures, clips: StoredClips) -> Tensor:
        """Exact scores, float32 ``[texts, clips]``."""
        scorer = self._scorer_for(clips)
        is_prepared = bool(clips.prepared) and clips.features.frames.device.type == "cpu"
        tiles = []
        for start in range(0, len(clips.features), scorer.tile_videos):
            span = slice(start, start + scorer.tile_videos)
            prepared = (
                {name: value[span] for name, value in clips.prepared.items()}
                if is_prepared
                else scorer.prepare(clips.features[span])
            )
            tiles.append(scorer.score(text, prepared))
        return torch.cat(tiles, dim=1)


@torch.no_grad()
def prepare_for_store(method: Method, features: VideoFeatures) -> Rows:
    """Compute what the factorised scorer needs of videos; an error for models without that form."""
    prepared: Rows = choose(method, features, backend="factorised").prepare(features)
    return prepared


class EncodedQuery(Protocol):
    """A query as clips are compared with it."""

    vector: Float[Tensor, "dim"]
    """Its dot product with the vectors of clips ranks the shortlist."""
    hubness_weight: float
    """Multiple of a clip's hubness offset that is subtracted from that product."""
    exact_hubness_weight: float
    """The same for exact scores."""

    def score(self, clips: StoredClips) -> Tensor:
        """Exact scores ``[clips]``."""
        ...

    def frame_scores(self, clips: StoredClips) -> Tensor:
        """Scores of frames ``[clips, frames]``, -inf for padding."""
        ...


class EncodedText:
    """A text and its negatives.

    score(v) = s(text, v) - w * mean_n s(negative_n, v), with w = ``NEGATIVE_WEIGHT``: on cosines
    for the shortlist and on exact scores for the ranking, so that a negative means the same in
    both. Every s contains the hubness offset of v once, so its weight is 1 - w with negatives.
    Exact scores are not corrected if the model corrects them itself, or if it is a network that
    reads text and video together, whose scores are no cosines.
    """

    def __init__(self, reranker: Reranker, text: TextFeatures) -> None:
        """Row 0 of ``text`` is the text of the query, the others are its negatives."""
        self.reranker = reranker
        self.method = method = reranker.method
        self.text = text
        vectors = method.coarse_vectors(text)
        self.vector = _subtract_negatives(vectors)
        self.hubness_weight = float(_subtract_negatives(torch.ones(len(vectors))))
        is_cosine = method.level_bank is None and not method.is_cross_encoder
        self.exact_hubness_weight = self.hubness_weight if is_cosine else 0.0

    def score(self, clips: StoredClips) -> Tensor:
        return _subtract_negatives(self.reranker.score(self.text, clips))

    def frame_scores(self, clips: StoredClips) -> Tensor:
        scores = self.method.frame_scores(self.text, clips.features)
        return torch.where(clips.features.mask, _subtract_negatives(scores), float("-inf"))


class EncodedFrames:
    """Frames of an image, a video or a clip.

    score(v) = mean over the query's frames of the best cosine with a frame of v: a clip that shows
    all of the query scores 1 wherever that happens. Hubness offsets are measured with texts, so
    they do not apply.
    """

    hubness_weight = exact_hubness_weight = 0.0

    def __init__(self, method: Method, features: VideoFeatures) -> None:
        """``features`` are those of one video."""
        self.vector = method.coarse_vectors(features)[0]
        self.frames = F.normalize(features.frames[0][features.mask[0]], dim=-1)

    def _cosines(self, videos: VideoFeatures) -> Float[Tensor, "query videos frames"]:
        frames = F.normalize(videos.frames, dim=-1)
        cosines = torch.einsum("qd,vfd->qvf", self.frames, frames)
        return cosines.masked_fill(~videos.mask[None], float("-inf"))

    def score(self, clips: StoredClips) -> Tensor:
        return self._cosines(clips.features).amax(dim=-1).mean(dim=0)

    def frame_scores(self, clips: StoredClips) -> Tensor:
        return self._cosines(clips.features).amax(dim=0)


def _subtract_negatives(values: Tensor) -> Tensor:
    """Row 0 minus the weighted mean of the other rows."""
    if len(values) == 1:
        return values[0]
    return values[0] - NEGATIVE_WEIGHT * values[1:].mean(dim=0)
