"""What a store was made with. A store never mixes two models or two ways of sampling."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from eaglenet.errors import StoreError
from eaglenet.methods.base import Method
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.types import FrameSpec

FORMAT = 1
NAME = "manifest.json"

SAMPLED_VALUES = 4096
"""Values of each tensor that enter a model's identity; smaller tensors enter whole."""


def model_identity(method: Method) -> str:
    """Hash of the method's name, its configuration and its weights.

    Of the configuration only what differs from the defaults counts: an option that a later version
    adds must not make every store refuse its own model.
    Of a large tensor ``SAMPLED_VALUES`` evenly spaced values are taken: training moves them all,
    and opening a store must not read gigabytes.
    """
    digest = hashlib.sha256(method.name.encode())
    config = getattr(method, "config", None)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        digest.update(json.dumps(_changed(config), sort_keys=True, default=str).encode())
    for name, tensor in sorted(method.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLED_VALUES)
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        # Single precision: the same weights kept in half precision are another model.
        digest.update(flat[::step].to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _changed(config: Any) -> dict[str, Any]:
    """The fields of a configuration that are not at their default."""
    values = asdict(config)
    return {
        spec.name: values[spec.name]
        for spec in dataclasses.fields(config)
        if spec.default is dataclasses.MISSING or getattr(config, spec.name) != spec.default
    }


@dataclass(frozen=True)
class Splitting:
    """How long videos are cut into clips."""

    clip_seconds: float = 10.0
    overlap: float = 2.0
    shots: bool = False


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

    def differences(self, other: Manifest) -> list[str]:
        """What keeps the clips of ``other`` out of this store, in words."""
        found = []
        if self.identity != other.identity:
            found.append(f"model {self.model!r} (now {other.model!r})")
        for title, mine, theirs in (
            ("frames", self.frame_spec, other.frame_spec),
            ("clips", self.splitting, other.splitting),
        ):
            for key, value in asdict(mine).items():
                new = asdict(theirs)[key]
                if new != value:
                    found.append(f"{title} {key} {value} (now {new})")
        return found

    def require_same(self, other: Manifest, folder: Path) -> None:
        """Refuse to mix features that cannot be compared."""
        found = self.differences(other)
        if found:
            raise StoreError(
                f"{folder} was made with {'; '.join(found)}: the two do not mix. Index with the "
                "settings of the store, or give another --store for the new ones"
            )

    def write(self, folder: Path) -> None:
        """Replace the file in one step."""
        content = {
            "format": FORMAT,
            "model": self.model,
            "identity": self.identity,
            "method": self.method,
            "dim": self.dim,
            "frame_spec": asdict(self.frame_spec),
            "splitting": asdict(self.splitting),
            "layout": self.layout.to_json(),
            "roots": list(self.roots),
        }
        write_atomically(folder / NAME, json.dumps(content, indent=2).encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        content = _read_json(folder)
        version = content.get("format")
        if not isinstance(version, int):
            raise StoreError(f"{folder / NAME} names no store format; it is not a store's manifest")
        if version > FORMAT:
            raise StoreError(
                f"{folder} was made by a newer eaglenet (store format {version}, this one reads "
                f"up to {FORMAT}); update eaglenet, or index into another store"
            )
        try:
            return cls(
                model=content["model"],
                identity=content["identity"],
                method=content["method"],
                dim=content["dim"],
                frame_spec=FrameSpec(**content["frame_spec"]),
                splitting=Splitting(**content["splitting"]),
                layout=FeatureLayout.from_json(content["layout"]),
                roots=tuple(content["roots"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{folder / NAME} is damaged ({error!r}); restore it or index into a new store"
            ) from error


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / NAME).read_text("utf-8"))
    except FileNotFoundError:
        raise StoreError(
            f"no store at {folder}; make one with: eaglenet index PATH --store {folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder / NAME} cannot be read ({error}); restore it or index into a new store"
        ) from error
    if not isinstance(content, dict):
        raise StoreError(
            f"{folder / NAME} is damaged: expected a JSON object; restore it or index into a new "
            "store"
        )
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """A reader sees the old file or the new one, never a part; survives a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
