"""Towers and what reads their files; every family is in ``ENCODERS``."""

from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained

__all__ = ["ENCODERS", "EncoderSpec", "Pretrained"]
