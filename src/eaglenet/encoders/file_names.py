"""Names of the files in which makers publish weights. Does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaglenet.core.errors import CheckpointError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def shard_names(index: dict[str, Any], path: Path) -> list[str]:
    """Files that an index of weights names; plain names beside it and no others."""
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{path}: weight_map should be a table of names and files")
    shards = sorted(set(names.values()))
    for name in shards:
        if name != Path(name).name or not name or "\0" in name:
            raise CheckpointError(f"{path}: names {name!r:.60}, which is not a file beside it")
    return shards
