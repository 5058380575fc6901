"""Weights stored in a quarter of their size: int8 matrices with one scale a row.

w[i, j] ~ scale[i] q[i, j] with scale[i] = max_j |w[i, j]| / 127. Vectors (norms, biases) and small
matrices stay as they are, in fp16. A stored matrix ``name`` has its scales under ``name`` +
``SCALES``; reading gives fp32 back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eaglenet.errors import CheckpointError

SCALES = "::scales"
SMALLEST = 4096
"""Matrices of fewer entries save nothing worth their rounding."""


def to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights to store."""
    stored: dict[str, Tensor] = {}
    for name, value in weights.items():
        if value.ndim != 2 or value.numel() < SMALLEST or not value.is_floating_point():
            stored[name] = value.half() if value.is_floating_point() else value
            continue
        scales = value.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        stored[name] = (value.float() / scales).round().to(torch.int8)
        stored[name + SCALES] = scales
    return stored


def from_int8(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`to_int8`; weights that were not stored so are left as they are."""
    if not any(name.endswith(SCALES) for name in stored):
        return dict(stored)
    weights: dict[str, Tensor] = {}
    for name, value in stored.items():
        if name.endswith(SCALES):
            continue
        scales = stored.get(name + SCALES)
        if scales is None:
            weights[name] = value.float() if value.is_floating_point() else value
        elif value.ndim != 2 or scales.shape != (len(value), 1):
            raise CheckpointError(
                f"{name} is {list(value.shape)}, its scales {list(scales.shape)}; "
                "expected one for each row"
            )
        else:
            weights[name] = value.float() * scales.float()
    return weights
