"""Energy-aware matching: low energy for real pairs, high energy for sampled ones."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def contrast(
    positive: Float[Tensor, "*positives"],
    negative: Float[Tensor, "*negatives"],
    *,
    penalty: float = 1.0,
    positive_mask: Bool[Tensor, "*positives"] | None = None,
    negative_mask: Bool[Tensor, "*negatives"] | None = None,
) -> Float[Tensor, ""]:
    """``mean E+ - mean E- + c (mean E+^2 + mean E-^2)`` (paper eq. 15, appendix D.4).

    The masks mark the pairs of each kind.
    """
    difference = _mean(positive, positive_mask) - _mean(negative, negative_mask)
    size = _mean(positive.square(), positive_mask) + _mean(negative.square(), negative_mask)
    return difference + penalty * size


def energy_matching_loss(
    pair_energies: Float[Tensor, "texts videos"],
    positives: Bool[Tensor, "texts videos"],
    sampled_energies: Float[Tensor, "samples"],
    *,
    penalty: float = 1.0,
    in_batch: bool = False,
) -> Float[Tensor, ""]:
    """Contrast real pairs with sampled ones.

    in_batch: also against the mismatched pairs of the batch, the two losses averaged (released
        code). Paper: sampled pairs only.
    """
    sampled_loss = contrast(
        pair_energies, sampled_energies, penalty=penalty, positive_mask=positives
    )
    if not in_batch:
        return sampled_loss
    in_batch_loss = contrast(
        pair_energies,
        pair_energies,
        penalty=penalty,
        positive_mask=positives,
        negative_mask=~positives,
    )
    return (sampled_loss + in_batch_loss) / 2


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return values.mean()
    positive_values = torch.where(mask, values, torch.zeros_like(values))
    return positive_values.sum() / mask.sum().clamp_min(1)
