"""The compact text tower: a few blocks of BERT's kind over word pieces."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.encoders.blocks import Attention, FeedForward, run_block
from eaglenet.encoders.compact.config import CompactTextConfig


class CompactBlock(nn.Module):
    """x = ln_1(x + attention(x)), then x = ln_2(x + mlp(x))."""

    def __init__(self, config: CompactTextConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads)
        self.ln_1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = FeedForward(config.width, config.mlp_width, "gelu")
        self.ln_2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = 0.0
        """Share of each branch's numbers that training sets to zero."""

    def forward(
        self,
        words: Float[Tensor, "texts words width"],
        *,
        mask: Bool[Tensor, "texts 1 1 words"] | None = None,
    ) -> Float[Tensor, "texts words width"]:
        words = self.ln_1(words + self._kept(self.attention(words, mask=mask)))
        result: Tensor = self.ln_2(words + self._kept(self.mlp(words)))
        return result

    def _kept(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout) if self.training and self.dropout else branch


class CompactText(nn.Module):
    """Token ids to word vectors in the joint space; the sentence is their mean."""

    def __init__(self, config: CompactTextConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        # Drawn later: drawing on the meta device would import all of torch's compiler, a second.
        self.embedding = nn.Embedding.from_pretrained(
            torch.empty(config.vocabulary_size, config.width), freeze=False
        )
        self.positional_embedding = nn.Parameter(torch.zeros(config.context_length, config.width))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.blocks = nn.ModuleList(CompactBlock(config) for _ in range(config.layers))
        self.projection = nn.Linear(config.width, dim, bias=False)
        self.gradient_checkpointing = 0

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Vectors of all positions; those of padding mean nothing."""
        result: Tensor = self.projection(self.states(ids, mask))
        return result

    def states(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words width"]:
        """What the last block gives, before the projection."""
        embedded = self.embedding(ids) + self.positional_embedding[: ids.shape[1]]
        words: Tensor = self.norm(embedded)
        seen = mask[:, None, None, :]
        for index, block in enumerate(self.blocks):
            is_checkpointed = self.training and index < self.gradient_checkpointing
            words = run_block(block, words, is_checkpointed=is_checkpointed, mask=seen)
        return words

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights of a new tower, by the generator alone."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def mean_of_words(
    words: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]
) -> Float[Tensor, "texts dim"]:
    """The sentence: the mean of its real words."""
    weights = mask.to(words.dtype)[..., None]
    return (words * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
