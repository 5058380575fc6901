"""TempMe's vision tower: tokens of a frame, then of neighbouring frames, merge block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.blocks import Attention, ResidualBlock
from eaglenet.encoders.vision import VisionTower, place_in_time


def frame_groups(num_frames: int, most: int) -> tuple[int, ...]:
    """Factors of ``num_frames``, at most ``most`` of them, small ones first: 12 is 2 x 2 x 3."""
    factors: list[int] = []
    rest, factor = num_frames, 2
    while rest > 1:
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
        factor += 1
    while len(factors) > max(most, 1):
        factors = sorted([factors[0] * factors[1], *factors[2:]])
    return tuple(factors)


@dataclass(frozen=True)
class Merged:
    """Tokens of each clip, class tokens first, and how many patches each stands for."""

    tokens: Float[Tensor, "clips tokens width"]
    sizes: Float[Tensor, "clips tokens"]


def merge(
    given: Merged, metric: Float[Tensor, "clips tokens any"], num_merged: int, num_class: int
) -> Merged:
    """Bipartite soft matching (ToMe): every other patch may join the most similar of the rest.

    The ``num_merged`` most similar links are merged into means weighted by size; class tokens (the
    first ``num_class``) stay. What is left keeps its order: unmerged ones, then those joined.
    """
    patches = given.tokens[:, num_class:]
    sizes = given.sizes[:, num_class:]
    num_sources = -(-patches.shape[1] // 2)
    num_merged = min(num_merged, num_sources, patches.shape[1] - num_sources)
    if num_merged < 1:
        return given
    unit = F.normalize(metric[:, num_class:], dim=-1)
    similarity = unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)
    best, target = similarity.max(dim=-1)
    order = best.argsort(dim=-1, descending=True, stable=True)
    joining = order[:, :num_merged]
    staying = order[:, num_merged:].sort(dim=-1).values
    weighted = patches.to(sizes.dtype) * sizes[..., None]
    sources, targets = weighted[:, ::2], weighted[:, 1::2]
    into = target.take_along_dim(joining, dim=1)
    moved = sources.take_along_dim(joining[..., None], dim=1)
    joined = targets.scatter_add(1, into[..., None].expand_as(moved), moved)
    target_sizes = sizes[:, 1::2].scatter_add(1, into, sizes[:, ::2].take_along_dim(joining, dim=1))
    kept_sizes = torch.cat([sizes[:, ::2].take_along_dim(staying, dim=1), target_sizes], dim=1)
    kept = torch.cat([sources.take_along_dim(staying[..., None], dim=1), joined], dim=1)
    kept = (kept / kept_sizes[..., None]).to(given.tokens.dtype)
    return Merged(
        torch.cat([given.tokens[:, :num_class], kept], dim=1),
        torch.cat([given.sizes[:, :num_class], kept_sizes], dim=1),
    )


def attend(
    attention: Attention, given: Merged, tokens: Float[Tensor, "clips tokens width"]
) -> tuple[Float[Tensor, "clips tokens width"], Float[Tensor, "clips tokens head_width"]]:
    """Attention in which a token counts by its size, and the mean over heads of the keys."""
    clips, length, width = tokens.shape
    parts = attention.qkv(tokens).view(clips, length, 3, attention.heads, width // attention.heads)
    query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
    bias = given.sizes.log().to(query.dtype)[:, None, None, :]
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return attention.out(mixed.transpose(1, 2).flatten(2)), key.mean(dim=1)


class TokenMerging(nn.Module):
    """What TempMe adds to a vision tower: where clips are in time, and how much merges where.

    Before the last block come as many blocks as there are ``groups``: in each, so many neighbouring
    clips become one. In the blocks before those every frame is a clip of its own.

    Args:
        num_merged: patches that merge in each of the first blocks.
        across, within: shares of all tokens that merge between clips, and inside one.
    """

    def __init__(
        self,
        width: int,
        num_blocks: int,
        groups: tuple[int, ...],
        *,
        num_merged: int,
        across: float = 0.3,
        within: float = 0.1,
    ) -> None:
        super().__init__()
        if len(groups) >= num_blocks:
            raise ConfigError(
                f"{len(groups)} groups of frames need more than {len(groups)} blocks, the vision "
                f"tower has {num_blocks}; give fewer frame_groups"
            )
        self.groups = groups
        self.first = num_blocks - 1 - len(groups)
        self.num_merged, self.across, self.within = num_merged, across, within
        counts = [math.prod(groups[index:]) for index in range(len(groups))]
        self.positions = nn.ParameterList(
            nn.Parameter(torch.zeros(count, width)) for count in counts
        )

    def forward(
        self, tower: VisionTower, frames: Tensor
    ) -> tuple[Float[Tensor, "videos frames dim"], list[int]]:
        """The class token of every frame, projected, and the tokens of a video after each block."""
        num_videos, num_frames = frames.shape[:2]
        tokens = tower.embed(frames.flatten(0, 1))
        if tower.frame_embedding is not None:
            tokens = place_in_time(tokens, tower.frame_embedding, num_frames)
        # Half precision could not count as many patches as one token may come to stand for.
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        sizes = torch.ones(tokens.shape[:2], dtype=dtype, device=tokens.device)
        state, num_class, counts = Merged(tokens, sizes), 1, []
        for index, block in enumerate(tower.blocks):
            if not isinstance(block, ResidualBlock):
                raise ConfigError("token merging needs the blocks of a CLIP tower")
            if index < self.first:
                state = self._block(block, state, num_class, num_merged=self.num_merged)
            else:
                place = index - self.first
                if place < len(self.groups):
                    group = self.groups[place]
                    state = self._join(state, place, group, num_class)
                    num_class *= group
                state = self._block(block, state, num_class, share=self.within)
            counts.append(state.tokens.shape[0] * state.tokens.shape[1] // num_videos)
        classes = state.tokens[:, :num_class].reshape(num_videos, num_frames, -1)
        return tower.project(classes), counts

    def _join(self, state: Merged, place: int, group: int, num_class: int) -> Merged:
        """Neighbouring clips as one: class tokens first, positions added, like patches merged."""
        clips, length = state.sizes.shape
        table = self.positions[place]
        placed = state.tokens + table.repeat(clips // len(table), 1)[:, None].to(state.tokens.dtype)

        def joined(values: Tensor) -> Tensor:
            parts = values.reshape(clips // group, group, length, *values.shape[2:])
            classes, patches = parts[:, :, :num_class], parts[:, :, num_class:]
            return torch.cat([classes.flatten(1, 2), patches.flatten(1, 2)], dim=1)

        metric = joined(state.tokens.detach())
        together = Merged(joined(placed), joined(state.sizes))
        num_merged = int(self.across * together.tokens.shape[1])
        return merge(together, metric, num_merged, num_class * group)

    def _block(
        self,
        block: ResidualBlock,
        state: Merged,
        num_class: int,
        *,
        num_merged: int = 0,
        share: float = 0.0,
    ) -> Merged:
        """A block of the tower with a merge between its attention and its feed-forward."""
        mixed, keys = attend(block.attention, state, block.ln_1(state.tokens))
        state = Merged(state.tokens + mixed, state.sizes)
        count = num_merged or int(share * state.tokens.shape[1])
        state = merge(state, keys, count, num_class)
        return Merged(state.tokens + block.mlp(block.ln_2(state.tokens)), state.sizes)


def spread_frames(
    mask: Bool[Tensor, "videos frames"], num_frames: int
) -> tuple[Int[Tensor, "videos spread"], Int[Tensor, "videos frames"]]:
    """Which frame goes to each of ``num_frames`` places, and at which place each frame stands.

    Real frames alone, evenly, some of them twice where there are fewer.
    """
    count = mask.sum(dim=1, keepdim=True).clamp(min=1)
    places = torch.arange(num_frames, device=mask.device)[None]
    wanted = places * count // num_frames  # which real frame
    order = mask.cumsum(dim=1) - 1
    real_first = (~mask).long().argsort(dim=1, stable=True)
    chosen = real_first.take_along_dim(wanted.expand(len(mask), -1), dim=1)
    back = (order.clamp(min=0) * num_frames + count - 1) // count
    return chosen, back.clamp(max=num_frames - 1)
