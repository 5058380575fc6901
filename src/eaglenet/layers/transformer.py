"""Transformers: pre-norm as in CLIP, for frames, and post-norm as in BERT, for words."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Encoder, quick_gelu
from eaglenet.layers.masking import attention_bias, check_heads


def attend_heads(
    projections: Float[Tensor, "rows tokens three_dim"],
    num_heads: int,
    bias: Float[Tensor, "rows 1 1 tokens"],
    *,
    num_queries: int | None = None,
) -> Float[Tensor, "rows queries dim"]:
    """Return the output of self-attention for the first ``num_queries`` tokens, or for all.

    ``projections`` are the concatenated queries, keys and values; ``bias`` is added to the logits.
    """
    query, key, value = projections.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    output = F.scaled_dot_product_attention(query[:, :, :num_queries], key, value, attn_mask=bias)
    return output.transpose(1, 2).flatten(2)


class TransformerBlock(nn.Module):
    """Residual block of CLIP: normalise, attend, add; normalise, QuickGELU network, add."""

    def __init__(self, dim: int, *, num_heads: int) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        # Epsilon of the temporal blocks of CLIP4Clip.
        self.ln_1 = nn.LayerNorm(dim, eps=1e-12)
        self.in_projection = nn.Linear(dim, 3 * dim)
        self.out_projection = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim, eps=1e-12)
        self.expand = nn.Linear(dim, 4 * dim)
        self.contract = nn.Linear(4 * dim, dim)
        for layer in (self.in_projection, self.out_projection, self.expand, self.contract):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        states: Float[Tensor, "rows tokens dim"],
        bias: Float[Tensor, "rows 1 1 tokens"],
        *,
        num_queries: int | None = None,
    ) -> Float[Tensor, "rows queries dim"]:
        """``bias``: added to attention logits. ``num_queries``: return only the first tokens."""
        output = attend_heads(
            self.in_projection(self.ln_1(states)), self.num_heads, bias, num_queries=num_queries
        )
        states = states[:, :num_queries] + self.out_projection(output)
        return states + self.contract(quick_gelu(self.expand(self.ln_2(states))))  # type: ignore[no-any-return]


class TransformerStack(nn.Module):
    """Stack of blocks with learned positions, without a causal mask; padding is masked."""

    def __init__(self, dim: int, *, num_layers: int, num_heads: int, num_positions: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(num_positions, dim) * 0.02)
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, num_heads=num_heads) for _ in range(num_layers)
        )

    def add_positions(
        self, tokens: Float[Tensor, "rows tokens dim"]
    ) -> Float[Tensor, "rows tokens dim"]:
        length = tokens.shape[1]
        if length > self.positions.shape[0]:
            raise ConfigError(
                f"{length} tokens, but only {self.positions.shape[0]} positions; increase "
                "num_positions of the method"
            )
        return tokens + self.positions[:length]

    def attend(
        self,
        states: Float[Tensor, "rows tokens dim"],
        mask: Bool[Tensor, "rows tokens"],
        *,
        num_queries: int | None = None,
    ) -> Float[Tensor, "rows queries dim"]:
        """Return the states after all blocks, or only those of the first ``num_queries`` tokens."""
        bias = attention_bias(mask, states.dtype)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            states = block(states, bias, num_queries=num_queries if index == last else None)
        return states

    def forward(
        self, tokens: Float[Tensor, "rows tokens dim"], mask: Bool[Tensor, "rows tokens"]
    ) -> Float[Tensor, "rows tokens dim"]:
        return self.attend(self.add_positions(tokens), mask)


class TemporalTransformer(nn.Module):
    """``g = T(f + PE) + f`` over the frames of a video (seqTransf head of CLIP4Clip)."""

    def __init__(self, stack: TransformerStack) -> None:
        super().__init__()
        self.stack = stack

    def forward(
        self, frames: Float[Tensor, "videos frames dim"], mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        return self.stack(frames, mask) + frames  # type: ignore[no-any-return]


class CrossEncoder(nn.Module):
    r"""Transformer over text and frames of a pair in one sequence (tightTransf of CLIP4Clip).

    .. math:: s = w_2\,\mathrm{QuickGELU}(W_1\,\mathrm{LN}(h_0) + b_1), \quad
        h = T(\mathrm{dropout}([t; f_1 \dots f_M] + PE))

    The last layer has no learned bias: a constant in every score does not change the ranking, and
    the softmax of the loss cancels it.

    Args:
        score_bias: add a constant, to reproduce the scores of an official checkpoint.
    """

    score_bias: Tensor | None

    def __init__(
        self, stack: TransformerStack, *, dropout: float = 0.1, score_bias: bool = False
    ) -> None:
        super().__init__()
        self.stack, dim = stack, stack.positions.shape[1]
        self.register_buffer("score_bias", torch.zeros(()) if score_bias else None)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, 1, bias=False)
        nn.init.zeros_(self.hidden.bias)
        for layer in (self.hidden, self.output):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(
        self,
        texts: Float[Tensor, "pairs dim"],
        frames: Float[Tensor, "pairs frames dim"],
        mask: Bool[Tensor, "pairs frames"],
    ) -> Float[Tensor, "pairs"]:
        tokens = self.stack.add_positions(torch.cat([texts[:, None], frames], dim=1))
        mask = torch.cat([mask.new_ones(mask.shape[0], 1), mask], dim=1)
        first = self.stack.attend(self.dropout(tokens), mask, num_queries=1)[:, 0]
        scores: Tensor = self.output(quick_gelu(self.hidden(self.norm(first)))).squeeze(-1)
        return scores if self.score_bias is None else scores + self.score_bias


def default_heads(encoder: Encoder) -> int:
    """Return the number of heads of a text tower of the same width, else ``dim / 64`` or 1."""
    text, dim = encoder.text_stack(), encoder.dim
    if text is not None and text.width == dim:
        return text.heads
    return dim // 64 if dim % 64 == 0 else 1


def stack_on(
    encoder: Encoder, config: Any, *, num_positions: int | None = None
) -> TransformerStack:
    """Create a stack of the width of the encoder, initialised from its text tower if possible.

    ``config`` has ``num_layers``, ``num_heads`` (None: :func:`default_heads`) and
    ``num_positions``; the argument overrides the last.
    """
    stack = TransformerStack(
        encoder.dim,
        num_layers=config.num_layers,
        num_heads=config.num_heads or default_heads(encoder),
        num_positions=num_positions or config.num_positions,
    )
    copy_text_tower(encoder, stack)
    return stack


@torch.no_grad()
def copy_text_tower(encoder: Encoder, stack: TransformerStack) -> bool:
    """Initialise a stack from the first blocks and positions of the text tower of an encoder.

    Returns False if the encoder has no text tower, or one of another width or number of heads.
    Blocks and positions beyond those of the tower keep their initial values.
    """
    text = encoder.text_stack()
    if text is None or text.width != stack.positions.shape[1]:
        return False
    block: Any
    for block, source in zip(stack.blocks, text.blocks, strict=False):
        if text.heads != block.num_heads:
            return False
        for target, origin in (
            (block.ln_1, source.ln_1),
            (block.in_projection, source.qkv),
            (block.out_projection, source.out),
            (block.ln_2, source.ln_2),
            (block.expand, source.up),
            (block.contract, source.down),
        ):
            if target.weight.shape != origin.weight.shape:
                return False
            target.weight.copy_(origin.weight)
            target.bias.copy_(origin.bias)
    count = min(len(stack.positions), len(text.positions))
    stack.positions[:count] = text.positions[:count]
    return True


class PostNormBlock(nn.Module):
    """Block: x <- LN(x + drop(attention(x))), then x <- LN(x + drop(down(gelu(up(x)))))."""

    def __init__(self, dim: int, *, num_heads: int, hidden_dim: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_heads(dim, num_heads)
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
        output = attend_heads(self.in_projection(states), self.num_heads, bias)
        states = self.attention_norm(states + self.dropout(self.out_projection(output)))
        output = self.down(F.gelu(self.up(states)))
        result: Tensor = self.output_norm(states + self.dropout(output))
        return result


class PostNormStack(nn.Module):
    """Stack of post-norm blocks; padded tokens are masked.

    ``config`` has ``dim``, ``num_layers``, ``num_heads``, ``hidden_dim`` and ``dropout``; the
    argument overrides its number of layers.
    """

    def __init__(self, config: Any, *, num_layers: int | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            PostNormBlock(
                config.dim,
                num_heads=config.num_heads,
                hidden_dim=config.hidden_dim,
                dropout=config.dropout,
            )
            for _ in range(config.num_layers if num_layers is None else num_layers)
        )

    def layers(
        self, tokens: Float[Tensor, "rows tokens dim"], mask: Bool[Tensor, "rows tokens"]
    ) -> list[Float[Tensor, "rows tokens dim"]]:
        """Return the states after each block."""
        bias = attention_bias(mask, tokens.dtype)
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
    """Small BERT over word vectors: a learned first token, positions, ``text_layers`` blocks.

    ``config`` is that of :class:`PostNormStack`, with ``text_layers``.
    """

    NUM_POSITIONS = 78

    def __init__(self, in_dim: int, config: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(in_dim, config.dim)
        self.first = nn.Parameter(0.02 * torch.randn(config.dim))
        self.positions = nn.Parameter(0.02 * torch.randn(self.NUM_POSITIONS, config.dim))
        self.norm = nn.LayerNorm(config.dim, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = PostNormStack(config, num_layers=config.text_layers)

    def layers(
        self, words: Float[Tensor, "texts words width"], mask: Bool[Tensor, "texts words"]
    ) -> list[Float[Tensor, "texts length dim"]]:
        """Return the states after each block, the first token before the words."""
        if words.shape[1] >= len(self.positions):
            raise ConfigError(
                f"texts have {words.shape[1]} words, but there are only {len(self.positions) - 1} "
                "positions; reduce data.max_words"
            )
        embeddings = self.embed(words.masked_fill(~mask[..., None], 0.0))
        tokens = torch.cat([self.first.expand(len(words), 1, -1), embeddings], dim=1)
        tokens = self.dropout(self.norm(tokens + self.positions[: tokens.shape[1]]))
        return self.stack.layers(tokens, torch.cat([mask.new_ones(len(mask), 1), mask], dim=1))
