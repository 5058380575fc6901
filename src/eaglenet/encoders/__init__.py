"""Encoders, the readers of their files, and the hardware that they run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eaglenet.core.registry import Registry

if TYPE_CHECKING:
    from eaglenet.core.types import Encoder, Tokenizer


class Pretrained(NamedTuple):
    """A trained encoder in eval mode, and its tokenizer."""

    encoder: Encoder
    tokenizer: Tokenizer


@dataclass(frozen=True)
class EncoderSpec:
    """A family of encoders.

    title: description for lists and messages.
    config_class: a frozen dataclass of plain values, saved in a model folder.
    build: ``build(config, seed=0)`` creates an encoder with random weights, or without values on
        the meta device.
    recognises: returns whether a published folder or file is of this family.
    load: ``load(location)`` reads such a folder or file; None if there are none.
    reads_features: True if it adapts stored features, without towers and tokenizer.
    open_own_files: ``open_own_files(config, folder)`` opens an encoder whose weights are in files
        of another library in a model folder (the encoder's ``save_own_files`` writes them).
    """

    title: str
    config_class: type[Any]
    build: Callable[..., Encoder]
    recognises: Callable[[Path], bool] = lambda location: False
    load: Callable[..., Pretrained] | None = None
    reads_features: bool = False
    open_own_files: Callable[[Any, Path], Encoder] | None = None


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
        "resnet_bert": "eaglenet.encoders.resnet_bert",
        "siglip": "eaglenet.encoders.siglip",
        "st": "eaglenet.encoders.sentence_transformer",
        "vit_bert": "eaglenet.encoders.vit_bert",
    },
)
