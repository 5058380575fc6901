"""A vision tower over whole videos: attention over space, and if wanted over time.

It starts from the weights of any of our image towers (:class:`TowerParts`), and a video of one
frame comes out as that tower's picture would.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from eaglenet.core.errors import UsageError, too_many_frames
from eaglenet.core.types import Clips, VideoFeatures
from eaglenet.encoders.blocks import Attention, ResidualBlock, Rotation, rotate
from eaglenet.encoders.compact import ScaledBlock
from eaglenet.encoders.video_proxy import split_heads
from eaglenet.encoders.vision import TowerParts, frame_weight

TimeStart = Literal["identity", "released"]


def grouped_attention(
    attention: Attention,
    first: Float[Tensor, "videos firsts width"],
    tokens: Float[Tensor, "videos groups members width"],
    mask: Bool[Tensor, "videos groups members"],
    *,
    rotation: Rotation | None = None,
    own_weight: Float[Tensor, "videos"] | None = None,
) -> tuple[Float[Tensor, "videos firsts width"], Float[Tensor, "videos groups members width"]]:
    """The class token sees everything real; a token sees the class token and its own group.

    Groups are frames (attention over space) or places in the picture (attention over time).

    Args:
        first: the class token; with ``firsts`` 0 there is none, and a token sees its group alone.
        rotation: rotary positions of the class token and of one group's members.
        own_weight: added to the class token's score for itself.
    """
    videos, groups, members, width = tokens.shape
    firsts = first.shape[1]
    joined = torch.cat([first, tokens.flatten(1, 2)], dim=1)
    query, key, value = attention.qkv(joined).chunk(3, dim=-1)
    if rotation is not None:
        tables = [
            torch.cat([table[:firsts], table[firsts:].repeat(groups, 1)]) for table in rotation
        ]
        query, key = (
            rotate(split_heads(states, attention.heads), (tables[0], tables[1]))
            .transpose(1, 2)
            .flatten(2)
            for states in (query, key)
        )
    if firsts:
        everything = torch.cat([mask.new_ones(videos, firsts), mask.flatten(1)], dim=1)
        if own_weight is not None:
            weights = torch.zeros_like(everything, dtype=query.dtype)
            weights[:, :firsts] = own_weight[:, None]
            everything = weights.masked_fill(~everything, float("-inf"))
        seen_by_first = F.scaled_dot_product_attention(
            split_heads(query[:, :firsts], attention.heads),
            split_heads(key, attention.heads),
            split_heads(value, attention.heads),
            attn_mask=everything[:, None, None, :],
        )
        first = attention.out(seen_by_first.transpose(1, 2).flatten(2))
    else:
        # A group of padding would see nothing at all; nobody reads what it sees.
        mask = mask | ~mask.any(dim=-1, keepdim=True)

    def with_first(states: Tensor) -> Tensor:
        shared = states[:, None, :firsts].expand(-1, groups, -1, -1)
        own = states[:, firsts:].reshape(videos, groups, members, width)
        return split_heads(torch.cat([shared, own], dim=2).flatten(0, 1), attention.heads)

    visible = torch.cat([mask.new_ones(videos, groups, firsts), mask], dim=2).flatten(0, 1)
    mixed = F.scaled_dot_product_attention(
        split_heads(query[:, firsts:].reshape(videos * groups, members, width), attention.heads),
        with_first(key),
        with_first(value),
        attn_mask=visible[:, None, None, :],
    )
    tokens = attention.out(mixed.transpose(1, 2).flatten(2))
    return first, tokens.reshape(videos, groups, members, width)


class TimeAttention(nn.Module):
    """Every patch and the same place in the other frames (Frozen in Time).

    start: ``identity`` copies the block's own attention and zeroes its output, so that a new tower
        sees pictures as before and everything can learn. ``released`` is the authors' start:
        queries, keys and values 0 and an output of ones. There the gradient of queries and keys is
        0 for ever, so that time attention stays a mean over the frames.
    """

    def __init__(
        self, block: ResidualBlock | ScaledBlock, *, start: TimeStart = "identity"
    ) -> None:
        super().__init__()
        width = block.attention.out.in_features
        self.norm = nn.LayerNorm(width, eps=block.ln_1.eps)
        self.attention = Attention(width, block.attention.heads)
        with torch.no_grad():
            if start == "released":
                for values in self.attention.qkv.parameters():
                    values.zero_()
                self.attention.out.weight.fill_(1.0)
            else:
                self.attention.qkv.load_state_dict(block.attention.qkv.state_dict())
                self.norm.load_state_dict(block.ln_1.state_dict())
                self.attention.out.weight.zero_()
            self.attention.out.bias.zero_()

    def forward(
        self,
        first: Float[Tensor, "videos firsts width"],
        patches: Float[Tensor, "videos frames patches width"],
        mask: Bool[Tensor, "videos frames"],
        *,
        own_weight: Float[Tensor, "videos"] | None = None,
    ) -> tuple[Float[Tensor, "videos firsts width"], Float[Tensor, "videos frames patches width"]]:
        across = mask[:, None].expand(-1, patches.shape[2], -1)
        first, told = grouped_attention(
            self.attention,
            self.norm(first),
            self.norm(patches).transpose(1, 2),
            across,
            own_weight=own_weight,
        )
        return first, told.transpose(1, 2)


class SpaceTime(nn.Module):
    r"""What a video tower adds to a vision tower, which stays the encoder's.

    With time attention a block is Frozen's, whose residual of space leaves time out:

    .. math:: y = x + \mathrm{Time}(\mathrm{LN}_3 x), \quad
        z = x + \mathrm{Space}(\mathrm{LN}_1 y), \quad
        \mathrm{out} = z + \mathrm{MLP}(\mathrm{LN}_2 z)

    Without it (BridgeFormer) y = x, and nothing is added at all.

    A tower without a class token (SigLIP) sees frames together over time and in its head alone.
    Rotary positions (PE-Core) turn attention over space; places of one row and column are at no
    distance, so attention over time needs none.

    Args:
        num_positions: rows of the table of frame positions, zeros at the start; 0 for none.
    """

    def __init__(
        self,
        tower: TowerParts,
        *,
        time: TimeStart | None = None,
        num_positions: int = 0,
    ) -> None:
        super().__init__()
        width = tower.config.width
        self.frame_positions = (
            nn.Parameter(torch.zeros(num_positions, width)) if num_positions else None
        )
        self.time = (
            None
            if time is None
            else nn.ModuleList(
                TimeAttention(block, start=time)  # type: ignore[arg-type]
                for block in tower.blocks
            )
        )

    def embed(
        self,
        tower: TowerParts,
        frames: UInt8[Tensor, "videos frames 3 rows columns"]
        | Float[Tensor, "videos frames 3 rows columns"],
    ) -> tuple[Float[Tensor, "videos firsts width"], Float[Tensor, "videos frames patches width"]]:
        """What the first block takes: one class token a video, and every patch of every frame."""
        videos, count = frames.shape[:2]
        patches = tower.place_patches(frames.flatten(0, 1))
        patches = patches.reshape(videos, count, *patches.shape[1:])
        if self.frame_positions is not None:
            if count > len(self.frame_positions):
                raise too_many_frames(count, len(self.frame_positions))
            patches = patches + self.frame_positions[:count, None]
        first = tower.first_tokens().expand(videos, -1, -1)
        return tower.enter(first), tower.enter(patches)

    def forward(
        self,
        tower: TowerParts,
        frames: UInt8[Tensor, "videos frames 3 rows columns"]
        | Float[Tensor, "videos frames 3 rows columns"],
        mask: Bool[Tensor, "videos frames"],
        *,
        kept: list[Tensor] | None = None,
    ) -> tuple[Float[Tensor, "videos firsts width"], Float[Tensor, "videos frames patches width"]]:
        """Last hidden states; ``kept`` takes the patches that each block was given."""
        first, patches = self.embed(tower, frames)
        own_weight = frame_weight(mask) if tower.counts_frames else None
        rotation = tower.turn(patches.dtype)
        for index, block in enumerate(tower.blocks):
            patches = tower.before_block(index, patches)
            whole = mask[..., None].expand(-1, -1, patches.shape[2])
            if kept is not None:
                kept.append(patches)
            seen_first, seen = first, patches
            if self.time is not None:
                told_first, told = self.time[index](first, patches, mask, own_weight=own_weight)
                seen_first, seen = first + told_first, patches + told
            mixed_first, mixed = grouped_attention(
                block.attention,  # type: ignore[arg-type]
                block.ln_1(seen_first),  # type: ignore[operator]
                block.ln_1(seen),  # type: ignore[operator]
                whole,
                rotation=rotation,
                own_weight=own_weight,
            )
            first = block.finish(first, mixed_first)  # type: ignore[operator]
            patches = block.finish(patches, mixed)  # type: ignore[operator]
        return first, patches

    def encode(
        self,
        tower: TowerParts,
        videos: Clips | VideoFeatures,
        *,
        kept: list[Tensor] | None = None,
    ) -> VideoFeatures:
        """Videos and frames as the tower's head reads them (:meth:`TowerParts.read_video`)."""
        clips = need_clips(videos)
        device = tower.positional_embedding.device
        mask = clips.mask.to(device)
        shown = clips.frames.to(device, non_blocking=True)
        first, patches = self(tower, shown, mask, kept=kept)
        video, frames = tower.read_video(first, patches, mask)
        return VideoFeatures(frames=frames, mask=mask, video=video)


def need_clips(videos: Clips | VideoFeatures) -> Clips:
    """Frames as decoded, which a tower over whole videos reads."""
    if not isinstance(videos, Clips):
        raise UsageError(
            f"a tower over space and time reads Clips, got {type(videos).__name__}; it cannot run "
            "on frozen features"
        )
    return videos
