"""Low-rank changes of frozen matrices (LoRA).

:func:`adapt_towers` adds trainable changes to the matrices of any tower, ours or a library's, and
:func:`merged_state` merges them into the weights. :class:`LowRankLinear` is a layer of TempMe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.blocks import Attention

Targets = Literal["attention", "all"]
"""Matrices to change: those of attention, or those of all linear layers."""
ADAPTER_PARTS = (".down", ".up")


class LowRankLinear(nn.Linear):
    """``W x + b + B A x`` with ``W`` and ``b`` of an existing layer; ``B`` starts at 0.

    ``W`` and ``b`` keep their names ``weight`` and ``bias``.
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


def add_low_rank(encoder: TowerEncoder, rank: int) -> None:
    """Add a low-rank change to the fused attention projection of every block of both towers."""
    for tower in (encoder.vision, encoder.text):
        for module in tower.modules():
            if isinstance(module, Attention):
                module.qkv = LowRankLinear(module.qkv, rank)


def freeze_tower(encoder: TowerEncoder) -> None:
    """Freeze all parameters of the encoder. Parameters added later are trained."""
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)


class LowRankChange(nn.Module):
    """``W + (alpha / rank) B A`` with ``alpha`` = 2 ``rank``; ``B`` starts at 0.

    A parametrisation, so all code that reads the matrix gets the changed one, even a fused kernel
    or another library's attention that never calls the layer.
    """

    SCALE = 2.0

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        down = torch.empty(rank, columns, dtype=torch.float32)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=generator)
        self.down = nn.Parameter(down.to(weight))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Float[Tensor, "out width"]) -> Float[Tensor, "out width"]:
        return weight + self.SCALE * (self.up @ self.down)


def adapt_towers(encoder: nn.Module, rank: int, targets: Targets = "attention") -> int:
    """Freeze the towers and add a trainable change of ``rank`` to their matrices.

    Returns the number of changed matrices.

    Raises:
        ConfigError: the encoder has no towers, or its towers have no such matrices.
    """
    towers = [getattr(encoder, name) for name in getattr(encoder, "tower_names", ())]
    if not towers:
        raise ConfigError(
            "training.lora_rank: this encoder has no towers, only adapters of stored features; set "
            "training.lora_rank=0, or choose data with videos or frames"
        )
    matrices = list(_matrices(towers, targets))
    if not matrices:
        raise ConfigError(
            f"training.lora_targets={targets}: the towers have no such matrices; choose all"
        )
    # The adapters are the same for all seeds of a run, which affect only the head.
    generator = torch.Generator().manual_seed(0)
    for tower in towers:
        for parameter in tower.parameters():
            parameter.requires_grad_(False)
    for module, name in matrices:
        change = LowRankChange(getattr(module, name), rank, generator)
        parametrize.register_parametrization(module, name, change)
    return len(matrices)


def merged_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model with the changes of :func:`adapt_towers` merged into them.

    The names are those of the model before it was adapted.
    """
    weights = {}
    for name, value in state.items():
        module, is_changed, rest = name.partition("parametrizations.")
        if not is_changed:
            weights[name] = value
        elif rest.endswith(".original"):
            matrix = rest.removesuffix(".original")
            change = f"{module}parametrizations.{matrix}.0."
            up, down = state[f"{change}up"], state[f"{change}down"]
            weights[f"{module}{matrix}"] = value + LowRankChange.SCALE * (up @ down)
    return weights


def is_adapter(name: str) -> bool:
    """Return whether :func:`adapt_towers` added the parameter of this name."""
    return ".parametrizations." in name and name.endswith(ADAPTER_PARTS)


def _matrices(towers: list[nn.Module], targets: Targets) -> Iterator[tuple[nn.Module, str]]:
    """Yield modules and the names of their matrices, each matrix once."""
    seen_modules: set[int] = set()
    for tower in towers:
        for parent in tower.modules():
            is_target = targets == "all" or "Attention" in type(parent).__name__
            for module in parent.modules() if is_target else ():
                for name in ("weight", "in_proj_weight"):
                    matrix = module._parameters.get(name)
                    is_linear = isinstance(module, nn.Linear | nn.MultiheadAttention)
                    if is_linear and matrix is not None and id(matrix) not in seen_modules:
                        seen_modules.add(id(matrix))
                        yield module, name
