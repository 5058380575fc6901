"""The model of a store, as searching sees it, and which model a store has.

Everything that crosses this border is a numpy array. There are two implementations:
:class:`NumpyModel` for compact models, through numpy and onnxruntime, and
:mod:`eaglenet.search.torch_model`, which alone imports torch.
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
from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.core.object_storage import absolute_location
from eaglenet.models.files import is_packaged
from eaglenet.models.light_model import LightModel, mean_of_frames, unit
from eaglenet.models.weights import CHECK_TEXTS, check_frames, check_vectors
from eaglenet.store.base import Store
from eaglenet.store.kinds import kind_of
from eaglenet.store.manifest import PREPARED, SECONDS, Layout, Manifest, cannot_mix

DEFAULT_MODEL = "small"
"""Ships with the package, so it needs no network."""
LIGHT_DEVICES = ("auto", "cpu")
"""Devices for which a compact model runs through numpy. One query does not need a GPU, and torch
takes longer to import than the query takes."""


@dataclass(frozen=True)
class ClipFeatures:
    """Features of clips by field, as :meth:`eaglenet.store.manifest.Layout.unpack` gives them.

    keys: what identifies the features of each clip, for caches; None if there is nothing to cache.
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
        """Leave out what only :meth:`SearchModel.score` reads; it is large."""
        arrays = {
            name: array for name, array in self.arrays.items() if not name.startswith(PREPARED)
        }
        return ClipFeatures(arrays, self.keys)


class EncodedTexts(Protocol):
    """Texts as a model has encoded them."""

    @property
    def vectors(self) -> NDArray[np.float32]:
        """``[texts, dim]``, unit length; their dot products with clips rank the shortlist."""
        ...

    def __getitem__(self, rows: Sequence[int]) -> Self: ...


class SearchModel(Protocol):
    """Encodes queries, and scores clips exactly. Thread-safe."""

    @property
    def has_cosine_scores(self) -> bool:
        """True if exact scores are cosines, which hubness offsets correct.

        False if the model corrects hubness itself, or if it reads text and video together.
        """
        ...

    @property
    def device(self) -> str:
        """``cpu``, ``cuda``, ``cuda:1``, ``mps``."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Any:
        """Encode texts; returns :class:`EncodedTexts` of this model."""
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
        """``[clips, dim]``, unit length: the vectors that a store keeps of such clips."""
        ...

    def score(self, texts: Any, clips: ClipFeatures) -> NDArray[np.float32]:
        """Exact scores ``[texts, clips]``."""
        ...

    def frame_scores(self, texts: Any, clips: ClipFeatures) -> NDArray[np.float32]:
        """Scores of single frames ``[texts, clips, frames]``; -inf for padding."""
        ...


def runs_through_numpy(model: str | Path, device: Any) -> bool:
    """Return whether searching with this model, on this device, needs no torch."""
    return str(device) in LIGHT_DEVICES and LightModel.supports(model)


def require_identity(store: Store, name: str, identity: str, *, is_location: bool = True) -> None:
    """Raise an error if a store was made with another model than this one.

    ``name`` is what ``--model`` takes, or with ``is_location`` False the name of a loaded model.
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
        f"{store.location} was made with another model than {name!r}, whose vectors cannot be "
        f"compared. Use --model {shell_quote(manifest.model)}, or index into a new store"
    )


def model_for_store(location: str | Path) -> str:
    """Name of the model to index with if none is given: the store's own, or else the default."""
    kind = kind_of(location)
    if not kind.exists(str(location)):
        return DEFAULT_MODEL
    store = kind.open(str(location))
    require_model(store)
    return store.manifest.model


def refuse_other_model(location: str | Path, name: str) -> None:
    """Refuse a model that cannot be the store's, before it is downloaded and loaded.

    Names of packaged models are compared; a folder may hold a copy of one.
    """
    kind = kind_of(location)
    if not kind.exists(str(location)):
        return
    own = kind.open(str(location)).manifest.model
    if own != name and is_packaged(own) and not Path(name).expanduser().exists():
        raise cannot_mix(str(location), [f"model {own!r} (now {name!r})"])


def require_model(store: Store) -> None:
    """Raise an error if the model folder of a store no longer exists."""
    name = store.manifest.model
    if os.path.isabs(name) and not os.path.exists(name):
        raise StoreError(
            f"the model of {store.location} was in {name}, which no longer exists; give its new "
            "location with --model FOLDER (in Python: model=)"
        )


class NumpyTexts:
    """See :class:`eaglenet.search.model.EncodedTexts`."""

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self.vectors = vectors

    def __getitem__(self, rows: Sequence[int]) -> NumpyTexts:
        return NumpyTexts(self.vectors[list(rows)])


class NumpyModel:
    """Searches with a :class:`LightModel`; see :class:`eaglenet.search.model.SearchModel`."""

    device = "cpu"

    def __init__(self, model: LightModel) -> None:
        self.model = model

    @property
    def has_cosine_scores(self) -> bool:
        return self.model.bank is None

    def encode_texts(self, texts: Sequence[str]) -> NumpyTexts:
        return NumpyTexts(unit(self.model.encode_texts(texts)))

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


def load_light(name: str) -> LightModel:
    """Open a compact model to index with, and check it before anything is written."""
    model = LightModel.open(name)
    frames = check_frames(model.frame_spec.size)
    mask = np.ones(frames.shape[:2], np.bool_)
    images = mean_of_frames(model.encode_frames(frames, mask), mask)
    check_vectors(name, images, unit(model.encode_texts(CHECK_TEXTS)))
    return model


def make_light_manifest(
    model: LightModel,
    name: str,
    spec: FrameSpec,
    splitting: Splitting,
    roots: Sequence[str | Path],
) -> Manifest:
    """Make the manifest of a store; torch gives the same model the same one."""
    shape = (1, spec.num_frames)
    arrays = {
        "frames": np.zeros((*shape, model.dim), np.float32),
        "mask": np.ones(shape, np.bool_),
        SECONDS: np.zeros(shape, np.float32),
    }
    return Manifest(
        model=name if is_packaged(name) else os.path.abspath(Path(name).expanduser()),
        identity=model.identity,
        method=model.name,
        dim=model.dim,
        frame_spec=spec,
        splitting=splitting,
        layout=Layout.of(arrays),
        roots=tuple(absolute_location(root) for root in roots),
    )
