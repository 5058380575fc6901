"""Low-rank changes of frozen matrices (LoRA), for methods that train little of a tower."""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.encoders.blocks import ResidualBlock
from eaglenet.encoders.clip import ClipEncoder


class LowRankLinear(nn.Linear):
    """``W x + b + B A x`` with the given ``W`` and ``b``; ``B`` starts at 0, so nothing changes.

    The names of ``W`` and ``b`` stay as they were: ``weight`` and ``bias``.
    """

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__(
            linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta"
        )
        self.weight, self.bias = linear.weight, linear.bias
        like = linear.weight
        self.down = nn.Parameter(like.new_empty(rank, linear.in_features))
        self.up = nn.Parameter(like.new_zeros(linear.out_features, rank))
        if not self.down.is_meta:
            nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, input: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch out"]:
        return super().forward(input) + F.linear(F.linear(input, self.down), self.up)


def add_low_rank(encoder: ClipEncoder, rank: int) -> None:
    """A low-rank change of the fused projection of every block of both towers."""
    for tower in (encoder.vision, encoder.text):
        for block in tower.blocks:
            if isinstance(block, ResidualBlock):
                block.attention.qkv = LowRankLinear(block.attention.qkv, rank)


def freeze_tower(encoder: ClipEncoder) -> None:
    """Nothing of the encoder trains any more; what is added later does."""
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
