"""Compact models through numpy and onnxruntime: searching with them needs no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.frame_spec import FrameSpec
from eaglenet.core.object_storage import absolute_location
from eaglenet.core.splitting import Splitting
from eaglenet.models.checks import CHECK_TEXTS, check_frames, check_vectors
from eaglenet.models.files import is_packaged
from eaglenet.models.light_model import LightModel, mean_of_frames, unit
from eaglenet.search.model import ClipFeatures
from eaglenet.store.layout import SECONDS, Layout
from eaglenet.store.manifest import Manifest


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
