"""Manifest of a store: the model and settings it was made with, and the layout of features."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from eaglenet.core.errors import ConfigError, StoreError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.core.settings import from_plain
from eaglenet.core.splitting import Splitting
from eaglenet.store.layout import Layout

MAX_DIM = 65_536
FRAME_STEP = "frame_step"


def cannot_mix(location: str, reasons: Sequence[str]) -> StoreError:
    """The error for clips that were made in another way than those of a store."""
    return StoreError(
        f"{location} was made with {'; '.join(reasons)}: they cannot be mixed. Index with the "
        "store's own settings, or use another --store (--like takes files and settings of another "
        "store)"
    )


@dataclass(frozen=True)
class Manifest:
    """Model, settings and roots of a store. A store never mixes two models or settings.

    model: what ``eaglenet.load`` takes. identity: hash of the model's weights. dim: size of the
    coarse vectors. frame_spec, splitting: how frames and clips are taken. roots: folders and files
    given to the indexer, absolute.
    """

    model: str
    identity: str
    method: str
    dim: int
    layout: Layout
    frame_spec: FrameSpec = field(default_factory=FrameSpec)
    splitting: Splitting = field(default_factory=Splitting)
    roots: tuple[str, ...] = ()

    def differences(self, other: Manifest) -> list[str]:
        """Reasons why clips made with ``other`` cannot be added to this store."""
        reasons = []
        if self.identity != other.identity:
            now = "different weights" if other.model == self.model else f"now {other.model!r}"
            reasons.append(f"model {self.model!r} ({now})")
        for (name, mine), (_, theirs) in zip(self._settings(), other._settings(), strict=True):
            if mine != theirs:
                reasons.append(f"{name} {mine} (now {theirs})")
        return reasons

    def _settings(self) -> Iterator[tuple[str, Any]]:
        """Settings that must be the same for all clips of a store.

        The step between frames need not be: frames a little apart are as good, and a store keeps
        its own.
        """
        for title, settings in (("frames", self.frame_spec), ("clips", self.splitting)):
            for name, value in asdict(settings).items():
                if name != FRAME_STEP:
                    yield f"{title} {name}", value

    def require_same(self, other: Manifest, location: str) -> None:
        """Refuse to mix features that cannot be compared."""
        reasons = self.differences(other)
        if reasons:
            raise cannot_mix(location, reasons)

    def with_roots(self, roots: Sequence[str]) -> Manifest:
        return replace(self, roots=tuple(dict.fromkeys([*self.roots, *roots])))

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "layout": self.layout.to_json()}, sort_keys=True)

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
        try:
            spec = from_plain(FrameSpec, values["frame_spec"], where="frame_spec")
            splitting = from_plain(Splitting, values["splitting"], where="splitting")
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not 0 <= splitting.frame_step * spec.num_frames <= splitting.clip_seconds + 1e-6:
            raise ValueError(f"{FRAME_STEP} is {splitting.frame_step!r:.60}")
        layout = Layout.from_json(values["layout"])
        return cls(texts[0], texts[1], texts[2], dim, layout, spec, splitting, tuple(roots))
