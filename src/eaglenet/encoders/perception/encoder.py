"""PE-Core as an encoder of texts and videos."""

from __future__ import annotations

from jaxtyping import Bool, Int
from torch import Tensor

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.config import CLIP_LOGIT_SCALE
from eaglenet.encoders.perception.config import PerceptionConfig
from eaglenet.encoders.perception.vision import PerceptionVisionTower
from eaglenet.encoders.text import TextTower
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
        vision = PerceptionVisionTower(
            config.vision, config.dim, config.pixel_mean, config.pixel_std
        )
        text = TextTower(config.text, config.dim)
        self.hold_towers(config, vision, text, logit_scale=CLIP_LOGIT_SCALE, seed=seed)

    def read_tokens(
        self,
        ids: Int[Tensor, "texts words"],
        mask: Bool[Tensor, "texts words"],
        *,
        words: bool,
    ) -> TextFeatures:
        return self.text.read(ids, mask, words=words)
