"""BridgeFormer's bridge: a question asks the patches of every block, until it has its answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.encoders.blocks import Attention, BlockConfig, FeedForward
from eaglenet.encoders.clip import TextTower, take_positions
from eaglenet.encoders.space_time import grouped_attention
from eaglenet.encoders.video_proxy import split_heads


class BridgeBlock(nn.Module):
    r"""The question reads one visual block, then looks at itself.

    The question's own token reads all patches; its words read each frame by itself. With what the
    block before it found, r' = r + b:

    .. math:: b' = r' + \mathrm{Space}(\mathrm{LN}_7 r'), \qquad
        b'' = b' + \mathrm{MLP}(\mathrm{LN}_6 b')
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.question_norm, self.patch_norm, self.space_norm, self.mlp_norm = (
            nn.LayerNorm(width, eps=config.norm_eps) for _ in range(4)
        )
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.space = Attention(width, config.heads)
        self.mlp = FeedForward(width, config.mlp_width, config.activation)

    def read(
        self,
        first: Float[Tensor, "pairs 1 width"],
        words: Float[Tensor, "pairs words width"],
        patches: Float[Tensor, "pairs frames patches width"],
        mask: Bool[Tensor, "pairs frames"],
    ) -> tuple[Float[Tensor, "pairs 1 width"], Float[Tensor, "pairs frames words width"]]:
        """Attention from the question to the patches."""
        pairs, frames, count, _ = patches.shape
        key, value = self.key_value(self.patch_norm(patches)).chunk(2, dim=-1)
        whole = mask.repeat_interleave(count, dim=1)
        # A video without a real frame has nothing to be asked about: it answers with all of them.
        whole = torch.where(whole.any(dim=1, keepdim=True), whole, torch.ones_like(whole))
        told = F.scaled_dot_product_attention(
            split_heads(self.query(self.question_norm(first)), self.heads),
            split_heads(key.flatten(1, 2), self.heads),
            split_heads(value.flatten(1, 2), self.heads),
            attn_mask=whole[:, None, None, :],
        )
        query = self.query(self.question_norm(words))[:, None].expand(-1, frames, -1, -1)
        each = F.scaled_dot_product_attention(
            split_heads(query.flatten(0, 1), self.heads),
            split_heads(key.flatten(0, 1), self.heads),
            split_heads(value.flatten(0, 1), self.heads),
        )
        first = self.out(told.transpose(1, 2).flatten(2))
        read: Tensor = self.out(each.transpose(1, 2).flatten(2))
        return first, read.view(pairs, frames, *words.shape[1:])

    def forward(
        self,
        first: Float[Tensor, "pairs 1 width"],
        tokens: Float[Tensor, "pairs frames words width"],
        mask: Bool[Tensor, "pairs frames words"],
    ) -> tuple[Float[Tensor, "pairs 1 width"], Float[Tensor, "pairs frames words width"]]:
        """The question looks at itself, frame by frame, its own token at everything."""
        seen_first, seen = grouped_attention(
            self.space, self.space_norm(first), self.space_norm(tokens), mask
        )
        first, tokens = first + seen_first, tokens + seen
        return (
            first + self.mlp(self.mlp_norm(first)),
            tokens + self.mlp(self.mlp_norm(tokens)),
        )


class Bridge(nn.Module):
    """One bridge block for each visual block; the last one's own token is the answer."""

    def __init__(self, config: BlockConfig, text_width: int, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(text_width, config.width)
        self.blocks = nn.ModuleList(BridgeBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.project = nn.Linear(config.width, dim)

    def forward(
        self,
        questions: Float[Tensor, "pairs levels words width"],
        ends: Int[Tensor, "pairs"],
        words_mask: Bool[Tensor, "pairs words"],
        patches: Float[Tensor, "pairs blocks frames patches channels"],
        frames_mask: Bool[Tensor, "pairs frames"],
    ) -> Float[Tensor, "pairs dim"]:
        """Answers from the videos: level ``b levels / blocks`` of the question asks block b.

        The question's own token is that of its end, which has read all its words.
        """
        levels, count = questions.shape[1], len(self.blocks)
        mask = frames_mask[:, :, None] & words_mask[:, None, :]
        mapped = self.map(questions)
        first: Tensor | None = None
        tokens: Tensor | None = None
        for place, block in enumerate(self.blocks):
            level = mapped[:, place * levels // count]
            own = take_positions(level, ends)[:, None]
            read_first, read = block.read(own, level, patches[:, place], frames_mask)  # type: ignore[operator]
            first = read_first if first is None else first + read_first
            tokens = read if tokens is None else tokens + read
            first, tokens = block(first, tokens, mask)
        if first is None:
            raise AssertionError("a tower has at least one block")
        result: Tensor = self.project(self.norm(first[:, 0]))
        return result


def question_states(
    tower: TextTower, ids: Int[Tensor, "texts words"]
) -> Float[Tensor, "texts levels words width"]:
    """What every block of the text tower is given: level 0 are the embeddings."""
    states, found = tower.embed(ids), []
    for block in tower.blocks:
        found.append(states)
        states = block(states, is_causal=True)
    return torch.stack(found, dim=1)


def ask(
    ids: Int[Tensor, "texts words"],
    ends: Int[Tensor, "texts"],
    *,
    mask_token: int,
) -> tuple[Int[Tensor, "texts words"], Int[Tensor, "texts words"]]:
    """Questions, in which one word is hidden, and answers: three hidden words and that word.

    The word is drawn at random between the first token and the end.
    """
    texts = torch.arange(len(ids), device=ids.device)
    room = (ends - 1).clamp_min(1)
    place = 1 + (torch.rand(len(ids), device=ids.device) * room).long().clamp_max(room - 1)
    place = torch.minimum(place, (ends - 1).clamp_min(0))
    questions = ids.clone()
    questions[texts, place] = mask_token
    answers = torch.zeros_like(ids)
    length = min(6, ids.shape[1])
    shown = torch.stack(
        [
            ids[:, 0],
            *(torch.full_like(ids[:, 0], mask_token) for _ in range(3)),
            ids[texts, place],
            ids[texts, ends],
        ],
        dim=1,
    )
    answers[:, :length] = shown[:, -length:]
    answers[:, 0] = ids[:, 0]
    return questions, answers
