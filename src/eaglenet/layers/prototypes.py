"""ProST's prototypes: phrases and objects by sparse weights, frames and events by decoders."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.layers.masking import masked_softmax


class SparsePrototypes(nn.Module):
    r"""Sums of tokens under weights that a ReLU makes sparse.

    .. math:: p_j = \sum_i \mathrm{ReLU}(W_2\, \mathrm{ReLU}(W_1 x_i))_j\, x_i
    """

    def __init__(self, dim: int, *, count: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, count))

    def forward(
        self,
        tokens: Float[Tensor, "sets tokens dim"],
        mask: Bool[Tensor, "sets tokens"] | None = None,
    ) -> Float[Tensor, "sets count dim"]:
        weights = self.network(tokens).relu()
        if mask is not None:
            weights = weights.masked_fill(~mask[..., None], 0.0)
        return torch.einsum("stc,std->scd", weights, tokens)


class SingleHead(nn.Module):
    """Attention with one head; keys have no bias, which the softmax would cancel."""

    def __init__(self, dim: int, *, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        queries: Float[Tensor, "rows queries dim"],
        memory: Float[Tensor, "rows tokens dim"],
        mask: Bool[Tensor, "rows any tokens"] | None = None,
    ) -> Float[Tensor, "rows queries dim"]:
        logits = self.query(queries) @ self.key(memory).transpose(1, 2)
        weights = masked_softmax(logits / math.sqrt(queries.shape[-1]), mask)
        result: Tensor = self.output(self.dropout(weights) @ self.value(memory))
        return result


class PrototypeLayer(nn.Module):
    """``x = LN(q)``, attend to ``LN(memory)`` with a residual, LN, network with a residual, LN.

    With ``looks_around`` the queries attend to each other first, without a residual (events).
    """

    def __init__(self, dim: int, *, dropout: float, looks_around: bool) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(dim)
        self.memory_norm = nn.LayerNorm(dim)
        self.around = SingleHead(dim, dropout=dropout) if looks_around else None
        self.around_norm = nn.LayerNorm(dim) if looks_around else None
        self.across = SingleHead(dim, dropout=dropout)
        self.attention_norm = nn.LayerNorm(dim)
        self.network = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim)
        )
        self.output_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        queries: Float[Tensor, "rows queries dim"],
        memory: Float[Tensor, "rows tokens dim"],
        mask: Bool[Tensor, "rows any tokens"],
    ) -> Float[Tensor, "rows queries dim"]:
        states = self.query_norm(queries)
        if self.around is not None and self.around_norm is not None:
            states = self.around_norm(self.dropout(self.around(states, states)))
        attended = self.across(states, self.memory_norm(memory), mask)
        states = self.attention_norm(states + self.dropout(attended))
        return self.output_norm(states + self.dropout(self.network(states)))  # type: ignore[no-any-return]


class PrototypeDecoder(nn.Module):
    """Learned queries read a memory; the output has a norm of its own."""

    def __init__(
        self, dim: int, *, num_queries: int, num_layers: int, dropout: float, looks_around: bool
    ) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(num_queries, dim))
        nn.init.xavier_uniform_(self.queries)
        self.layers = nn.ModuleList(
            PrototypeLayer(dim, dropout=dropout, looks_around=looks_around)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        memory: Float[Tensor, "rows tokens dim"],
        mask: Bool[Tensor, "rows any tokens"],
        *,
        count: int | None = None,
    ) -> Float[Tensor, "rows queries dim"]:
        """``count`` takes the first queries only."""
        states = self.queries[:count].expand(len(memory), -1, -1)
        for layer in self.layers:
            states = layer(states, memory, mask)
        return self.norm(states)  # type: ignore[no-any-return]


def local_mask(
    mask: Bool[Tensor, "videos frames"], num_objects: int, *, reach: float = 0.2
) -> Bool[Tensor, "videos frames tokens"]:
    """Which objects the query of each frame may see: its own and a share of all, in one run.

    The run of frame ``i`` starts at its first object and is as long as the objects of a frame and
    ``reach`` of all real ones, shifted left where it would pass their end.
    """
    order = mask.cumsum(dim=1) - 1  # place among the real frames
    total = num_objects * mask.sum(dim=1)
    length = num_objects + (reach * total).floor().long()
    start = torch.minimum(num_objects * order, (total - length)[:, None]).clamp(min=0)
    objects = torch.arange(num_objects, device=mask.device)
    place = (num_objects * order[..., None] + objects).flatten(1)  # [videos, tokens]
    inside = (place[:, None] >= start[..., None]) & (
        place[:, None] < (start + length[:, None])[..., None]
    )
    return inside & mask.repeat_interleave(num_objects, dim=1)[:, None]
