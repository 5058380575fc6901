"""Weights of a model folder as numpy arrays, and the identity of a model. Does not import torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import CheckpointError
from eaglenet.models.files import SCALES

Array = NDArray[np.float32]
SAMPLED_VALUES = 4096
"""Values per weight that a model's identity is computed from."""


@dataclass(frozen=True)
class Weight:
    """One weight as stored; a matrix in int8 has one scale per row."""

    values: NDArray[Any]
    scales: Array | None = None

    def full(self) -> Array:
        """All values in float32."""
        values: Array = self.values.astype(np.float32)
        return values if self.scales is None else values * self.scales[:, None]

    def rows(self, numbers: NDArray[np.int64]) -> Array:
        """Rows of a matrix; only these are converted."""
        values: Array = self.values[numbers].astype(np.float32)
        return values if self.scales is None else values * self.scales[numbers, None]

    def sample(self) -> Array:
        """At least ``SAMPLED_VALUES`` values, evenly spaced; of a small weight all of them."""
        step = max(1, self.values.size // SAMPLED_VALUES)
        values: Array = self.values.reshape(-1)[::step].astype(np.float32)
        if self.scales is not None:
            values *= self.scales[np.arange(0, self.values.size, step) // self.values.shape[1]]
        return values


class Weights:
    """Weights of a safetensors file by name, read one at a time."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            open_file: Any = safe_open
            self._file = open_file(str(path), "numpy")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
        self._stored: set[str] = set(self._file.keys())

    @property
    def names(self) -> list[str]:
        """Names in alphabetical order."""
        return sorted(name for name in self._stored if not name.endswith(SCALES))

    def read(self, name: str) -> Weight:
        if name not in self._stored:
            raise CheckpointError(f"{self.path}: {name} is missing; it belongs to another model")
        values: NDArray[Any] = self._file.get_tensor(name)
        if name + SCALES not in self._stored:
            return Weight(values)
        scales: Array = self._file.get_tensor(name + SCALES).astype(np.float32)
        if values.ndim != 2 or scales.shape != (len(values), 1):
            raise CheckpointError(
                f"{self.path}: {name} is {list(values.shape)}, its scales {list(scales.shape)}; "
                "expected one for each row"
            )
        return Weight(values, scales[:, 0])

    def __getitem__(self, name: str) -> Array:
        """One weight in float32."""
        return self.read(name).full()


def hash_model(
    method: str, config: Any, samples: Iterable[tuple[str, tuple[int, ...], Array]]
) -> str:
    """Identity of a model: hash of its method, its configuration and its weights.

    Only settings that differ from their defaults count, so that a new option in a later version
    does not change the identity. Of a large weight, evenly spaced values count: training changes
    all values, and opening a store must not read gigabytes.

    Args:
        config: a dataclass; anything else counts as no configuration.
        samples: name, shape and sampled values of each weight, in alphabetical order.
    """
    digest = hashlib.sha256(method.encode())
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        digest.update(json.dumps(_non_default_values(config), sort_keys=True, default=str).encode())
    for name, shape, values in samples:
        digest.update(f"{name}{shape}".encode())
        digest.update(np.ascontiguousarray(values, np.float32).tobytes())
    return digest.hexdigest()[:32]


def _non_default_values(config: Any) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    return {
        spec.name: values[spec.name]
        for spec in dataclasses.fields(config)
        if spec.default is dataclasses.MISSING or getattr(config, spec.name) != spec.default
    }
