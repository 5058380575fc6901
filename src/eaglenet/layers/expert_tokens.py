"""Tokens of all experts as one sequence, the input of MMT's transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.types import Expert
from eaglenet.layers.masking import Padding, visible

UNTIMED = 1
"""The position of tokens whose time is unknown."""


@dataclass(frozen=True)
class TokenSequence:
    """One sequence per video; ``aggregates`` are the indices of the experts' summaries in it."""

    tokens: Float[Tensor, "videos length dim"]
    mask: Bool[Tensor, "videos length"]
    aggregates: Int[Tensor, "experts"]
    present: Bool[Tensor, "videos experts"]


def at_most(expert: Expert, limit: int, *, is_random: bool) -> Expert:
    """Select at most ``limit`` tokens per video, in order: at random or evenly spaced."""
    count = expert.mask.shape[1]
    if not limit or count <= limit:
        return expert
    if is_random:
        keys = torch.rand(expert.mask.shape, device=expert.mask.device)
    else:
        # Evenly: the tokens whose index in the video crosses the next of `limit` equal steps.
        order = expert.mask.cumsum(dim=1) - 1
        total = expert.mask.sum(dim=1, keepdim=True).clamp_min(1)
        step = torch.div(order * limit, total, rounding_mode="floor")
        before = torch.div((order - 1) * limit, total, rounding_mode="floor")
        is_first = (step != before) | (order == 0) | (total <= limit)
        keys = torch.where(is_first, 0.0, 1.0) + torch.arange(count, device=order.device) * 1e-6
    keys = keys.masked_fill(~expert.mask, float("inf"))
    indices = keys.argsort(dim=1)[:, :limit].sort(dim=1).values
    seconds = None if expert.seconds is None else expert.seconds.gather(1, indices)
    values = expert.values.take_along_dim(indices[..., None], dim=1)
    return Expert(values, expert.mask.gather(1, indices), seconds)


class ExpertTokens(nn.Module):
    r"""[CLS], then for each expert its summary and its tokens.

    .. math:: \mathrm{LN}(r_e(x) + P[\mathrm{position}] + T[e]), \qquad
        r_e(x) = \mathrm{unit}(W_e x + b_e)

    A summary is r_e of the maximum over the expert's tokens. Positions: 0 for CLS and summaries, 1
    where the time is unknown, else clamp(floor(seconds + 2)).

    Args:
        padding: the summary of a missing expert starts from its type alone; with ``official`` from
            r_e(0) too, the unit bias, as in the authors' code.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        dim: int,
        *,
        num_positions: int = 32,
        max_tokens: int = 30,
        dropout: float = 0.1,
        padding: Padding = "masked",
    ) -> None:
        super().__init__()
        self.max_tokens = max_tokens
        self.padding: Padding = padding
        self.maps = nn.ModuleDict({name: nn.Linear(width, dim) for name, width in widths.items()})
        self.positions = nn.Parameter(0.02 * torch.randn(num_positions, dim))
        self.types = nn.Parameter(0.02 * torch.randn(1 + len(widths), dim))
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def project(
        self, name: str, values: Float[Tensor, "*rows width"]
    ) -> Float[Tensor, "*rows dim"]:
        """r_e."""
        return F.normalize(self.maps[name](values), dim=-1)

    def position_rows(self, expert: Expert) -> Int[Tensor, "videos tokens"]:
        """Row of the position table for each token."""
        if expert.seconds is None:
            return torch.full_like(expert.mask, UNTIMED, dtype=torch.int64)
        positions = (expert.seconds + 2).floor().clamp(0, len(self.positions) - 1).long()
        return positions.masked_fill(~expert.mask | (expert.seconds < 0), UNTIMED)

    def forward(self, experts: Mapping[str, Expert]) -> TokenSequence:
        first = next(iter(experts.values()))
        count = len(first.mask)
        parts = [(self.types[0] + self.positions[0]).expand(count, 1, -1)]
        masks = [first.mask.new_ones(count, 1)]
        aggregates, length = [], 1
        for number, (name, whole) in enumerate(experts.items(), start=1):
            expert = at_most(whole, self.max_tokens, is_random=self.training)
            type_vector = self.types[number]
            summary = self._summary(name, whole) + self.positions[0] + type_vector
            positions = self.positions[self.position_rows(expert)]
            tokens = self.project(name, expert.values) + positions + type_vector
            parts += [summary[:, None], tokens]
            masks += [whole.present[:, None], expert.mask]
            aggregates.append(length)
            length += 1 + tokens.shape[1]
        return TokenSequence(
            tokens=self.dropout(self.norm(torch.cat(parts, dim=1))),
            mask=torch.cat(masks, dim=1),
            aggregates=torch.tensor(aggregates, device=first.mask.device),
            present=torch.stack([expert.present for expert in experts.values()], dim=1),
        )

    def _summary(self, name: str, expert: Expert) -> Float[Tensor, "videos dim"]:
        lowest = torch.finfo(expert.values.dtype).min
        largest = expert.values.masked_fill(~expert.mask[..., None], lowest).amax(dim=1)
        largest = largest.masked_fill(~expert.present[:, None], 0.0)
        summary = self.project(name, largest)
        return summary * visible(expert.present, self.padding)[:, None].to(summary.dtype)
