"""The compact towers as an encoder of texts and videos."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.compact.config import CompactConfig
from eaglenet.encoders.compact.text import CompactText, mean_of_words
from eaglenet.encoders.compact.vision import CompactVision
from eaglenet.types import Abilities, TextFeatures

LOGIT_SCALE = 3.0
"""Natural logarithm of the factor of the cosines that a new pair of towers starts with."""


class CompactEncoder(TowerEncoder):
    """A frame is the mean of its places, a sentence the mean of its words.

    A new encoder is random (``seed``); ``eaglenet train small`` makes one that knows the world.
    """

    family = "compact"
    abilities = Abilities(words=True, patches=True)
    resize = "stretch"
    config: CompactConfig
    vision: CompactVision
    text: CompactText

    def __init__(self, config: CompactConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision = CompactVision(config.vision, config.dim, config.pixel_mean, config.pixel_std)
        text = CompactText(config.text, config.dim)
        self.hold_towers(config, vision, text, logit_scale=LOGIT_SCALE, seed=seed)

    def encode_frames(
        self,
        frames: Shaped[Tensor, "videos frames 3 height width"],
        mask: Bool[Tensor, "videos frames"] | None = None,
        *,
        patches: bool = False,
    ) -> Float[Tensor, "videos frames tokens dim"]:
        """Every frame is a picture by itself, so a CPU leaves padding out; it becomes zeros."""
        if mask is None or mask.is_cuda or bool(mask.all()):
            return super().encode_frames(frames, mask, patches=patches)
        real = super().encode_frames(frames[mask][:, None], patches=patches)[:, 0]
        result = real.new_zeros(*mask.shape, *real.shape[1:])
        result[mask] = real
        return result

    def read_tokens(
        self,
        ids: Int[Tensor, "texts words"],
        mask: Bool[Tensor, "texts words"],
        *,
        words: bool,
    ) -> TextFeatures:
        if not words:
            # Columns that are padding in every text change nothing and cost as much as words.
            longest = int(mask.any(dim=0).sum())
            ids, mask = ids[:, :longest], mask[:, :longest]
        vectors = self.text(ids, mask)
        sentence = mean_of_words(vectors, mask)
        if not words:
            return TextFeatures(sentence=sentence)
        return TextFeatures(sentence=sentence, words=vectors, words_mask=mask)
