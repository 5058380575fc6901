"""Reads weights out of OpenAI's ``.pt`` files without running anything they contain.

Those files are TorchScript archives: a zip with code, a pickle of the module tree, and raw
storages. Only the tree and the storages are read, by an unpickler that can make nothing but
tensors and inert nodes.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.weight_names import clip_config, from_openai
from eaglenet.encoders.weights import deferred, is_on_demand, make_encoder, read_weight_file

STORAGE_TYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
NOT_WEIGHTS = ("input_resolution", "context_length", "vocab_size")


def load_openai_clip(path: str | Path) -> ClipEncoder:
    """Load the encoder of an OpenAI ``.pt`` file: the released archive, or a plain state dict."""
    ours = from_openai(read_openai_weights(path))
    return make_encoder(ClipEncoder, clip_config(ours), ours, Path(path))


def read_openai_weights(path: str | Path) -> dict[str, Tensor]:
    """Weights by OpenAI's names."""
    path = Path(path)
    try:
        weights = _read_any(path)
        untrusted.check_tensor_bytes(weights.values(), path)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: the archive cannot be read ({error})") from error
    return {name: value for name, value in weights.items() if name not in NOT_WEIGHTS}


def _read_any(path: Path) -> dict[str, Tensor]:
    if zipfile.is_zipfile(path):
        untrusted.check_zip(path)
        archive = zipfile.ZipFile(path)  # not closed here: weights may be read on demand
        names = archive.namelist()
        # A TorchScript archive holds code; a plain torch.save file does not.
        if any("/code/" in name for name in names):
            return _read_script(path, archive, names)
    return read_weight_file(path)


def _read_script(path: Path, archive: zipfile.ZipFile, names: list[str]) -> dict[str, Tensor]:
    tree_name = next((name for name in names if name.endswith("/data.pkl")), None)
    if tree_name is None:
        raise CheckpointError(f"{path}: a TorchScript archive without data.pkl; it is damaged")
    prefix = tree_name[: -len("data.pkl")]
    try:
        content = archive.read(tree_name)
        _check_memo(content)
        tree = _TensorUnpickler(io.BytesIO(content), archive, prefix).load()
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise CheckpointError(f"{path}: the archive cannot be read ({error})") from error
    weights: dict[str, Tensor] = {}
    _collect(tree, "", weights)
    return weights


def _check_memo(content: bytes) -> None:
    """Check the memo: a pickle may name any index, and the reader allocates up to it."""
    for operation, argument, _ in pickletools.genops(content):
        if "PUT" in operation.name and isinstance(argument, int) and argument > len(content):
            raise ValueError("its pickle uses memo indices beyond its size")


def _collect(node: Any, prefix: str, weights: dict[str, Tensor], depth: int = 0) -> None:
    if depth > untrusted.MAX_DEPTH:
        raise ValueError("its modules are nested too deeply")
    for name, value in getattr(node, "__dict__", {}).items():
        if isinstance(value, Tensor):
            weights[f"{prefix}{name}"] = value
        elif isinstance(value, _Node):
            _collect(value, f"{prefix}{name}.", weights, depth + 1)


class _Node:
    """Stands in for every scripted class: attributes and nothing else."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _TensorUnpickler(pickle.Unpickler):
    """Makes tensors, plain containers and :class:`_Node`; every other name is refused."""

    def __init__(self, file: io.BytesIO, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(file)
        self._archive = archive
        self._prefix = prefix
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Node
        if module == "torch" and name in STORAGE_TYPES:
            return STORAGE_TYPES[name]
        constructors: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) in constructors:
            return constructors[module, name]
        if module == "torch.jit._pickle":
            return _first_argument
        raise CheckpointError(
            f"the archive asks for {module}.{name}, which weights do not need; it "
            "was not run. Use a file from a source you trust"
        )

    def persistent_load(self, identifier: Any) -> Tensor:
        kind, dtype, key = identifier[:3]
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise CheckpointError(f"the archive has an unknown kind of storage {kind!r}")
        if key not in self._storages:
            member = f"{self._prefix}data/{key}"
            read = partial(_read_storage, self._archive, member, dtype)
            if is_on_demand():
                count = self._archive.getinfo(member).file_size // dtype.itemsize
                self._storages[key] = deferred(torch.empty(count, dtype=dtype, device="meta"), read)
            else:
                self._storages[key] = read()
        return self._storages[key]


def _read_storage(archive: zipfile.ZipFile, member: str, dtype: torch.dtype) -> Tensor:
    # A copy: the buffer of a zip member is read-only.
    try:
        data = bytearray(archive.read(member))
    except Exception as error:  # a damaged member can fail in any way
        raise CheckpointError(f"{member} cannot be read ({error})") from error
    return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _rebuild_tensor(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> Tensor:
    if math.prod(size) > storage.numel():
        raise CheckpointError(f"a tensor of shape {list(size)} has {storage.numel()} values only")
    return torch.as_strided(storage, size, stride, offset)


def _rebuild_parameter(data: Tensor, *_: Any) -> Tensor:
    return data


def _first_argument(value: Any, *_: Any) -> Any:
    """Type tags and typed lists carry no weights of their own."""
    return value
