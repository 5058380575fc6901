"""Towers and what reads their files. Importing this registers every family in ``ENCODERS``."""

from eaglenet.encoders import clip, experts, features
from eaglenet.encoders.perception import encoder as perception
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.siglip import encoder as siglip

__all__ = [
    "ENCODERS",
    "EncoderSpec",
    "Pretrained",
    "clip",
    "experts",
    "features",
    "perception",
    "siglip",
]
