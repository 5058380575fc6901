"""Manifest of a store: its model and settings, and the layout of features.

A clip has one record of features of fixed size. Its fields are those of
:class:`eaglenet.core.types.VideoFeatures` that have one row per clip, then ``seconds`` (the time of
each frame in the file) and ``prepared.*`` (values that the exact scorer computes from the clip).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import ConfigError, StoreError
from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.core.settings import from_plain
from eaglenet.core.untrusted import parse_json
from eaglenet.store.records import Features

if TYPE_CHECKING:
    from torch import Tensor

    from eaglenet.core.types import VideoFeatures

MAX_DIM = 65_536
FRAME_STEP = "frame_step"


def cannot_mix(location: str, reasons: Sequence[str]) -> StoreError:
    """Return the error for clips whose model or settings differ from those of a store."""
    return StoreError(
        f"{location} was made with {'; '.join(reasons)}: they cannot be mixed. Index with the "
        "store's own settings, or use another store; `eaglenet index --like` takes the files and "
        "settings of another store"
    )


@dataclass(frozen=True)
class Manifest:
    """Model, settings and roots of a store. A store never mixes two models or settings.

    model: what ``eaglenet.load`` takes. identity: hash of the model's weights. dim: size of the
    coarse vectors. frame_spec, splitting: sampling of frames and clips. roots: indexed folders and
    files, as absolute paths.
    """

    model: str
    identity: str
    method: str
    dim: int
    layout: Layout
    frame_spec: FrameSpec = field(default_factory=FrameSpec)
    splitting: Splitting = field(default_factory=Splitting)
    roots: tuple[str, ...] = ()

    @property
    def moment_seconds(self) -> float:
        """Seconds to which moments are exact: between two frames, or the length of a clip."""
        splitting, num_frames = self.splitting, self.layout.num_frames
        if num_frames == 1:
            return splitting.clip_seconds
        return splitting.frame_step or splitting.clip_seconds / num_frames

    def differences(self, other: Manifest) -> list[str]:
        """Return the reasons why clips made with ``other`` cannot be added to this store."""
        reasons = []
        if self.identity != other.identity:
            now = "different weights" if other.model == self.model else f"now {other.model!r}"
            reasons.append(f"model {self.model!r} ({now})")
        for (name, mine), (_, theirs) in zip(self._settings(), other._settings(), strict=True):
            if mine != theirs:
                reasons.append(f"{name} {mine} (now {theirs})")
        return reasons

    def _settings(self) -> Iterator[tuple[str, Any]]:
        """Yield the settings that must be the same for all clips of a store.

        The step between frames may differ, because it hardly changes features; a store keeps its
        own.
        """
        for title, settings in (("frames", self.frame_spec), ("clips", self.splitting)):
            for name, value in asdict(settings).items():
                if name != FRAME_STEP:
                    yield f"{title} {name}", value

    def require_same(self, other: Manifest, location: str) -> None:
        """Raise ``StoreError`` if features of the two cannot be mixed."""
        reasons = self.differences(other)
        if reasons:
            raise cannot_mix(location, reasons)

    def with_roots(self, roots: Sequence[str]) -> Manifest:
        return replace(self, roots=tuple(dict.fromkeys([*self.roots, *roots])))

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "layout": self.layout.to_json()}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read a manifest; raise ``ValueError``, ``KeyError`` or ``TypeError`` if it is invalid."""
        values = parse_json(text)
        texts = [values[name] for name in ("model", "identity", "method")]
        roots, dim = values["roots"], values["dim"]
        if not all(isinstance(text, str) for text in (*texts, *roots)):
            raise ValueError("model, identity, method and roots must be text")
        if type(dim) is not int or not 1 <= dim <= MAX_DIM:
            raise ValueError(f"dim is {dim!r:.60}")
        try:
            spec = from_plain(FrameSpec, values["frame_spec"], where="frame_spec")
            splitting = from_plain(Splitting, values["splitting"], where="splitting")
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not 0 <= splitting.frame_step * spec.num_frames <= splitting.clip_seconds + 1e-6:
            raise ValueError(f"{FRAME_STEP} is {splitting.frame_step!r:.60}")
        layout = Layout.from_json(values["layout"])
        return cls(texts[0], texts[1], texts[2], dim, layout, spec, splitting, tuple(roots))


CODES = ("<f2", "<f4", "|b1", "<i4")
MAX_AXIS, MAX_RECORD = 1_000_000, 2**30
FEATURE_FIELDS = ("frames", "mask", "patches", "video", "tokens", "tokens_mask")
SECONDS = "seconds"
PREPARED = "prepared."

Arrays = Mapping[str, NDArray[Any]]
"""Features of clips by field; the first axis is clips."""


@dataclass(frozen=True)
class Layout:
    """Fields of a record. Features are stored in half precision, times in single."""

    dtype: np.dtype[np.void]

    @property
    def num_frames(self) -> int:
        return int(self.dtype["frames"].shape[0])

    @property
    def has_prepared(self) -> bool:
        """True if records contain values that the exact scorer computes from the clip."""
        return any(name.startswith(PREPARED) for name in self.dtype.names or ())

    @classmethod
    def of(cls, arrays: Arrays) -> Layout:
        """Return the layout of these arrays; the first axis is clips."""
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
        """Return the records of encoded clips."""
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
        """Return the arrays of records, in single precision; inverse of :meth:`pack`."""
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
    features: Any, seconds: Any, prepared_values: Mapping[str, Any] | None = None
) -> dict[str, NDArray[Any]]:
    """Return ``VideoFeatures`` of tensors or arrays as NumPy arrays by field.

    ``seconds``: ``[clips, frames]``. ``prepared_values``: computed from the clips by the exact
    scorer.
    """
    values = {name: getattr(features, name) for name in FEATURE_FIELDS}
    values = {name: value for name, value in values.items() if value is not None}
    values[SECONDS] = seconds
    values |= {PREPARED + name: value for name, value in (prepared_values or {}).items()}
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
    """Return features, seconds and prepared values as tensors; see :func:`feature_arrays`."""
    import torch

    from eaglenet.core.types import VideoFeatures

    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    prepared_values = {
        name.removeprefix(PREPARED): tensors.pop(name)
        for name in list(tensors)
        if name.startswith(PREPARED)
    }
    seconds = tensors.pop(SECONDS)
    return VideoFeatures(**tensors), seconds, prepared_values  # type: ignore[arg-type]
