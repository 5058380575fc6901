"""Interface of the models that search, and the model of a store.

All arguments and results are numpy arrays. There are two implementations:
:class:`NumpyModel` for compact models, through numpy and onnxruntime, and
:mod:`eaglenet.search.torch_model`, the only one that imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError, shell_quote
from eaglenet.core.files import expand_home
from eaglenet.models.files import is_packaged
from eaglenet.models.light_model import LightModel, mean_of_frames, unit
from eaglenet.store.manifest import PREPARED, SECONDS, Manifest

LIGHT_DEVICES = ("auto", "cpu")
"""Devices for which compact models run through numpy: importing torch takes longer than a query."""


@dataclass(frozen=True)
class ClipFeatures:
    """Features of clips by field, as :meth:`eaglenet.store.manifest.Layout.unpack` returns them.

    keys: cache key of each clip; None: do not cache.
    """

    arrays: Mapping[str, NDArray[Any]]
    keys: Sequence[Hashable] | None = None

    @property
    def frames(self) -> NDArray[np.float32]:
        """``[clips, frames, dim]``."""
        return self.arrays["frames"]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """``[clips, frames]``, False for padding."""
        return self.arrays["mask"]

    @property
    def seconds(self) -> NDArray[np.float32]:
        """``[clips, frames]``: time of each frame in its file."""
        return self.arrays[SECONDS]

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, rows: Sequence[int]) -> ClipFeatures:
        indices = np.asarray(rows, np.int64)
        keys = None if self.keys is None else [self.keys[row] for row in rows]
        return ClipFeatures({name: array[indices] for name, array in self.arrays.items()}, keys)

    def without_prepared(self) -> ClipFeatures:
        """Return a copy without the large arrays that only :meth:`SearchModel.score` reads."""
        arrays = {
            name: array for name, array in self.arrays.items() if not name.startswith(PREPARED)
        }
        return ClipFeatures(arrays, self.keys)


class EncodedTexts(Protocol):
    """Texts encoded by a :class:`SearchModel`."""

    @property
    def vectors(self) -> NDArray[np.float32]:
        """``[texts, dim]``, unit length; their dot products with clips rank the shortlist."""
        ...

    def __getitem__(self, rows: Sequence[int]) -> Self: ...


class SearchModel(Protocol):
    """Model that encodes queries and computes exact scores of clips. Thread-safe."""

    @property
    def has_cosine_scores(self) -> bool:
        """True if hubness offsets apply to exact scores.

        False if the model corrects hubness itself, or if it is a cross-encoder.
        """
        ...

    @property
    def device(self) -> str:
        """Device of the model: ``cpu``, ``cuda``, ``cuda:1`` or ``mps``."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Any:
        """Return the :class:`EncodedTexts` of this model."""
        ...

    def is_cut(self, text: str) -> bool:
        """Return whether a text has more tokens than the model reads."""
        ...

    def encode_frames(
        self, frames: NDArray[np.uint8], mask: NDArray[np.bool_], seconds: NDArray[np.float32]
    ) -> ClipFeatures:
        """Encode videos or images.

        ``frames``: ``[videos, frames, 3, height, width]``; ``mask``, ``seconds``:
        ``[videos, frames]``.
        """
        ...

    def vectors(self, clips: ClipFeatures) -> NDArray[np.float32]:
        """Return the vectors ``[clips, dim]`` that a store keeps, of unit length."""
        ...

    def score(self, texts: Any, clips: ClipFeatures) -> NDArray[np.float32]:
        """Return the exact scores ``[texts, clips]``."""
        ...

    def frame_scores(self, texts: Any, clips: ClipFeatures) -> NDArray[np.float32]:
        """Return the scores of single frames ``[texts, clips, frames]``; -inf for padding."""
        ...


def runs_through_numpy(model: str | Path, device: Any) -> bool:
    """Return whether a search with this model on this device needs no torch."""
    return str(device) in LIGHT_DEVICES and LightModel.supports(model)


