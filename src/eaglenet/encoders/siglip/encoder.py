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
        vision = SiglipVisionTower(config.vision, config.pixel_mean, config.pixel_std)
        text = SiglipTextTower(config.text, config.dim)
        self.hold_towers(config, vision, text, logit_scale=LOGIT_SCALE, seed=seed)
        self.logit_bias = nn.Parameter(torch.tensor(LOGIT_BIAS))

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
