"""CLIP's entry in the table of towers: which files are of one, and how they are read."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_open_clip import is_open_clip
from eaglenet.encoders.config import ClipConfig
from eaglenet.encoders.model_files import model_type, open_clip_trunk
from eaglenet.encoders.pretrained import load_clip
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained


def is_clip(location: Path) -> bool:
    """An OpenAI file, or a folder whose ``config.json`` is of a CLIP, a MetaCLIP 2 or no type.

    Or one of open_clip with its own towers; where there is a ``config.json`` of timm besides, it
    has no type.
    """
    if location.is_file():
        return not location.name.lower().startswith("pe-core")
    kind = model_type(location)
    if kind in ("clip", "metaclip_2"):
        return True
    return is_open_clip(location) or (kind == "" and not open_clip_trunk(location))


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
