"""Numbers and functions that layers, energies and towers share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

MIN_NORM = 1e-6
"""Shorter vectors count as this long: their direction is rounding, and its gradient explodes."""
SLOPE = 1.702
"""Of CLIP's quick GELU."""


def quick_gelu(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x sigmoid(1.702 x), the approximation OpenAI's models were trained with."""
    return values * torch.sigmoid(SLOPE * values)


def unit_entries(features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """The same directions with entries of about 1: unit length times the root of the width."""
    return F.normalize(features, dim=-1) * math.sqrt(features.shape[-1])
