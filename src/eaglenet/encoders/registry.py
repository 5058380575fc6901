"""The tower families: how each is configured, built, recognised by its files and loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from eaglenet.core.registry import Registry

if TYPE_CHECKING:
    import torch

    from eaglenet.core.types import Encoder, Tokenizer


class Pretrained(NamedTuple):
    """A trained encoder in eval mode, and the tokenizer that belongs to it."""

    encoder: Encoder
    tokenizer: Tokenizer


@runtime_checkable
class Build(Protocol):
    """Makes an encoder with random weights; on the meta device one without values."""

    def __call__(self, config: Any, *, seed: int = 0) -> Encoder: ...


@runtime_checkable
class Load(Protocol):
    """Reads a folder or file in a layout in which makers publish; see ``load_pretrained``."""

    def __call__(
        self, location: Path, *, dtype: torch.dtype, tokenizer: str | Path | None
    ) -> Pretrained: ...


def nowhere(location: Path) -> bool:
    """Of a family that nobody publishes."""
    return False


@dataclass(frozen=True)
class EncoderSpec:
    """A tower family.

    title: what it is, for lists and messages.
    config_class: a frozen dataclass of plain values, saved in a model folder.
    recognises: is this folder or file, as its makers publish it, of this family?
    load: reads such a folder or file; None where there is none.
    reads_features: it adapts stored features and has no towers and no tokenizer.
    """

    name: str
    title: str
    config_class: type[Any]
    build: Build
    recognises: Callable[[Path], bool] = nowhere
    load: Load | None = None
    reads_features: bool = False


ENCODERS: Registry[EncoderSpec] = Registry(
    "encoder family",
    is_open=True,
    modules={
        "clip": "eaglenet.encoders.clip_files",
        "experts": "eaglenet.encoders.features",
        "features": "eaglenet.encoders.features",
        "compact": "eaglenet.encoders.compact",
        "openclip": "eaglenet.encoders.openclip",
        "perception": "eaglenet.encoders.perception",
        "siglip": "eaglenet.encoders.siglip",
        "st": "eaglenet.encoders.sentence_transformer",
    },
)
