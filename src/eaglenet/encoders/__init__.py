"""Towers and what reads their files. Importing this registers every family in ``ENCODERS``."""

from eaglenet.encoders import clip_family, experts, feature_encoder
from eaglenet.encoders.compact import family as compact_family
from eaglenet.encoders.openclip import family as openclip_family
from eaglenet.encoders.perception import family as perception_family
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.siglip import family as siglip_family

__all__ = [
    "ENCODERS",
    "EncoderSpec",
    "Pretrained",
    "clip_family",
    "compact_family",
    "experts",
    "feature_encoder",
    "openclip_family",
    "perception_family",
    "siglip_family",
]
