"""What a store was made with. A store never mixes two models or two ways of sampling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import ConfigError, StoreError
from eaglenet.core.settings import from_plain
from eaglenet.core.types import FrameSpec
from eaglenet.search.store.checks import file_check
from eaglenet.search.store.hub_bank import HubNote
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.search.store.splitting import Splitting as Splitting

FORMAT = 2
"""1: without a step between frames, as all stores were made before there was one."""
FRAME_STEP = "frame_step"
CHECK = "check"
MAX_DIM = 65_536


def not_to_mix(location: str, differences: Sequence[str]) -> StoreError:
    """The error of who would add clips that were made in another way."""
    return StoreError(
        f"{location} was made with {'; '.join(differences)}: the two do not mix. Index with the "
        "settings of the store, or give another --store for the new ones (--like takes files and "
        "settings of an old one)"
    )


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``."""

    model: str
    """What ``eaglenet.load`` takes: a name, a folder or a hub id."""
    identity: str
    method: str
    dim: int
    frame_spec: FrameSpec
    splitting: Splitting
    layout: FeatureLayout
    roots: tuple[str, ...] = ()
    """Folders and files given to the indexer, absolute."""
    hubness: HubNote | None = None
    """The bank of sentences that levels clips; None: they are not levelled."""

    def differences(self, other: Manifest) -> list[str]:
        """What keeps the clips of ``other`` out of this store, in words."""
        found = []
        if self.identity != other.identity:
            now = "has other weights now" if other.model == self.model else f"now {other.model!r}"
            found.append(f"model {self.model!r} ({now})")
        for title, mine, theirs in (
            ("frames", self.frame_spec, other.frame_spec),
            ("clips", self.splitting, other.splitting),
        ):
            for key, value in asdict(mine).items():
                new = asdict(theirs)[key]
                # A store keeps its own: frames of a clip a little apart from those are as good.
                if new != value and key != FRAME_STEP:
                    found.append(f"{title} {key} {value} (now {new})")
        return found

    def require_same(self, other: Manifest, location: str) -> None:
        """Refuse to mix features that cannot be compared."""
        found = self.differences(other)
        if found:
            raise not_to_mix(location, found)

    def extended_by(self, other: Manifest) -> Manifest:
        """What this one becomes when clips as of ``other`` are added: the store's own ways stay."""
        roots = tuple(dict.fromkeys([*self.roots, *other.roots]))
        return replace(
            other, roots=roots, splitting=self.splitting, layout=self.layout, hubness=self.hubness
        )

    def to_bytes(self) -> bytes:
        """What :meth:`from_bytes` reads."""
        splitting = asdict(self.splitting)
        has_step = bool(splitting[FRAME_STEP])
        if not has_step:
            del splitting[FRAME_STEP]
        content = {
            "format": FORMAT if has_step else 1,
            "model": self.model,
            "identity": self.identity,
            "method": self.method,
            "dim": self.dim,
            "frame_spec": asdict(self.frame_spec),
            "splitting": splitting,
            "layout": self.layout.to_json(),
            "roots": list(self.roots),
        }
        if self.hubness is not None:
            content["hubness"] = asdict(self.hubness)
        content[CHECK] = _check(content)
        return (json.dumps(content, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes, name: str) -> Manifest:
        """Read a manifest; errors speak of ``name``, where it was found."""
        content = _read_json(text, name)
        version = content.get("format")
        if not isinstance(version, int):
            raise StoreError(f"{name} names no store format; it is not a store's manifest")
        if version > FORMAT:
            raise StoreError(
                f"the store of {name} was made by a newer eaglenet (store format {version}, this "
                f"one reads up to {FORMAT}); update eaglenet, or index into another store"
            )
        try:
            # Manifests that were written before there were checks have none.
            if CHECK in content and content.pop(CHECK) != _check(content):
                raise ValueError("it is not as it was written")
            texts = [content[key] for key in ("model", "identity", "method")]
            roots = content["roots"]
            if not all(isinstance(text, str) for text in (*texts, *roots)):
                raise ValueError("model, identity, method and roots should be text")
            bank = content.get("hubness")
            if not isinstance(content["dim"], int) or not 1 <= content["dim"] <= MAX_DIM:
                raise ValueError(f"dim is {content['dim']!r:.60}")
            spec = from_plain(FrameSpec, content["frame_spec"], where="frame_spec")
            splitting = from_plain(Splitting, content["splitting"], where="splitting")
            if not 0 <= splitting.frame_step * spec.num_frames <= splitting.clip_seconds + 1e-6:
                raise ValueError(f"{FRAME_STEP} is {splitting.frame_step!r:.60}")
            return cls(
                model=texts[0],
                identity=texts[1],
                method=texts[2],
                dim=content["dim"],
                frame_spec=spec,
                splitting=splitting,
                layout=FeatureLayout.from_json(content["layout"]),
                roots=tuple(roots),
                hubness=None if bank is None else from_plain(HubNote, bank, where="hubness"),
            )
        except (KeyError, TypeError, ValueError, OverflowError, ConfigError) as error:
            raise StoreError(
                f"{name} is damaged ({error!r:.300}); restore it or index into a new store"
            ) from error


def _check(content: dict[str, Any]) -> str:
    plain = {key: value for key, value in content.items() if key != CHECK}
    return file_check(json.dumps(plain, sort_keys=True).encode())


def _read_json(text: bytes, name: str) -> dict[str, Any]:
    try:
        content = untrusted.parse_json(text)
    except ValueError as error:
        raise StoreError(
            f"{name} cannot be read ({error}); restore it or index into a new store"
        ) from error
    if not isinstance(content, dict):
        raise StoreError(
            f"{name} is damaged: expected a JSON object; restore it or index into a new store"
        )
    return content
