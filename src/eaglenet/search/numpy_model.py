"""Compact models through numpy and onnxruntime: searching with them needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eaglenet.models.light_model import LightModel, mean_of_frames, unit
from eaglenet.search.model import ClipFeatures
from eaglenet.store.layout import SECONDS


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
