"""Cross-attention from a text to the tokens of each video (TV-ProxyNet's leader)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError


class ProxyDecoderLayer(nn.Module):
    r"""Cross-attention and a small network, over all pairs.

    .. math:: x = \mathrm{LN}(q),\quad m = \mathrm{LN}(y),\quad
        x \leftarrow \mathrm{LN}(x + \mathrm{attend}(x, m)),\quad
        x \leftarrow \mathrm{LN}(x + W_2\,\mathrm{ReLU}(W_1 x))

    The residual of the attention starts from the normalised query. Keys have no bias: the softmax
    cancels it. A single token is always attended to fully, so then there is no query and no key.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_tokens: int,
        dropout: float,
        num_heads: int = 1,
        hidden_dim: int | None = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(
                f"{num_heads} heads do not divide a width of {dim}; choose a divisor of {dim}"
            )
        hidden_dim = hidden_dim or dim
        self.num_heads = num_heads
        self.query_norm = nn.LayerNorm(dim)
        self.memory_norm = nn.LayerNorm(dim)
        if num_tokens > 1:
            self.query = nn.Linear(dim, dim)
            self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.network = nn.Sequential(
            nn.Linear(dim, hidden_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, dim),
        )
        self.output_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.num_tokens = num_tokens

    def forward(
        self,
        queries: Float[Tensor, "texts videos dim"],
        memory: Float[Tensor, "videos tokens dim"],
    ) -> Float[Tensor, "texts videos dim"]:
        queries = self.query_norm(queries)
        memory = self.memory_norm(memory)
        heads = (self.num_heads, -1)
        if self.num_tokens > 1:
            query = self.query(queries).unflatten(-1, heads)
            key = self.key(memory).unflatten(-1, heads)
            logits = torch.einsum("tvhe,vkhe->tvhk", query, key)
            weights = (logits / math.sqrt(key.shape[-1])).softmax(dim=-1)
        else:
            weights = queries.new_ones(*queries.shape[:2], self.num_heads, 1)
        weights = self.dropout(weights)
        value = self.value(memory).unflatten(-1, heads)
        attended = torch.einsum("tvhk,vkhe->tvhe", weights, value).flatten(2)
        states = self.attention_norm(queries + self.dropout(self.output(attended)))
        return self.output_norm(states + self.dropout(self.network(states)))  # type: ignore[no-any-return]


class ProxyDecoder(nn.Module):
    """Layers of :class:`ProxyDecoderLayer` and a last normalisation."""

    def __init__(
        self,
        dim: int,
        *,
        num_tokens: int,
        num_layers: int = 2,
        dropout: float = 0.1,
        num_heads: int = 1,
        hidden_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ProxyDecoderLayer(
                dim,
                num_tokens=num_tokens,
                dropout=dropout,
                num_heads=num_heads,
                hidden_dim=hidden_dim,
            )
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        queries: Float[Tensor, "texts dim"],
        memory: Float[Tensor, "videos tokens dim"],
    ) -> Float[Tensor, "texts videos dim"]:
        states = queries[:, None, :].expand(-1, memory.shape[0], -1)
        for layer in self.layers:
            states = layer(states, memory)
        return self.norm(states)  # type: ignore[no-any-return]