class ManifestSource(Protocol):
    """Store, or one version of it, whose model is to be loaded."""

    @property
    def location(self) -> str: ...

    @property
    def manifest(self) -> Manifest: ...


def require_identity(
    store: ManifestSource, name: str, identity: str, *, is_location: bool = True
) -> None:
    """Raise ``StoreError`` if a store was made with another model.

    ``name``: value of ``--model``, or the name of a loaded model if ``is_location`` is False.
    """
    manifest = store.manifest
    if identity == manifest.identity:
        return
    if is_location and name == manifest.model:
        raise StoreError(
            f"{store.location} was made with other weights of {name!r}: the model has changed, or "
            "is from another version of eaglenet. Index the same files into a new store, which "
            "replaces this one when it is complete: eaglenet index --store NEW --like "
            f"{shell_quote(store.location)} --model {shell_quote(name)} --swap"
        )
    raise StoreError(
        f"{store.location} was made with another model than {name!r}, and their vectors cannot be "
        f"compared. Use the model {shell_quote(manifest.model)}, or index into a new store"
    )


def require_model_name(name: str) -> None:
    """Raise ``ModelNotFoundError`` unless a name is a known model, a path, or a valid hub id.

    Called before checks of the store and of torch, whose errors would hide a misspelt name.
    """
    if is_packaged(name) or expand_home(name).exists():
        return
    from eaglenet.encoders.catalogue import HUB_IDS, no_such_model
    from eaglenet.encoders.hub import is_hub_id, split_revision

    if name not in HUB_IDS and ":" not in name and not is_hub_id(split_revision(name)[0]):
        raise no_such_model(name, "no such folder or file")


def require_model(store: ManifestSource) -> None:
    """Raise ``StoreError`` if the model folder of a store no longer exists."""
    name = store.manifest.model
    if os.path.isabs(name) and not os.path.exists(name):
        raise StoreError(
            f"the model of {store.location} was in {name}, which no longer exists; pass its new "
            "location with --model FOLDER (in Python: model=)"
        )


class NumpyTexts:
    """Implementation of :class:`EncodedTexts` in numpy."""

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self.vectors = vectors

    def __getitem__(self, rows: Sequence[int]) -> NumpyTexts:
        return NumpyTexts(self.vectors[list(rows)])


class NumpyModel:
    """Implementation of :class:`SearchModel` with a :class:`LightModel`."""

    device = "cpu"

    def __init__(self, model: LightModel) -> None:
        self.model = model

    @property
    def has_cosine_scores(self) -> bool:
        return self.model.bank is None

    def encode_texts(self, texts: Sequence[str]) -> NumpyTexts:
        return NumpyTexts(unit(self.model.encode_texts(texts)))

    def is_cut(self, text: str) -> bool:
        tokenizer = self.model.text.tokenizer
        ids = tokenizer.encode(text)
        # The end of a text that just fits is a token, or a part of one.
        is_full = len(ids) >= tokenizer.context_length
        return is_full and ids == tokenizer.encode(text[:-1])

    def encode_frames(
        self, frames: NDArray[np.uint8], mask: NDArray[np.bool_], seconds: NDArray[np.float32]
    ) -> ClipFeatures:
        vectors = self.model.encode_frames(frames, mask)
        return ClipFeatures({"frames": vectors, "mask": mask, SECONDS: seconds})

    def vectors(self, clips: ClipFeatures) -> NDArray[np.float32]:
        return mean_of_frames(clips.frames, clips.mask)

    def score(self, texts: NumpyTexts, clips: ClipFeatures) -> NDArray[np.float32]:
        return self.model.score(texts.vectors, clips.frames, clips.mask)

    def frame_scores(self, texts: NumpyTexts, clips: ClipFeatures) -> NDArray[np.float32]:
        return self.model.frame_scores(texts.vectors, clips.frames, clips.mask)
