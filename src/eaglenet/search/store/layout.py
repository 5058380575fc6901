"""How the features of one clip lie in bytes: one fixed-size record, described in the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import StoreError
from eaglenet.core.types import VideoFeatures

Records = NDArray[np.void]
"""Structured array ``[clips]``; the field names are those of ``VideoFeatures``, plus ``seconds``
and ``prepared.*`` (what the exact scorer computes from the video alone)."""

FEATURE_FIELDS = ("frames", "mask", "patches", "video", "tokens", "tokens_mask")
PREPARED = "prepared."
CODES = ("<f2", "<f4", "|b1", "<i4")
MAX_AXIS, MAX_RECORD = 1_000_000, 2**30


@dataclass(frozen=True)
class StoredClips:
    """Features of clips as they come out of a store."""

    features: VideoFeatures
    seconds: Float[Tensor, "clips frames"]
    """In the file, not in the clip."""
    prepared: Mapping[str, Tensor]

    def __getitem__(self, rows: list[int]) -> StoredClips:
        prepared = {name: value[rows] for name, value in self.prepared.items()}
        return StoredClips(self.features[rows], self.seconds[rows], prepared)


@dataclass(frozen=True)
class FeatureLayout:
    """The record of a clip. Features are kept in half precision, times in single."""

    dtype: np.dtype[np.void]

    @property
    def num_frames(self) -> int:
        return int(self.dtype["frames"].shape[0])

    @property
    def dim(self) -> int:
        return int(self.dtype["frames"].shape[1])

    @property
    def has_prepared(self) -> bool:
        """Whether records hold what the exact scorer computes of a clip alone."""
        return any(name.startswith(PREPARED) for name in self.dtype.names or ())

    @classmethod
    def of(
        cls, features: VideoFeatures, prepared: Mapping[str, Tensor] | None = None
    ) -> FeatureLayout:
        """The layout that fits these features (their first axis is clips and does not matter)."""
        fields: list[tuple[str, str, tuple[int, ...]]] = []
        for name in FEATURE_FIELDS:
            value = getattr(features, name)
            if value is not None:
                fields.append((name, _code(value), tuple(value.shape[1:])))
        fields.append(("seconds", "<f4", (features.frames.shape[1],)))
        for name, value in (prepared or {}).items():
            fields.append((PREPARED + name, _code(value), tuple(value.shape[1:])))
        return cls(np.dtype(fields))

    @classmethod
    def from_json(cls, fields: Sequence[Sequence[Any]]) -> FeatureLayout:
        parts = []
        for name, code, shape in fields:
            is_known = name in (*FEATURE_FIELDS, "seconds") or str(name).startswith(PREPARED)
            if not isinstance(name, str) or not is_known or code not in CODES:
                raise ValueError(f"layout names {name!r:.60} of type {code!r:.60}")
            if not all(type(size) is int and 1 <= size <= MAX_AXIS for size in shape):
                raise ValueError(f"layout gives {name!r:.60} the shape {shape!r:.60}")
            parts.append((name, code, tuple(shape)))
        dtype = np.dtype(parts)
        if not {"frames", "mask", "seconds"} <= set(dtype.names or ()):
            raise ValueError("layout has no frames, mask or seconds")
        if len(dtype["frames"].shape) != 2 or dtype.itemsize > MAX_RECORD:
            raise ValueError("layout is of no clip")
        return cls(dtype)

    def to_json(self) -> list[list[Any]]:
        names = self.dtype.names or ()
        return [[name, self.dtype[name].base.str, list(self.dtype[name].shape)] for name in names]

    def pack(
        self,
        features: VideoFeatures,
        seconds: Tensor,
        prepared: Mapping[str, Tensor] | None = None,
    ) -> Records:
        """Records of encoded clips; ``seconds`` is ``[clips, frames]``."""
        records: Records = np.zeros(len(features), self.dtype)
        for name in self.dtype.names or ():
            if name == "seconds":
                value = seconds
            elif name.startswith(PREPARED):
                value = (prepared or {})[name.removeprefix(PREPARED)]
            else:
                value = getattr(features, name)
            if tuple(value.shape[1:]) != self.dtype[name].shape:
                raise StoreError(
                    f"the model gave {name} of shape {tuple(value.shape[1:])}, the store holds "
                    f"{self.dtype[name].shape}; index into a new store"
                )
            records[name] = value.detach().cpu().numpy()
        return records

    def unpack(self, records: Records, device: torch.device | str = "cpu") -> StoredClips:
        """What was packed, in single precision."""
        tensors: dict[str, Tensor] = {}
        for name in self.dtype.names or ():
            tensor = torch.from_numpy(np.array(records[name], order="C")).to(device)
            tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
        prepared = {
            name.removeprefix(PREPARED): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(PREPARED)
        }
        seconds = tensors.pop("seconds")
        features = VideoFeatures(**tensors)  # type: ignore[arg-type]
        return StoredClips(features, seconds, prepared)


def _code(value: Tensor) -> str:
    """Numpy type code a tensor is stored with."""
    if value.dtype == torch.bool:
        return "|b1"
    return "<f2" if value.is_floating_point() else "<i4"
