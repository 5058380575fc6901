"""PE-Core's entry in the table of towers: which files are of one, and how they are read."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.encoders.model_files import open_clip_trunk
from eaglenet.encoders.perception.config import PerceptionConfig
from eaglenet.encoders.perception.encoder import PerceptionEncoder
from eaglenet.encoders.perception.files import read_perception
from eaglenet.encoders.pretrained import clip_tokenizer_for
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained

PREFIX = "pe-core"


def is_perception(location: Path) -> bool:
    """Meta's ``PE-Core-*.pt``, a folder with one, or a folder of open_clip with such a trunk."""
    if location.is_file():
        return location.name.lower().startswith(PREFIX)
    trunk = open_clip_trunk(location)
    return trunk.startswith("vit_pe_core") if trunk else any(location.glob("PE-Core*.pt"))


def _load(location: Path, *, dtype: torch.dtype, tokenizer: str | Path | None) -> Pretrained:
    encoder = read_perception(location, dtype=dtype)
    return Pretrained(encoder, clip_tokenizer_for(location, tokenizer))


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
