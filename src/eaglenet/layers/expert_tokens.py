"""The tokens of all experts as one sequence, as MMT's transformer reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.types import Expert

UNTIMED = 1
"""The position of tokens whose time is unknown."""


@dataclass(frozen=True)
class TokenSequence:
    """One sequence a video; ``aggregates`` are the places of the experts' summaries in it."""

    tokens: Float[Tensor, "videos length dim"]
    mask: Bool[Tensor, "videos length"]
    aggregates: Int[Tensor, "experts"]
    present: Bool[Tensor, "videos experts"]


def at_most(expert: Expert, most: int, *, is_random: bool) -> Expert:
    """``most`` tokens of each video: drawn without replacement, or spread evenly; kept in order."""
    count = expert.mask.shape[1]
    if not most or count <= most:
        return expert
    if is_random:
        keys = torch.rand(expert.mask.shape, device=expert.mask.device)
    else:
        # Evenly: the tokens whose place in the video crosses the next of `most` equal steps.
        place = expert.mask.cumsum(dim=1) - 1
        total = expert.mask.sum(dim=1, keepdim=True).clamp_min(1)
        step = torch.div(place * most, total, rounding_mode="floor")
        before = torch.div((place - 1) * most, total, rounding_mode="floor")
        is_first = (step != before) | (place == 0) | (total <= most)
        keys = torch.where(is_first, 0.0, 1.0) + torch.arange(count, device=place.device) * 1e-6
    keys = keys.masked_fill(~expert.mask, float("inf"))
    chosen = keys.argsort(dim=1)[:, :most].sort(dim=1).values
    seconds = None if expert.seconds is None else expert.seconds.gather(1, chosen)
    values = expert.values.take_along_dim(chosen[..., None], dim=1)
    return Expert(values, expert.mask.gather(1, chosen), seconds)


class ExpertTokens(nn.Module):
    r"""[CLS], then for each expert its summary and its tokens.

    .. math:: \mathrm{LN}(r_e(x) + P[\mathrm{position}] + T[e]), \qquad
        r_e(x) = \mathrm{unit}(W_e x + b_e)

    A summary is r_e of the maximum over the expert's tokens. Positions: 0 for CLS and summaries, 1
    where the time is unknown, else clamp(floor(seconds + 2)).

    Paper: a missing expert's summary starts from its type alone; the released code gives it
    r_e(0), which is the bias.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        dim: int,
        *,
        num_positions: int = 32,
        max_tokens: int = 30,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.max_tokens = max_tokens
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

    def places(self, expert: Expert) -> Int[Tensor, "videos tokens"]:
        """The row of the position table of each token."""
        if expert.seconds is None:
            return torch.full_like(expert.mask, UNTIMED, dtype=torch.int64)
        timed = (expert.seconds + 2).floor().clamp(0, len(self.positions) - 1).long()
        return timed.masked_fill(~expert.mask | (expert.seconds < 0), UNTIMED)

    def forward(self, experts: Mapping[str, Expert]) -> TokenSequence:
        first = next(iter(experts.values()))
        count = len(first.mask)
        parts = [(self.types[0] + self.positions[0]).expand(count, 1, -1)]
        masks = [first.mask.new_ones(count, 1)]
        places, length = [], 1
        for number, (name, whole) in enumerate(experts.items(), start=1):
            expert = at_most(whole, self.max_tokens, is_random=self.training)
            kind = self.types[number]
            summary = self._summary(name, whole) + self.positions[0] + kind
            tokens = self.project(name, expert.values) + self.positions[self.places(expert)] + kind
            parts += [summary[:, None], tokens]
            masks += [whole.present[:, None], expert.mask]
            places.append(length)
            length += 1 + tokens.shape[1]
        return TokenSequence(
            tokens=self.dropout(self.norm(torch.cat(parts, dim=1))),
            mask=torch.cat(masks, dim=1),
            aggregates=torch.tensor(places, device=first.mask.device),
            present=torch.stack([expert.present for expert in experts.values()], dim=1),
        )

    def _summary(self, name: str, expert: Expert) -> Float[Tensor, "videos dim"]:
        lowest = torch.finfo(expert.values.dtype).min
        largest = expert.values.masked_fill(~expert.mask[..., None], lowest).amax(dim=1)
        largest = largest.masked_fill(~expert.present[:, None], 0.0)
        summary = self.project(name, largest)
        return summary * expert.present[:, None].to(summary.dtype)
