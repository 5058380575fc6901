"""CLIP as an encoder of texts and videos."""

from __future__ import annotations

from jaxtyping import Bool, Int
from torch import Tensor

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.config import CLIP_LOGIT_SCALE, ClipConfig
from eaglenet.encoders.text import TextTower
from eaglenet.encoders.vision import VisionTower
from eaglenet.types import Abilities, TextFeatures

__all__ = ["ClipConfig", "ClipEncoder"]


class ClipEncoder(TowerEncoder):
    """A frame is its class token, a sentence its end token.

    Weights may be fp32, bf16 or fp16; training runs bf16 autocast over fp32 weights. A new encoder
    is random (``seed``); :func:`eaglenet.encoders.pretrained.load_clip` gives a trained one.
    """

    family = "clip"
    abilities = Abilities(words=True, patches=True, token_shift=True)
    config: ClipConfig
    vision: VisionTower
    text: TextTower

    def __init__(self, config: ClipConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision = VisionTower(config.vision, config.dim, config.pixel_mean, config.pixel_std)
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

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        """Shift tokens in time inside these visual blocks (from 0), and in no other."""
        self.vision.set_token_shift(blocks)
