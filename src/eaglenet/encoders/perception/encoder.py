"""PE-Core as an encoder of texts and videos."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.config import CLIP_LOGIT_SCALE
from eaglenet.encoders.model_files import open_clip_trunk
from eaglenet.encoders.perception.config import PerceptionConfig
from eaglenet.encoders.perception.vision import PerceptionVisionTower
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.text import TextTower, take_positions
from eaglenet.types import Abilities, TextFeatures

PREFIX = "pe-core"


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


def is_perception(place: Path) -> bool:
    """Meta's ``PE-Core-*.pt``, a folder with one, or a folder of open_clip with such a trunk."""
    if place.is_file():
        return place.name.lower().startswith(PREFIX)
    trunk = open_clip_trunk(place)
    return trunk.startswith("vit_pe_core") if trunk else any(place.glob("PE-Core*.pt"))


def _load(place: Path, *, dtype: torch.dtype, tokenizer: str | Path | None) -> Pretrained:
    from eaglenet.encoders.perception.files import read_perception
    from eaglenet.encoders.pretrained import clip_tokenizer_for

    encoder = read_perception(place, dtype=dtype)
    return Pretrained(encoder, clip_tokenizer_for(place, tokenizer))


ENCODERS.add(
    "perception",
    EncoderSpec(
        name="perception",
        title="PE-Core (Perception Encoder)",
        config_class=PerceptionConfig,
        build=PerceptionEncoder,
        recognises=is_perception,
        load=_load,
    ),
)
