"""Frames to one vector without parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.layers.masking import frame_weights


def mean_pooling(
    frames: Float[Tensor, "videos frames dim"], mask: Bool[Tensor, "videos frames"]
) -> Float[Tensor, "videos dim"]:
    r"""Unit mean of unit frames, padded ones left out (CLIP4Clip's parameter-free head).

    .. math:: v = \mathrm{unit}\Big(\frac{1}{M} \sum_{m=1}^{M} \hat f_m\Big)

    A video without a valid frame gives the zero vector, so its scores are 0 and never NaN.
    """
    weights = frame_weights(mask, frames.dtype)[..., None]
    # The usual 1e-12 is 0 in half precision, where a padded frame of zeros would give NaN.
    shortest = max(1e-12, torch.finfo(frames.dtype).tiny)
    mean = (F.normalize(frames, dim=-1, eps=shortest) * weights).sum(dim=1)
    return F.normalize(mean, dim=-1, eps=shortest)
