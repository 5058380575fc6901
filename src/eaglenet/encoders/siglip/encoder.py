"""SigLIP as an encoder of texts and videos."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.siglip.config import SiglipConfig
from eaglenet.encoders.siglip.towers import SiglipTextTower, SiglipVisionTower
from eaglenet.types import Abilities, TextFeatures

LOGIT_SCALE, LOGIT_BIAS = math.log(10.0), -10.0
"""Where SigLIP's own training starts (Zhai et al. 2023, section 3.2)."""


class SiglipEncoder(TowerEncoder):
    """A frame is pooled by attention, a sentence read at the last position.

    Patches have no place in the joint space, so it gives none.
    """

    family = "siglip"
    abilities = Abilities(words=True)
    resize = "stretch"
    config: SiglipConfig
    vision: SiglipVisionTower
    text: SiglipTextTower

    def __init__(self, config: SiglipConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.image_size = config.vision.image_size
        self.context_length = config.text.context_length
        self.vision = SiglipVisionTower(config.vision, config.pixel_mean, config.pixel_std)
        self.text = SiglipTextTower(config.text, config.dim)
        self.logit_scale = nn.Parameter(torch.tensor(LOGIT_SCALE))
        self.logit_bias = nn.Parameter(torch.tensor(LOGIT_BIAS))
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
        features = self.text(ids, mask)
        if not words:
            return TextFeatures(sentence=features[:, -1])
        return TextFeatures(features[:, -1], words=features[:, : ids.shape[1]], words_mask=mask)
