"""Pooling of X-Pool: attention over frames with the text as the query."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.layers.masking import check_heads, masked_softmax


class FramePooling(nn.Module):
    """Pooling of frames by a text (paper eq. 2, appendix A).

    ``q = W_Q LN_1(t)``, ``k_m = W_K LN_1(f_m)``, ``a = softmax_m(q . k_m / sqrt(d))``,
    ``z = LN_2(W_O sum_m a_m W_V LN_1(f_m))``, ``v = LN_3(z + dropout(FC(z)))``.

    Paper: the appendix leaves out LN_1 (shared by text and frames), the biases and the dropout.
    Keys have no bias: it adds the same ``q . b`` to every frame, which the softmax cancels.

    Args:
        num_heads: heads of the attention, each with separate weights over frames.
    """

    def __init__(self, dim: int, *, dropout: float = 0.3, num_heads: int = 1) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.input_norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.output_norm = nn.LayerNorm(dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set identity weights and zero biases: plain dot-product attention."""
        for layer in (self.query, self.key, self.value, self.output, self.feed_forward):
            nn.init.eye_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        text: Float[Tensor, "texts videos dim"] | Float[Tensor, "texts dim"],
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"] | None = None,
    ) -> Float[Tensor, "texts videos dim"]:
        """Pool every video with every text; a text may differ from video to video."""
        query = self.query(self.input_norm(text))
        if query.dim() == 2:
            query = query[:, None].expand(-1, frames.shape[0], -1)
        mixture = self._attend(query, self.input_norm(frames), mask) + self.output.bias
        mixture = self.attention_norm(mixture)
        videos: Tensor = self.output_norm(mixture + self.dropout(self.feed_forward(mixture)))
        return videos

    def _attend(
        self,
        query: Float[Tensor, "texts videos dim"],
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"] | None,
    ) -> Float[Tensor, "texts videos dim"]:
        """Return the weighted mean of the values after ``W_O``, without its bias."""
        keys, values = self.key(frames), self.value(frames)
        # Applying W_O to the values of a video is cheaper than applying it to every pair.
        # Attention weights sum to 1, so its bias can be added later.
        if self.num_heads == 1:
            values = values @ self.output.weight.T
            logits = torch.einsum("tvd,vfd->tvf", query, keys)
            attention = masked_softmax(logits / math.sqrt(query.shape[-1]), mask)
            return torch.einsum("tvf,vfd->tvd", attention, values.to(attention.dtype))
        query, keys, values, output = (
            matrix.unflatten(-1, (self.num_heads, -1))
            for matrix in (query, keys, values, self.output.weight)
        )
        values = torch.einsum("vfhe,ohe->vhfo", values, output)
        logits = torch.einsum("tvhe,vfhe->tvhf", query, keys) / math.sqrt(query.shape[-1])
        attention = masked_softmax(logits, None if mask is None else mask[:, None])
        return torch.einsum("tvhf,vhfo->tvo", attention, values.to(attention.dtype))
