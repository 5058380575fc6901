"""One vector of a set of tokens: a learnt query attends to all of them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.encoders.blocks import FeedForward
from eaglenet.encoders.config import Activation


class AttentionPooling(nn.Module):
    r"""``y = out(sum_i a_i v_i)``, then ``y + mlp(norm(y))``; ``a = softmax(q k_i / sqrt(d))``.

    The query ``q`` is the same for all, so a head's scores are products of the tokens with one
    vector, ``W_k^T q`` (the bias of the keys drops out of the softmax), and the values need to be
    projected only after they were mixed: tokens never meet a square matrix here.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        mlp_width: int,
        activation: Activation,
        norm_eps: float,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.probe = nn.Parameter(torch.zeros(width))
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.key.bias.requires_grad_(False)  # in every file, without any effect
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = FeedForward(width, mlp_width, activation)

    def forward(
        self,
        tokens: Float[Tensor, "sequences tokens width"],
        bias: Float[Tensor, "sequences tokens"] | None = None,
    ) -> Float[Tensor, "sequences width"]:
        """``bias`` is added to the scores of all heads: what each token counts for."""
        width, heads = tokens.shape[-1], self.heads
        query = self.query(self.probe).view(heads, 1, width // heads)
        # [heads, width]: each head's query seen from the tokens
        directions = (query @ self.key.weight.view(heads, width // heads, width)).squeeze(1)
        scores = tokens @ (directions * (width // heads) ** -0.5).T
        scores = scores.float() if bias is None else scores.float() + bias[..., None]
        shares = scores.softmax(dim=1).to(tokens.dtype)
        mixed = shares.transpose(1, 2) @ tokens  # [sequences, heads, width]
        values = self.value.weight.view(heads, width // heads, width)
        pooled = torch.einsum("shw,hdw->shd", mixed, values).flatten(1) + self.value.bias
        pooled = self.out(pooled)
        result: Tensor = pooled + self.mlp(self.norm(pooled))
        return result

    def initialise(self, generator: torch.Generator) -> None:
        deviation = len(self.probe) ** -0.5
        nn.init.normal_(self.probe, std=deviation, generator=generator)
        layers = (self.query, self.key, self.value, self.out, self.mlp.up, self.mlp.down)
        for layer in layers:
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
            nn.init.zeros_(layer.bias)
