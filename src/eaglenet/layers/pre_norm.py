"""One pre-normalised transformer layer with ReLU and a last normalisation (T2VLAD's videos)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.layers.post_norm import HIDDEN


class PreNormLayer(nn.Module):
    """x + attention(LN x), then x + down(relu(up(LN x))), then LN; padding is never seen."""

    def __init__(self, dim: int, *, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(
                f"{num_heads} heads do not divide a width of {dim}; choose a divisor of {dim}"
            )
        self.num_heads = num_heads
        self.ln_1 = nn.LayerNorm(dim)
        self.in_projection = nn.Linear(dim, 3 * dim)
        self.out_projection = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, dim)
        self.down = nn.Linear(dim, dim)
        self.ln_last = nn.LayerNorm(dim)

    def forward(
        self, tokens: Float[Tensor, "rows tokens dim"], mask: Bool[Tensor, "rows tokens"]
    ) -> Float[Tensor, "rows tokens dim"]:
        bias = torch.zeros(mask.shape, dtype=tokens.dtype, device=tokens.device)
        bias = bias.masked_fill(~mask, HIDDEN)[:, None, None, :]
        projected = self.in_projection(self.ln_1(tokens)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # [rows, heads, tokens, head dim]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        tokens = tokens + self.out_projection(mixed.transpose(1, 2).flatten(2))
        tokens = tokens + self.down(F.relu(self.up(self.ln_2(tokens))))
        result: Tensor = self.ln_last(tokens)
        return result
