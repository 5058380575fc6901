"""Encoding: choose a precision, encode clips in batches, and pack them for the store."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import NonFiniteError, UsageError
from eaglenet.encoders.hardware import AUTO, autocast_for, choose_precision, has_fast_int8
from eaglenet.indexing.decoding import ClipFailure, ClipFrames, Damage
from eaglenet.indexing.files import CandidateFile
from eaglenet.models.light_model import LightModel, mean_of_frames
from eaglenet.store.manifest import SECONDS, Manifest, feature_arrays
from eaglenet.store.records import ClipBatch

if TYPE_CHECKING:
    from eaglenet.methods.base import Method

logger = logging.getLogger(__name__)

FIRST_FRAMES, BATCH_FRAMES = 24, 192
"""Frames per batch on a CPU: of the first batch, and at most. Larger batches are no faster on two
cores, but frames shared by neighbouring clips are encoded once only within a batch."""
MIN_CLIPS = 4
"""Minimum clips per batch after the first. With 12 frames per clip, two of them shared with each
neighbour, batches of four clips encode 5% more frames than one large batch, and single clips 20%.
"""
BATCH_SECONDS = 2.0
"""Target time per batch on a CPU: progress is reported, and Ctrl-C acts, between batches."""
GPU_BATCH_FRAMES = 1536
MIN_INT8_BYTES = 2 * 2**20
"""Bytes of video from which ``auto`` chooses int8: preparing it costs as much as it saves on about
40 frames of `small`, or 20 of a ViT-B/16; 2 MiB are some ten seconds of camera video."""


def prepare_for_precision(
    method: Method | LightModel,
    choice: str,
    files: Sequence[CandidateFile],
    executor_supports_int8: Callable[[], bool] = lambda: True,
) -> tuple[Method | LightModel, str]:
    """Choose a precision for these files; return the model to encode with, and the precision.

    ``auto`` chooses bf16 if the machine multiplies it fast. Otherwise it chooses int8 if the
    machine is fast in it, there is much to encode, onnxruntime is installed, and the model's
    frames keep a cosine of 0.999 with those in fp32, which is tried now. Otherwise it is fp32.
    ``executor_supports_int8`` is called only if its answer decides. A compact model without torch
    has no bf16.
    """
    precision = choose_precision(method.device, choice)
    if isinstance(method, LightModel) and choice == AUTO:
        precision = "int8" if has_fast_int8("cpu") else "fp32"
    if precision != "int8":
        return method, precision
    if choice != AUTO:
        return to_int8(method), "int8"
    if sum(file.size for file in files) < MIN_INT8_BYTES:
        logger.info("encoding in fp32: preparing int8 takes longer than encoding so few files")
        return method, "fp32"
    if not find_spec("onnxruntime"):
        logger.info("encoding in fp32: int8 needs onnxruntime: pip install onnxruntime")
        return method, "fp32"
    if not executor_supports_int8():
        logger.info("encoding in fp32: not all machines of the executor are fast in int8")
        return method, "fp32"
    try:
        return to_int8(method), "int8"
    except UsageError as reason:
        logger.info("encoding in fp32: %s", reason)
        return method, "fp32"


def to_int8(method: Method | LightModel) -> Method | LightModel:
    """Return the model with an int8 image tower; ``UsageError`` if its frames would differ."""
    if isinstance(method, LightModel):
        method.vision("int8")
        return method
    from eaglenet.encoders import int8
    from eaglenet.encoders.base import TowerEncoder

    encoder = method.encoder
    if not isinstance(encoder, TowerEncoder):
        raise UsageError(
            f"int8 needs a model with an image tower, which {method.name} on {encoder.family} "
            "does not have; use the precision fp32"
        )
    vision = int8.int8_tower(encoder.vision, encoder.image_size)
    # The copy shares the text tower.
    shared_parts = {id(encoder.text): encoder.text, id(encoder.vision): vision}
    return copy.deepcopy(method, shared_parts).eval()


class ClipEncoding:
    """Encodes decoded clips with one model."""

    def __init__(
        self,
        method: Method | LightModel,
        manifest: Manifest,
        precision: str = "fp32",
    ) -> None:
        self.method = method
        self.manifest = manifest
        self.precision = precision
        num_frames = manifest.frame_spec.num_frames
        self.is_adaptive = not str(method.device).startswith("cuda")
        frames = BATCH_FRAMES if self.is_adaptive else GPU_BATCH_FRAMES
        self.max_clips = max(1, frames // num_frames)
        first = max(1, FIRST_FRAMES // num_frames)
        self.batch_size = min(first, self.max_clips) if self.is_adaptive else self.max_clips

    def encode(
        self, items: Iterable[ClipFrames | ClipFailure | Damage]
    ) -> Iterator[ClipBatch | ClipFailure | Damage]:
        """Yield encoded clips, failures and damage; clips of one file may be in several batches."""
        batch: list[ClipFrames] = []
        for item in items:
            if not isinstance(item, ClipFrames):
                yield item
                continue
            batch.append(item)
            if len(batch) == self.batch_size:
                start = time.perf_counter()
                clips, batch = self._encode(batch), []
                self._adapt(time.perf_counter() - start)
                yield clips
        if batch:
            yield self._encode(batch)

    def _adapt(self, seconds: float) -> None:
        """Adapt the batch size to the time the last batch took, if that differs much."""
        target = round(self.batch_size * BATCH_SECONDS / max(seconds, 1e-3))
        if self.is_adaptive and not 2 / 3 < target / self.batch_size < 3 / 2:
            self.batch_size = min(max(MIN_CLIPS, target), self.max_clips)

    def _encode(self, batch: list[ClipFrames]) -> ClipBatch:
        frames = np.stack([clip.pixels for clip in batch])
        mask = np.stack([clip.is_real for clip in batch])
        seconds = np.stack([clip.times for clip in batch]).astype(np.float32, copy=False)
        vectors, arrays = self._features(frames, mask, seconds)
        if not np.isfinite(vectors).all():
            raise NonFiniteError(
                f"the model returned non-finite vectors for {batch[0].path}; its weights are "
                "damaged or belong to another model"
            )
        return ClipBatch(
            keys=[clip.key for clip in batch],
            starts=np.array([clip.window[0] for clip in batch], np.float64),
            ends=np.array([clip.window[1] for clip in batch], np.float64),
            vectors=vectors,
            features=self.manifest.layout.pack(arrays),
            thumbnails=[clip.thumbnail for clip in batch],
            keyframe_keys=frozenset(clip.key for clip in batch if clip.is_from_keyframes),
        )

    def _features(
        self, frames: NDArray[np.uint8], mask: NDArray[np.bool_], seconds: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
        """Return the vectors and the features of clips."""
        method = self.method
        if isinstance(method, LightModel):
            vectors = method.encode_frames(frames, mask, cast("Any", self.precision))
            arrays = {"frames": vectors, "mask": mask, SECONDS: seconds}
            return mean_of_frames(vectors, mask), arrays
        return self._torch_features(method, frames, mask, seconds)

    def _torch_features(
        self,
        method: Method,
        frames: NDArray[np.uint8],
        mask: NDArray[np.bool_],
        seconds: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
        import torch

        from eaglenet.core.types import Clips
        from eaglenet.search.torch_model import prepare_for_store

        with torch.inference_mode():
            clips = Clips(*(torch.from_numpy(array) for array in (frames, mask, seconds)))
            with autocast_for(method.device, self.precision):
                features = method.encode_video(clips.to(method.device))
            if self.precision != "fp32":
                # Pooling, packing and preparing are cheap and stay exact.
                features = features.to(method.device, torch.float32)
            vectors = method.coarse_vectors(features).float().cpu().numpy()
            is_prepared = self.manifest.layout.has_prepared
            rows = prepare_for_store(method, features) if is_prepared else None
            times = method.feature_seconds(features, clips)
            return vectors, feature_arrays(features, times, rows)
