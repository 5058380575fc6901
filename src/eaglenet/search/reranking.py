"""The exact score of a shortlist, with the back end chosen once for a model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eaglenet.methods.base import Method
from eaglenet.scoring import Scorer, choose
from eaglenet.scoring.scorer import ReferenceScorer
from eaglenet.search.kept_rows import KeptRows
from eaglenet.search.store.layout import StoredClips
from eaglenet.types import TextFeatures, VideoFeatures

KEPT_BYTES = 384 * 2**20
"""For what the scorer computes of a clip alone, half the work of a score: 3,000 clips of EagleNet.
A few clips are near to very many sentences."""


class Reranker:
    """Scores texts against stored clips as :func:`eaglenet.scoring.score_all` does.

    Choosing a back end reads the model's weights, which takes as long as scoring a few clips, so
    it is done once. Where the store holds what the factorised scorer prepares of a clip, that is
    used instead of computed.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._scorer: Scorer | None = None
        self._kept = KeptRows(KEPT_BYTES)

    @torch.no_grad()
    def prepared(self, clips: StoredClips, keys: Sequence[Hashable]) -> StoredClips:
        """``clips`` with what the scorer computes of each alone, from memory where it is kept.

        ``keys`` name the clips: two that differ have different ones.
        """
        features = clips.features
        if clips.prepared or not len(features) or features.frames.device.type != "cpu":
            return clips
        scorer = self._chosen(clips)
        if isinstance(scorer, ReferenceScorer):
            return clips

        def make(numbers: list[int]) -> Mapping[str, Tensor]:
            made: Mapping[str, Tensor] = scorer.prepare(features[numbers])
            return made

        return replace(clips, prepared=self._kept.gather(keys, make))

    def _chosen(self, clips: StoredClips) -> Scorer:
        if self._scorer is None:
            scorer = choose(self.method, clips.features)
            scorer.hurry()
            self._scorer = scorer
        return self._scorer

    @torch.no_grad()
    def score(self, text: TextFeatures, clips: StoredClips) -> Tensor:
        """Float32 ``[texts, clips]``."""
        scorer = self._chosen(clips)
        parts = []
        for start in range(0, len(clips.features), scorer.tile_videos):
            span = slice(start, start + scorer.tile_videos)
            is_stored = bool(clips.prepared) and clips.features.frames.device.type == "cpu"
            prepared = (
                {name: value[span] for name, value in clips.prepared.items()}
                if is_stored
                else scorer.prepare(clips.features[span])
            )
            parts.append(scorer.score(text, prepared))
        return torch.cat(parts, dim=1)


@torch.no_grad()
def prepare_for_store(method: Method, features: VideoFeatures) -> Mapping[str, Tensor]:
    """What the factorised scorer computes of a video alone; refuses models without that form."""
    prepared: Mapping[str, Tensor] = choose(method, features, backend="factorised").prepare(
        features
    )
    return prepared
