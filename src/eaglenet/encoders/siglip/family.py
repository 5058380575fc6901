"""SigLIP's entry in the table of towers: which files are of one, and how they are read."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.encoders.model_files import model_type, open_clip_trunk
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.siglip.config import SiglipConfig
from eaglenet.encoders.siglip.encoder import SiglipEncoder
from eaglenet.encoders.siglip.files import read_siglip_folder, read_siglip_tokenizer


def is_siglip(location: Path) -> bool:
    """Of transformers, fixed-resolution models say ``siglip``, both versions, NaFlex ``siglip2``;
    of open_clip, the trunk says it."""
    return model_type(location) in ("siglip", "siglip2") or "siglip" in open_clip_trunk(location)


def _load(location: Path, *, dtype: torch.dtype, tokenizer: str | Path | None) -> Pretrained:
    encoder = read_siglip_folder(location, dtype=dtype)
    source = Path(tokenizer) if tokenizer is not None else location
    return Pretrained(encoder, read_siglip_tokenizer(source, encoder.config))


ENCODERS.add(
    "siglip",
    EncoderSpec(
        name="siglip",
        title="SigLIP and SigLIP 2 of fixed resolution",
        config_class=SiglipConfig,
        build=SiglipEncoder,
        recognises=is_siglip,
        load=_load,
    ),
)
