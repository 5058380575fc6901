"""Readers of checkpoint files of official repositories; code in a file is never run."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError
from eaglenet.encoders.weights import read_torch_file

MAX_CLASSES = 1000
"""Maximum number of classes outside torch in one file; trainers store a handful."""


class Placeholder:
    """Replacement for an object that is not a weight, such as the configuration of a trainer.

    Ignores everything that a file does with it.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Placeholder:
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass


def read_released(path: str | Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint that was saved by torch or PaddlePaddle.

    Other objects in the file, such as the configuration of the trainer, are ignored.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file; pass the released checkpoint")
    try:
        content = _read(path)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: {error}; expected a state_dict saved by torch.save or paddle.save. Files of "
            "torch before 1.6 that hold other objects too are not read: save the weights alone in "
            "the official repository, with torch.save(torch.load(FILE)['state_dict'], "
            "'weights.pth')"
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if isinstance(content, dict) and any(isinstance(value, dict) for value in content.values()):
        # One state_dict per network, as in the code of HGR.
        content = {
            f"{key}.{name}": value
            for key, state in content.items()
            if isinstance(state, dict)
            for name, value in state.items()
        }
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"{path}: expected a state_dict of tensors by name")
    try:
        untrusted.check_tensor_bytes(content.values(), path)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return {name.removeprefix("module."): value for name, value in content.items()}


def _read(path: Path) -> Any:
    is_zip = zipfile.is_zipfile(path)
    if path.suffix == ".pdparams" and not is_zip:
        return _read_paddle(path)
    try:
        return read_torch_file(path)
    except ValueError:
        if not is_zip:
            raise
        return _read_with_placeholders(path)


def _read_with_placeholders(path: Path) -> Any:
    """Read a file of ``torch.save`` in which classes outside torch become placeholders."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception as error:  # A damaged file can fail in any way.
        raise ValueError(f"not a file of tensors ({type(error).__name__})") from error
    if len(names) > MAX_CLASSES:
        raise ValueError(f"it has objects of {len(names)} classes; the limit is {MAX_CLASSES}")
    with torch.serialization.safe_globals([(Placeholder, name) for name in names]):
        return read_torch_file(path)


class _PaddleReader(pickle.Unpickler):
    """Reads arrays and plain containers; all other objects become placeholders."""

    def find_class(self, module: str, name: str) -> Any:
        readers = {
            "builtins.tuple": tuple,
            "collections.OrderedDict": dict,
            "numpy.core.multiarray._reconstruct": _empty_array,
            "numpy._core.multiarray._reconstruct": _empty_array,
            "numpy.dtype": np.dtype,
            "_codecs.encode": _encode,
        }
        return readers.get(f"{module}.{name}", Placeholder)


def _empty_array(*arguments: Any) -> Any:
    """Return an array without values, which the file sets; its arguments could ask for memory."""
    return np.ndarray((0,), np.int8)


def _encode(text: str, encoding: str = "") -> bytes:
    return text.encode("latin1")


def _read_paddle(path: Path) -> Any:
    """Read a file of ``paddle.save``, in which a tensor is an array, or its name and an array."""
    try:
        with path.open("rb") as stream:
            return _tensors(_PaddleReader(stream).load())
    except Exception as error:  # A damaged file can fail in any way.
        raise ValueError(f"not a file of PaddlePaddle ({type(error).__name__})") from error


PADDLE_NAMES = "StructuredToParameterName@@"
"""Table of names that PaddlePaddle adds to a state_dict."""


def _tensors(value: Any, depth: int = 0) -> Any:
    if depth > untrusted.MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray):
        value = value[1]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value)).clone()
    if isinstance(value, dict):
        return {
            name: _tensors(item, depth + 1) for name, item in value.items() if name != PADDLE_NAMES
        }
    return value
