"""The shapes of models that are known by name."""

from __future__ import annotations

from eaglenet.encoders.catalogue import HUB_IDS, ModelCard
from eaglenet.encoders.compact.config import CompactConfig, CompactTextConfig
from eaglenet.encoders.config import CLIP_SHAPES, ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.perception.config import PERCEPTION_SHAPES
from eaglenet.encoders.siglip.config import SIGLIP_SHAPES
from eaglenet.types import PlainConfig

SHAPES: dict[str, PlainConfig] = {
    "small": CompactConfig(text=CompactTextConfig(vocabulary_size=27_626)),
    **{HUB_IDS[name]: config for name, config in CLIP_SHAPES.items()},
    "facebook/metaclip-2-worldwide-huge-quickgelu": ClipConfig(
        dim=1024,
        vision=VisionConfig(patch_size=14, width=1280, layers=32, heads=16, mlp_width=5120),
        text=TextConfig(901_629, width=1024, layers=24, heads=16, mlp_width=4096, end_token=2),
    ),
    **SIGLIP_SHAPES,
    **{f"timm/{name}": config for name, config in PERCEPTION_SHAPES.items()},
}
"""By hub id, or the name of a model of the package."""


def shape_of(card: ModelCard) -> PlainConfig | None:
    """The configuration of a model; None where it is not known before its files are read."""
    return SHAPES.get(card.name)
