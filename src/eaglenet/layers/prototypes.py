"""ProST's prototypes: phrases and objects by sparse weights, frames and events by decoders."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
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


class CrossAttention(nn.Module):
    """Attention of queries over a memory; keys have no bias, which the softmax would cancel."""

    def __init__(self, dim: int, *, dropout: float, num_heads: int = 1) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(
                f"{num_heads} heads do not divide a width of {dim}; choose a divisor of {dim}"
            )
        self.num_heads = num_heads
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
        query, key, value = (
            states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for states in (self.query(queries), self.key(memory), self.value(memory))
        )  # [rows, heads, tokens, head width]
        logits = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        weights = masked_softmax(logits, None if mask is None else mask[:, None])
        attended = (self.dropout(weights) @ value).transpose(1, 2).flatten(2)
        result: Tensor = self.output(attended)
        return result


class PrototypeLayer(nn.Module):
    """``x = LN(q)``, attend to ``LN(memory)`` with a residual, LN, network with a residual, LN.

    With ``self_attention`` the queries attend to each other first, without a residual (events).
    """

    def __init__(
        self, dim: int, *, dropout: float, self_attention: bool, num_heads: int = 1
    ) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(dim)
        self.memory_norm = nn.LayerNorm(dim)
        self.around = (
            CrossAttention(dim, dropout=dropout, num_heads=num_heads) if self_attention else None
        )
        self.around_norm = nn.LayerNorm(dim) if self_attention else None
        self.across = CrossAttention(dim, dropout=dropout, num_heads=num_heads)
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
    """Decoder of learned queries over a memory, with a final normalisation."""

    def __init__(
        self,
        dim: int,
        *,
        num_queries: int,
        num_layers: int,
        dropout: float,
        self_attention: bool,
        num_heads: int = 1,
    ) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(num_queries, dim))
        nn.init.xavier_uniform_(self.queries)
        self.layers = nn.ModuleList(
            PrototypeLayer(dim, dropout=dropout, self_attention=self_attention, num_heads=num_heads)
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
        """States of all queries, or of the first ``count``."""
        states = self.queries[:count].expand(len(memory), -1, -1)
        for layer in self.layers:
            states = layer(states, memory, mask)
        return self.norm(states)  # type: ignore[no-any-return]


def local_mask(
    mask: Bool[Tensor, "videos frames"], num_objects: int, *, reach: float = 0.2
) -> Bool[Tensor, "videos frames tokens"]:
    """Objects that the query of each frame may attend to: one run of the real frames' objects.

    Of ``n`` real objects, the run of frame ``i`` begins at its first object ``s`` and ends before
    ``e = s + num_objects + floor(reach n)``. A run with ``e > n - 1`` becomes
    ``[s - (e - (n - 1)), n)``, as in the official code: one entry longer than the others, also
    where it would have fitted exactly.
    """
    order = mask.cumsum(dim=1) - 1  # index among the real frames
    total = num_objects * mask.sum(dim=1, keepdim=True)
    # In double precision, as Python's own product: 0.29 * 100 must not become 29.
    length = num_objects + (reach * total.double()).floor().long()
    start = num_objects * order
    end = start + length
    is_beyond = end > total - 1
    start = torch.where(is_beyond, start - (end - (total - 1)), start).clamp(min=0)
    end = torch.where(is_beyond, total, end)
    objects = torch.arange(num_objects, device=mask.device)
    index = (num_objects * order[..., None] + objects).flatten(1)[:, None]  # of each object
    inside = (index >= start[..., None]) & (index < end[..., None])
    return inside & mask.repeat_interleave(num_objects, dim=1)[:, None]
