"""Batch normalisation over the rows that are real."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class MaskedBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d whose statistics leave out padding and missing experts.

    Rows that are not real are normalised with the statistics of the others and count for nothing.
    A training batch with fewer than two real rows has no statistics: it uses the running ones.
    A batch that is encoded in pieces (``training.accumulate``) has the statistics of each piece.
    """

    def forward(
        self, values: Float[Tensor, "*rows dim"], mask: Bool[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*rows dim"]:
        flat = values.reshape(-1, values.shape[-1])
        if not self.training:
            return self._evaluated(flat).view_as(values)
        real = flat if mask is None else flat[mask.reshape(-1)]
        if len(real) < 2:
            return self._evaluated(flat).view_as(values)
        normalised = super().forward(real)
        if mask is None:
            return normalised.view_as(values)
        is_real = mask.reshape(-1, 1)
        return torch.zeros_like(flat).masked_scatter(is_real, normalised).view_as(values)

    def _evaluated(self, flat: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        return nn.functional.batch_norm(
            flat, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )
