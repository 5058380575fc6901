"""PE-Core as an encoder of texts and videos."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.config import CLIP_LOGIT_SCALE
from eaglenet.encoders.perception.config import PerceptionConfig
from eaglenet.encoders.perception.vision import PerceptionVisionTower
from eaglenet.encoders.text import TextTower, take_positions
from eaglenet.types import Abilities, TextFeatures


class PerceptionEncoder(TowerEncoder):
    """A frame is pooled by attention, a sentence its end token.

    Patches have no place in the joint space, so it gives none.
    """

    family = "perception"
    abilities = Abilities(words=True)
    resize = "stretch"
    config: PerceptionConfig
    vision: PerceptionVisionTower
    text: TextTower

    def __init__(self, config: PerceptionConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.image_size = config.vision.image_size
        self.context_length = config.text.context_length
        self.vision = PerceptionVisionTower(
            config.vision, config.dim, config.pixel_mean, config.pixel_std
        )
        self.text = TextTower(config.text, config.dim)
        self.logit_scale = nn.Parameter(torch.tensor(CLIP_LOGIT_SCALE))
        if not self.logit_scale.is_meta:
            generator = torch.Generator().manual_seed(seed)
            self.vision.initialise(generator)
            self.text.initialise(generator)

    def read_tokens(
        self,
        ids: Int[Tensor, "texts words"],
        mask: Bool[Tensor, "texts words"],
        *,
        words: bool,
    ) -> TextFeatures:
        features = self.text(ids, words=words)
        if not words:
            return TextFeatures(sentence=features[:, 0])
        sentence = take_positions(features, self.text.end_positions(ids))
        return TextFeatures(sentence=sentence, words=features, words_mask=mask)
