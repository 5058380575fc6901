"""CLIP's entry in the table of towers: which files are of one, and how they are read."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.config import ClipConfig
from eaglenet.encoders.model_files import model_type
from eaglenet.encoders.pretrained import load_clip
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained


def is_clip(location: Path) -> bool:
    """An OpenAI file, or a folder whose ``config.json`` is of a CLIP, a MetaCLIP 2 or no type."""
    if location.is_file():
        return not location.name.lower().startswith("pe-core")
    return model_type(location) in ("clip", "metaclip_2", "")


def _load(location: Path, *, dtype: torch.dtype, tokenizer: str | Path | None) -> Pretrained:
    return Pretrained(*load_clip(location, dtype=dtype, tokenizer=tokenizer))


ENCODERS.add(
    "clip",
    EncoderSpec(
        name="clip",
        title="CLIP (OpenAI, LAION, MetaCLIP, MetaCLIP 2)",
        config_class=ClipConfig,
        build=ClipEncoder,
        recognises=is_clip,
        load=_load,
    ),
)
