"""Manifest of a store: the model and settings it was made with, and the layout of features."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eaglenet.core.errors import StoreError

CODES = ("<f2", "<f4", "|b1", "<i4")
MAX_AXIS, MAX_RECORD, MAX_DIM = 1_000_000, 2**30, 65_536


@dataclass(frozen=True)
class Layout:
    """Binary layout of the features of one clip: a fixed-size record."""

    dtype: np.dtype[np.void]

    @classmethod
    def from_json(cls, fields: Sequence[Sequence[Any]]) -> Layout:
        """Build a layout from ``[name, type code, shape]`` triples, all of them checked."""
        parts = []
        for name, code, shape in fields:
            if not isinstance(name, str) or code not in CODES:
                raise ValueError(f"field {name!r:.60} has type {code!r:.60}")
            if not all(type(size) is int and 1 <= size <= MAX_AXIS for size in shape):
                raise ValueError(f"field {name!r:.60} has shape {shape!r:.60}")
            parts.append((name, code, tuple(shape)))
        dtype = np.dtype(parts)
        if not 0 < dtype.itemsize <= MAX_RECORD:
            raise ValueError(f"a clip has {dtype.itemsize} bytes of features")
        return cls(dtype)

    def to_json(self) -> list[list[Any]]:
        names = self.dtype.names or ()
        return [[name, self.dtype[name].base.str, list(self.dtype[name].shape)] for name in names]


@dataclass(frozen=True)
class Manifest:
    """Model, settings and roots of a store. A store never mixes two models or settings.

    model: what ``eaglenet.load`` takes. identity: hash of the model's weights. dim: size of the
    coarse vectors. settings: how frames and clips are taken; plain JSON values. roots: folders and
    files given to the indexer, absolute.
    """

    model: str
    identity: str
    method: str
    dim: int
    layout: Layout
    settings: Mapping[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()

    def differences(self, other: Manifest) -> list[str]:
        """Reasons why clips made with ``other`` cannot be added to this store."""
        reasons = []
        if self.identity != other.identity:
            now = "different weights" if other.model == self.model else f"now {other.model!r}"
            reasons.append(f"model {self.model!r} ({now})")
        names = sorted({*self.settings, *other.settings})
        for name in names:
            mine, theirs = self.settings.get(name), other.settings.get(name)
            if mine != theirs:
                reasons.append(f"{name} {mine!r} (now {theirs!r})")
        if not reasons and (self.dim, self.layout) != (other.dim, other.layout):
            reasons.append("another layout of features")
        return reasons

    def require_same(self, other: Manifest, location: str) -> None:
        """Refuse to mix features that cannot be compared."""
        reasons = self.differences(other)
        if reasons:
            raise StoreError(
                f"{location} was made with {'; '.join(reasons)}: they cannot be mixed. Index with "
                "the store's own settings, or use another --store"
            )

    def with_roots(self, roots: Sequence[str]) -> Manifest:
        return replace(self, roots=tuple(dict.fromkeys([*self.roots, *roots])))

    def to_json(self) -> str:
        values = {**vars(self), "layout": self.layout.to_json(), "settings": dict(self.settings)}
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read a manifest; raises ``ValueError``, ``KeyError`` or ``TypeError`` if it is none."""
        values = json.loads(text)
        texts = [values[name] for name in ("model", "identity", "method")]
        roots, dim = values["roots"], values["dim"]
        if not all(isinstance(text, str) for text in (*texts, *roots)):
            raise ValueError("model, identity, method and roots must be text")
        if type(dim) is not int or not 1 <= dim <= MAX_DIM:
            raise ValueError(f"dim is {dim!r:.60}")
        if not isinstance(values["settings"], dict):
            raise ValueError("settings must be an object")
        layout = Layout.from_json(values["layout"])
        return cls(texts[0], texts[1], texts[2], dim, layout, values["settings"], tuple(roots))
