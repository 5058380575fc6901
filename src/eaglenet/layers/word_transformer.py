"""Words that look at each other before a text becomes a vector: a small BERT over given words."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.layers.post_norm import PostNormStack


class WordTransformer(nn.Module):
    """A learned first token, the words with positions, and post-normalised blocks over them."""

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
        """The states after each block, the first token before the words."""
        if words.shape[1] >= len(self.positions):
            raise ConfigError(
                f"texts of {words.shape[1]} words, there are positions for "
                f"{len(self.positions) - 1}; cut the texts (data.max_words)"
            )
        embedded = self.embed(words.masked_fill(~mask[..., None], 0.0))
        tokens = torch.cat([self.first.expand(len(words), 1, -1), embedded], dim=1)
        tokens = self.dropout(self.norm(tokens + self.positions[: tokens.shape[1]]))
        return self.stack.layers(tokens, torch.cat([mask.new_ones(len(mask), 1), mask], dim=1))
