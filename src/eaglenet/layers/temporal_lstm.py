"""Frames one after the other through an LSTM."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class TemporalLSTM(nn.Module):
    """``g = LSTM(f) + f`` over the valid frames; a padded position keeps ``f`` (seqLSTM)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dim, dim, batch_first=True)

    def forward(
        self,
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos frames dim"]:
        # Valid frames first, in their order. The network looks back only, so what stands after
        # them never reaches them: the same numbers as a packed sequence, without a device sync.
        order = (~mask).long().argsort(dim=1, stable=True)[..., None]
        outputs, _ = self.lstm(frames.take_along_dim(order, dim=1))
        outputs = torch.zeros_like(outputs).scatter(1, order.expand_as(outputs), outputs)
        return frames + outputs * mask[..., None].to(outputs.dtype)
