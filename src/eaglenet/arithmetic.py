"""Numbers and functions that layers, energies and towers share."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

MIN_NORM = 1e-6
"""Shorter vectors count as this long: their direction is rounding, and its gradient explodes."""
SLOPE = 1.702
"""Of CLIP's quick GELU."""


def quick_gelu(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x sigmoid(1.702 x), the approximation OpenAI's models were trained with."""
    return values * torch.sigmoid(SLOPE * values)
