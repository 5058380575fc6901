"""A small transformer that writes a caption from a memory of video tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Tokens
from eaglenet.layers.post_norm import HIDDEN


class DecoderBlock(nn.Module):
    """x + causal attention(LN x), x + attention to the memory(LN x), x + MLP(LN x)."""

    def __init__(self, dim: int, *, num_heads: int, hidden_dim: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(
                f"{num_heads} heads do not divide a width of {dim}; choose a divisor of {dim}"
            )
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.read = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, hidden_dim)
        self.down = nn.Linear(hidden_dim, dim)

    def forward(
        self,
        states: Float[Tensor, "texts words dim"],
        memory: Float[Tensor, "texts steps dim"],
        bias: Float[Tensor, "texts 1 1 steps"],
    ) -> Float[Tensor, "texts words dim"]:
        query, key, value = (
            self._heads(part) for part in self.qkv(self.norms[0](states)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.out(mixed.transpose(1, 2).flatten(2))
        query = self._heads(self.query(self.norms[1](states)))
        key, value = (self._heads(part) for part in self.key_value(memory).chunk(2, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        states = states + self.read(mixed.transpose(1, 2).flatten(2))
        result: Tensor = states + self.down(F.gelu(self.up(self.norms[2](states))))
        return result

    def _heads(
        self, values: Float[Tensor, "texts tokens dim"]
    ) -> Float[Tensor, "texts heads tokens head_dim"]:
        size = values.shape[-1] // self.num_heads
        return values.reshape(*values.shape[:2], self.num_heads, size).transpose(1, 2)


class CaptionDecoder(nn.Module):
    """Predicts the next token of a caption from the previous ones and a memory; tied embeddings."""

    def __init__(
        self,
        vocabulary_size: int,
        dim: int,
        *,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        num_positions: int = 78,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(num_positions, dim))
        self.blocks = nn.ModuleList(
            DecoderBlock(dim, num_heads=num_heads, hidden_dim=hidden_dim) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        ids: Int[Tensor, "texts words"],
        memory: Float[Tensor, "texts steps dim"],
        memory_mask: Bool[Tensor, "texts steps"],
    ) -> Float[Tensor, "texts words vocabulary"]:
        """Return the logits of the token after each one."""
        if ids.shape[1] > len(self.positions):
            raise ConfigError(
                f"captions of {ids.shape[1]} tokens, the decoder has {len(self.positions)} "
                "positions; cut the texts (data.max_words)"
            )
        bias = torch.zeros(memory_mask.shape, dtype=memory.dtype, device=memory.device)
        bias = bias.masked_fill(~memory_mask, HIDDEN)[:, None, None, :]
        states = self.embedding(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            states = block(states, memory, bias)
        logits: Tensor = self.norm(states) @ self.embedding.weight.T
        return logits

    def loss(
        self,
        tokens: Tokens,
        memory: Float[Tensor, "texts steps dim"],
        memory_mask: Bool[Tensor, "texts steps"],
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the real next words (teacher forcing)."""
        largest = self.embedding.num_embeddings
        logits = self(tokens.ids[:, :-1].clamp_max(largest - 1), memory, memory_mask)
        targets = tokens.ids[:, 1:].masked_fill(~tokens.mask[:, 1:], -100)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
