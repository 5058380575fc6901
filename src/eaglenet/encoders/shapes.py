"""The shapes of models that are known by name."""

from __future__ import annotations

from eaglenet.encoders.catalogue import HUB_IDS, ModelCard
from eaglenet.encoders.compact.config import CompactConfig, CompactTextConfig
from eaglenet.encoders.config import CLIP_SHAPES
from eaglenet.encoders.perception.config import PERCEPTION_SHAPES
from eaglenet.encoders.siglip.config import SIGLIP_SHAPES
from eaglenet.types import PlainConfig

SHAPES: dict[str, PlainConfig] = {
    "small": CompactConfig(text=CompactTextConfig(vocabulary_size=27_626)),
    **{HUB_IDS[name]: config for name, config in CLIP_SHAPES.items()},
    **SIGLIP_SHAPES,
    **{f"timm/{name}": config for name, config in PERCEPTION_SHAPES.items()},
}
"""By hub id, or the name of a model of the package."""


def shape_of(card: ModelCard) -> PlainConfig | None:
    """The configuration of a model; None where it is not known before its files are read."""
    return SHAPES.get(card.name)
