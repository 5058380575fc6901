"""Files that model folders are made of: JSON, weights in one file or in shards."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from eaglenet import foreign
from eaglenet.encoders.deferred import deferred_copies, deferred_file, is_on_demand
from eaglenet.errors import CheckpointError, ModelNotFoundError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def model_type(folder: Path) -> str | None:
    """``model_type`` of a folder's ``config.json``; "" where it says none, None without a file."""
    path = folder / "config.json"
    return str(read_json(path).get("model_type", "")) if path.is_file() else None


OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def open_clip_trunk(folder: Path) -> str:
    """The timm trunk that a folder of open_clip names; "" where it is none or names none."""
    values = read_optional_json(folder / OPEN_CLIP_CONFIG) or {}
    vision = values.get("model_cfg", values).get("vision_cfg", {})
    return str(vision.get("timm_model_name", "")) if isinstance(vision, dict) else ""


def read_open_clip_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder in open_clip's layout."""
    return read_weights(folder, OPEN_CLIP_WEIGHTS)


def read_json(path: Path) -> dict[str, Any]:
    try:
        return foreign.read_object(path, foreign.MAX_VOCABULARY)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from error


def read_optional_json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def read_weights(folder: Path, names: tuple[str, ...] = WEIGHT_FILES) -> dict[str, Tensor]:
    """The weights in the first of these files that is there, all shards joined."""
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        if not name.endswith(".index.json"):
            return read_weight_file(path)
        shards = shard_names(read_json(path), path)
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise ModelNotFoundError(f"{folder}: {name} names files that do not exist: {missing}")
        return {k: v for shard in shards for k, v in read_weight_file(folder / shard).items()}
    raise ModelNotFoundError(
        f"{folder} has a configuration but no weights; looked for {', '.join(names)}"
    )


Filled = TypeVar("Filled", bound=nn.Module)


def fill(
    module: Filled, weights: Mapping[str, Tensor], location: Path, dtype: torch.dtype
) -> Filled:
    """Give a module without values these weights, in ``dtype``, and put it in eval mode."""
    for name, value in module.state_dict().items():
        if name not in weights:
            raise CheckpointError(f"{location}: no weight for {name}")
        if weights[name].shape != value.shape:
            raise CheckpointError(
                f"{location}: {name} is {list(weights[name].shape)}, config.json says "
                f"{list(value.shape)}"
            )
    module.load_state_dict({name: w.to(dtype) for name, w in weights.items()}, assign=True)
    return module.eval()


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


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The weights of a file of safetensors; on demand where that was asked for."""
    import safetensors.torch

    weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    return deferred_file(path, weights) if is_on_demand() else weights


def read_weight_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return read_safetensors(path)
        is_zip = zipfile.is_zipfile(path)
        if is_zip:
            foreign.check_zip(path)
        weights: dict[str, Tensor] = torch.load(
            path, map_location="cpu", weights_only=True, mmap=is_zip and is_on_demand()
        )
        if not isinstance(weights, dict) or not all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
        ):
            raise ValueError("expected names and tensors")
        foreign.check_tensor_bytes(weights.values(), path)
        return deferred_copies(weights) if is_on_demand() else weights
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
