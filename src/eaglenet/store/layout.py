"""Layout of features: one record of fixed size per clip, as a structured numpy array.

The fields are those of :class:`eaglenet.core.types.VideoFeatures` that have one row per clip, then
``seconds`` (the time of each frame in the file), and ``prepared.*``: what the exact scorer computes
from a clip alone. Imports no torch; :func:`video_features` does, when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError
from eaglenet.store.records import Features

if TYPE_CHECKING:
    from torch import Tensor

    from eaglenet.core.types import VideoFeatures

CODES = ("<f2", "<f4", "|b1", "<i4")
MAX_AXIS, MAX_RECORD = 1_000_000, 2**30
FEATURE_FIELDS = ("frames", "mask", "patches", "video", "tokens", "tokens_mask")
SECONDS = "seconds"
PREPARED = "prepared."

Arrays = Mapping[str, NDArray[Any]]
"""Features of clips by field; the first axis is clips."""


@dataclass(frozen=True)
class Layout:
    """Fields of a record. Features are kept in half precision, times in single."""

    dtype: np.dtype[np.void]

    @property
    def num_frames(self) -> int:
        return int(self.dtype["frames"].shape[0])

    @property
    def has_prepared(self) -> bool:
        """True if records hold what the exact scorer computes from a clip alone."""
        return any(name.startswith(PREPARED) for name in self.dtype.names or ())

    @classmethod
    def of(cls, arrays: Arrays) -> Layout:
        """Layout that fits these arrays, whatever their number of clips."""
        return cls(
            np.dtype([(name, _code(name, each), each.shape[1:]) for name, each in arrays.items()])
        )

    @classmethod
    def from_json(cls, fields: Sequence[Sequence[Any]]) -> Layout:
        """Build a layout from ``[name, type code, shape]`` triples, all of them checked."""
        parts = []
        for name, code, shape in fields:
            is_known = name in (*FEATURE_FIELDS, SECONDS) or str(name).startswith(PREPARED)
            if not isinstance(name, str) or not is_known or code not in CODES:
                raise ValueError(f"field {name!r:.60} has type {code!r:.60}")
            if not all(type(size) is int and 1 <= size <= MAX_AXIS for size in shape):
                raise ValueError(f"field {name!r:.60} has shape {shape!r:.60}")
            parts.append((name, code, tuple(shape)))
        dtype = np.dtype(parts)
        if not {"frames", "mask", SECONDS} <= set(dtype.names or ()):
            raise ValueError("a layout without frames, mask or seconds")
        if len(dtype["frames"].shape) != 2 or not 0 < dtype.itemsize <= MAX_RECORD:
            raise ValueError(f"a clip has {dtype.itemsize} bytes of features")
        return cls(dtype)

    def to_json(self) -> list[list[Any]]:
        names = self.dtype.names or ()
        return [[name, self.dtype[name].base.str, list(self.dtype[name].shape)] for name in names]

    def pack(self, arrays: Arrays) -> Features:
        """Records of encoded clips."""
        records: Features = np.zeros(len(arrays["frames"]), self.dtype)
        for name in self.dtype.names or ():
            if arrays[name].shape[1:] != self.dtype[name].shape:
                raise StoreError(
                    f"the model gave {name} of shape {arrays[name].shape[1:]}, the store has "
                    f"{self.dtype[name].shape}; index into a new store"
                )
            records[name] = arrays[name]
        return records

    def unpack(self, records: Features) -> dict[str, NDArray[Any]]:
        """Inverse of :meth:`pack`, in single precision."""
        arrays: dict[str, NDArray[Any]] = {}
        for name in self.dtype.names or ():
            is_float = self.dtype[name].base.kind == "f"
            arrays[name] = np.array(records[name], np.float32 if is_float else None, order="C")
        return arrays


def _code(name: str, array: NDArray[Any]) -> str:
    if array.dtype == bool:
        return "|b1"
    if name == SECONDS:
        return "<f4"
    return "<f2" if array.dtype.kind == "f" else "<i4"


def feature_arrays(
    features: Any, seconds: Any, prepared: Mapping[str, Any] | None = None
) -> dict[str, NDArray[Any]]:
    """Arrays by field of ``VideoFeatures``, made of tensors or arrays.

    ``seconds``: ``[clips, frames]``. ``prepared``: what the exact scorer computes from the clips.
    """
    values = {name: getattr(features, name) for name in FEATURE_FIELDS}
    values = {name: value for name, value in values.items() if value is not None}
    values[SECONDS] = seconds
    values |= {PREPARED + name: value for name, value in (prepared or {}).items()}
    return {name: _to_numpy(value) for name, value in values.items()}


def _to_numpy(value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    tensor = value.detach().cpu()
    array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return array


def video_features(
    arrays: Arrays, device: Any = "cpu"
) -> tuple[VideoFeatures, Tensor, dict[str, Tensor]]:
    """Inverse of :func:`feature_arrays`: features, seconds and prepared values as tensors."""
    import torch

    from eaglenet.core.types import VideoFeatures

    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    prepared = {
        name.removeprefix(PREPARED): tensors.pop(name)
        for name in list(tensors)
        if name.startswith(PREPARED)
    }
    seconds = tensors.pop(SECONDS)
    return VideoFeatures(**tensors), seconds, prepared  # type: ignore[arg-type]
