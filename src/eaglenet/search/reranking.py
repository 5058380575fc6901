"""The exact score of a shortlist, with the back end chosen once for a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eaglenet.methods.base import Method
from eaglenet.scoring import Scorer, choose
from eaglenet.search.store.layout import StoredClips
from eaglenet.types import TextFeatures, VideoFeatures


class Reranker:
    """Scores texts against stored clips as :func:`eaglenet.scoring.score_all` does.

    Choosing a back end reads the model's weights, which takes as long as scoring a few clips, so
    it is done once. Where the store holds what the factorised scorer prepares of a clip, that is
    used instead of computed.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._scorer: Scorer | None = None

    @torch.no_grad()
    def score(self, text: TextFeatures, clips: StoredClips) -> Tensor:
        """Float32 ``[texts, clips]``."""
        scorer = self._scorer
        if scorer is None:
            scorer = self._scorer = choose(self.method, clips.features)
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
