"""Interactive similarity aggregation (UCoFiA)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.layers.masking import masked_softmax


class InteractiveAggregation(nn.Module):
    r"""One number of a vector of similarities, weighted by a learned map of their own softmax.

    .. math:: \mathrm{ISA}(c) = \sum_i c_i\, \mathrm{softmax}_i\!\big((\mathrm{softmax}(c / \tau)
        A) / \tau\big), \quad A \in R^{n \times n}\ \text{identity at the start}

    Padded entries weigh nothing. Paper: the official code has no masks.
    """

    def __init__(self, size: int, *, temperature: float = 0.01) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.eye(size))
        self.temperature = temperature

    def forward(
        self, similarities: Float[Tensor, "*any entries"], mask: Bool[Tensor, "..."]
    ) -> Float[Tensor, "*any"]:
        count, limit = similarities.shape[-1], self.mixing.shape[0]
        if count > limit:
            raise ConfigError(
                f"{count} entries to aggregate, the model was built for {limit}; raise num_frames "
                "or num_words of its configuration"
            )
        similarities = similarities.masked_fill(~mask, 0.0)
        softmax = masked_softmax(similarities / self.temperature, mask)
        mixed = softmax @ self.mixing[:count, :count].to(softmax.dtype)
        weights = masked_softmax(mixed / self.temperature, mask)
        return (similarities * weights).sum(dim=-1)
