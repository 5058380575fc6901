"""BERT's transformer, with normalisation after each residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError

HIDDEN = -1e4
"""Added to the logit of a masked key; finite, so that no row gives NaN."""


class PostNormBlock(nn.Module):
    """x <- LN(x + drop(attention(x))), then x <- LN(x + drop(down(gelu(up(x)))))."""

    def __init__(self, dim: int, *, num_heads: int, hidden_dim: int, dropout: float = 0.1) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(
                f"{num_heads} heads do not divide a width of {dim}; choose a divisor of {dim}"
            )
        self.num_heads = num_heads
        self.in_projection = nn.Linear(dim, 3 * dim)
        self.out_projection = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim, eps=1e-12)
        self.up = nn.Linear(dim, hidden_dim)
        self.down = nn.Linear(hidden_dim, dim)
        self.output_norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.in_projection, self.out_projection, self.up, self.down):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(
        self, states: Float[Tensor, "rows tokens dim"], bias: Float[Tensor, "rows 1 1 tokens"]
    ) -> Float[Tensor, "rows tokens dim"]:
        """``bias`` is added to the attention logits of every query."""
        projected = self.in_projection(states).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # [rows, heads, tokens, head dim]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        mixed = self.out_projection(mixed.transpose(1, 2).flatten(2))
        states = self.attention_norm(states + self.dropout(mixed))
        fed = self.down(F.gelu(self.up(states)))
        result: Tensor = self.output_norm(states + self.dropout(fed))
        return result


class PostNormStack(nn.Module):
    """Stack of blocks; padded tokens are masked."""

    def __init__(
        self,
        dim: int,
        *,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            PostNormBlock(dim, num_heads=num_heads, hidden_dim=hidden_dim, dropout=dropout)
            for _ in range(num_layers)
        )

    def layers(
        self, tokens: Float[Tensor, "rows tokens dim"], mask: Bool[Tensor, "rows tokens"]
    ) -> list[Float[Tensor, "rows tokens dim"]]:
        """Return the states after each block."""
        bias = torch.zeros(mask.shape, dtype=tokens.dtype, device=tokens.device)
        bias = bias.masked_fill(~mask, HIDDEN)[:, None, None, :]
        states = []
        for block in self.blocks:
            tokens = block(tokens, bias)
            states.append(tokens)
        return states

    def forward(
        self, tokens: Float[Tensor, "rows tokens dim"], mask: Bool[Tensor, "rows tokens"]
    ) -> Float[Tensor, "rows tokens dim"]:
        return self.layers(tokens, mask)[-1]


class WordTransformer(nn.Module):
    """Small BERT over given word vectors: a learned first token, positions, blocks."""

    def __init__(
        self,
        in_dim: int,
        dim: int,
        *,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        num_positions: int = 78,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.first = nn.Parameter(0.02 * torch.randn(dim))
        self.positions = nn.Parameter(0.02 * torch.randn(num_positions, dim))
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.stack = PostNormStack(
            dim, num_layers=num_layers, num_heads=num_heads, hidden_dim=hidden_dim, dropout=dropout
        )

    def layers(
        self, words: Float[Tensor, "texts words width"], mask: Bool[Tensor, "texts words"]
    ) -> list[Float[Tensor, "texts length dim"]]:
        """Return the states after each block, the first token before the words."""
        if words.shape[1] >= len(self.positions):
            raise ConfigError(
                f"texts of {words.shape[1]} words, there are positions for "
                f"{len(self.positions) - 1}; cut the texts (data.max_words)"
            )
        embedded = self.embed(words.masked_fill(~mask[..., None], 0.0))
        tokens = torch.cat([self.first.expand(len(words), 1, -1), embedded], dim=1)
        tokens = self.dropout(self.norm(tokens + self.positions[: tokens.shape[1]]))
        return self.stack.layers(tokens, torch.cat([mask.new_ones(len(mask), 1), mask], dim=1))
