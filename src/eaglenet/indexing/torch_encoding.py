"""Encoding clips with a model in torch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.hardware import autocast_for
from eaglenet.core.types import Clips
from eaglenet.encoders import int8
from eaglenet.encoders.base import TowerEncoder
from eaglenet.methods.base import Method
from eaglenet.search.torch_model import prepare_for_store
from eaglenet.store.manifest import feature_arrays


@torch.inference_mode()
def encode_clips(
    method: Method,
    frames: NDArray[np.uint8],
    mask: NDArray[np.bool_],
    seconds: NDArray[np.float32],
    precision: str,
    has_prepared: bool,
) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
    """Vectors and features of clips; ``has_prepared`` adds what the exact scorer needs of them."""
    clips = Clips(*(torch.from_numpy(array) for array in (frames, mask, seconds)))
    device = method.device
    with autocast_for(device, precision):
        features = method.encode_video(clips.to(device))
    if precision != "fp32":
        # Pooling, packing and preparing are cheap and stay exact.
        features = features.to(device, torch.float32)
    vectors = method.coarse_vectors(features).float().cpu().numpy()
    prepared = prepare_for_store(method, features) if has_prepared else None
    return vectors, feature_arrays(features, method.feature_seconds(features, clips), prepared)


def int8_twin(method: Method) -> Method:
    """Copy a model with an int8 image tower; the copy shares the text tower."""
    encoder = method.encoder
    if not isinstance(encoder, TowerEncoder):
        raise UsageError(
            f"int8 needs a model with an image tower, which {method.name} on {encoder.family} "
            "does not have; use --precision fp32"
        )
    vision = int8.int8_tower(encoder.vision, encoder.image_size)
    twin = copy.deepcopy(method, {id(encoder.text): encoder.text, id(encoder.vision): vision})
    return twin.eval()
