"""Image towers that read all frames of a video together.

:class:`SpaceTime` runs the blocks of any image tower (:class:`TowerParts`) over space and, if
wanted, over time; a video of one frame gives the vector of that image. :class:`VideoProxies`
(CLIP-ViP) adds a few tokens that see the whole video.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eaglenet.core.errors import UsageError, too_many_frames
from eaglenet.core.types import Clips, VideoFeatures
from eaglenet.encoders.blocks import Attention, ResidualBlock, Rotation, rotate
from eaglenet.encoders.vision import (
    FirstTokens,
    Mask,
    Patches,
    TowerParts,
    VisionTower,
    frame_weight,
)

TimeStart = Literal["identity", "released"]
Frames = Shaped[Tensor, "videos frames 3 rows columns"]


def need_clips(videos: Clips | VideoFeatures, name: str) -> Clips:
    """Return decoded videos; raise an error for stored features."""
    if not isinstance(videos, Clips):
        raise UsageError(
            f"{name} reads Clips, got {type(videos).__name__}; it cannot run on stored features"
        )
    return videos


def split_heads(
    tokens: Float[Tensor, "rows tokens width"], heads: int
) -> Float[Tensor, "rows heads tokens head_dim"]:
    return tokens.reshape(*tokens.shape[:2], heads, -1).transpose(1, 2)


def grouped_attention(
    attention: Attention,
    first: FirstTokens,
    tokens: Float[Tensor, "videos groups members width"],
    mask: Bool[Tensor, "videos groups members"],
    *,
    has_whole_groups: bool = False,
    rotation: Rotation | None = None,
    own_weight: Float[Tensor, "videos"] | None = None,
) -> tuple[FirstTokens, Float[Tensor, "videos groups members width"]]:
    """First tokens attend to all real tokens; a token attends to them and to its own group.

    Groups are frames (attention over space) or positions in the image (attention over time). Two
    dense calls replace one with a mask that is almost all zeros: for 12 frames of 49 patches the
    full matrix has 350,464 entries per head, these two have 33,532.

    Args:
        has_whole_groups: a group is all real or all padding, which nothing reads: no mask inside.
        rotation: rotary positions of the first tokens and of one group's members.
        own_weight: added to the score of a first token for itself.
    """
    videos, groups, members, width = tokens.shape
    count = first.shape[1]
    all_tokens = torch.cat([first, tokens.flatten(1, 2)], dim=1)
    query, key, value = attention.qkv(all_tokens).chunk(3, dim=-1)
    if rotation is not None:
        cosines, sines = (
            torch.cat([table[:count], table[count:].repeat(groups, 1)]) for table in rotation
        )
        query, key = (
            rotate(split_heads(states, attention.heads), (cosines, sines))
            .transpose(1, 2)
            .flatten(2)
            for states in (query, key)
        )
    if count:
        is_seen = torch.cat([mask.new_ones(videos, count), mask.flatten(1)], dim=1)
        if own_weight is not None:
            weights = torch.zeros_like(is_seen, dtype=query.dtype)
            weights[:, :count] = own_weight[:, None]
            is_seen = weights.masked_fill(~is_seen, float("-inf"))
        values_of_first = F.scaled_dot_product_attention(
            split_heads(query[:, :count], attention.heads),
            split_heads(key, attention.heads),
            split_heads(value, attention.heads),
            attn_mask=is_seen[:, None, None, :],
        )
        first = attention.out(values_of_first.transpose(1, 2).flatten(2))

    def with_first(states: Tensor) -> Tensor:
        first_states = states[:, None, :count].expand(-1, groups, -1, -1)
        own = states[:, count:].reshape(videos, groups, members, width)
        return split_heads(torch.cat([first_states, own], dim=2).flatten(0, 1), attention.heads)

    visible = None
    if not has_whole_groups:
        if not count:
            # A group of padding alone would attend to nothing and give NaN; nothing reads it.
            mask = mask | ~mask.any(dim=-1, keepdim=True)
        visible = torch.cat([mask.new_ones(videos, groups, count), mask], dim=2)
        visible = visible.flatten(0, 1)[:, None, None, :]
    values_of_tokens = F.scaled_dot_product_attention(
        split_heads(query[:, count:].reshape(videos * groups, members, width), attention.heads),
        with_first(key),
        with_first(value),
        attn_mask=visible,
    )
    tokens = attention.out(values_of_tokens.transpose(1, 2).flatten(2))
    return first, tokens.reshape(videos, groups, members, width)


class TimeAttention(nn.Module):
    """Attention of each patch to the same position in the other frames (Frozen in Time).

    start: ``identity`` copies the block's own attention and zeroes its output, so that a new tower
        encodes images as before and all weights learn. ``released`` is the authors' start:
        queries, keys and values 0 and an output of ones. There the gradient of queries and keys
        stays 0, so that time attention remains a mean over the frames.
    """

    def __init__(self, block: ResidualBlock, *, start: TimeStart = "identity") -> None:
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
        first: FirstTokens,
        patches: Patches,
        mask: Mask,
        *,
        own_weight: Float[Tensor, "videos"] | None = None,
    ) -> tuple[FirstTokens, Patches]:
        first, outputs = grouped_attention(
            self.attention,
            self.norm(first),
            self.norm(patches).transpose(1, 2),
            mask[:, None].expand(-1, patches.shape[2], -1),
            own_weight=own_weight,
        )
        return first, outputs.transpose(1, 2)


class SpaceTime(nn.Module):
    r"""Weights that a video tower adds to an image tower; the image tower stays in the encoder.

    With time attention a block is Frozen's, whose residual of space leaves time out:

    .. math:: y = x + \mathrm{Time}(\mathrm{LN}_3 x), \quad
        z = x + \mathrm{Space}(\mathrm{LN}_1 y), \quad
        \mathrm{out} = z + \mathrm{MLP}(\mathrm{LN}_2 z)

    Without it (BridgeFormer) y = x, and nothing is added at all.

    A tower without a class token (SigLIP) combines frames only in time attention and in its head.
    Rotary positions (PE-Core) apply to attention over space; over time all positions are equal.

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
        self.time: nn.ModuleList | None = None
        if time is not None:
            blocks = (TimeAttention(block, start=time) for block in tower.blocks)  # type: ignore[arg-type]
            self.time = nn.ModuleList(blocks)

    def embed(self, tower: TowerParts, frames: Frames) -> tuple[FirstTokens, Patches]:
        """Inputs of the first block: one class token per video, and all patches of all frames."""
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
        frames: Frames,
        mask: Mask,
    ) -> tuple[FirstTokens, Patches]:
        """Last hidden states."""
        first, patches = self.embed(tower, frames)
        own_weight = frame_weight(mask) if tower.counts_frames else None
        rotation = tower.turn(patches.dtype)
        for index, block in enumerate(tower.blocks):
            first_inputs, inputs = first, patches
            if self.time is not None:
                over_time = self.time[index](first, patches, mask, own_weight=own_weight)
                first_inputs, inputs = first + over_time[0], patches + over_time[1]
            first_outputs, outputs = grouped_attention(
                block.attention,  # type: ignore[arg-type]
                block.ln_1(first_inputs),  # type: ignore[operator]
                block.ln_1(inputs),  # type: ignore[operator]
                mask[..., None].expand(-1, -1, patches.shape[2]),
                has_whole_groups=True,
                rotation=rotation,
                own_weight=own_weight,
            )
            first = block.finish(first, first_outputs)  # type: ignore[operator]
            patches = block.finish(patches, outputs)  # type: ignore[operator]
        return first, patches

    def encode(self, tower: TowerParts, videos: Clips | VideoFeatures) -> VideoFeatures:
        """Videos and frames as the tower's head reads them (:meth:`TowerParts.read_video`)."""
        clips = need_clips(videos, "a tower over space and time")
        device = tower.positional_embedding.device
        mask = clips.mask.to(device)
        pixels = clips.frames.to(device, non_blocking=True)
        first, patches = self(tower, pixels, mask)
        video, frames = tower.read_video(first, patches, mask)
        return VideoFeatures(frames=frames, mask=mask, video=video)


def proxy_block(
    block: ResidualBlock, proxies: FirstTokens, patches: Patches, mask: Mask
) -> tuple[FirstTokens, Patches]:
    """Block of CLIP in which proxies attend to all real frames, patches to their own frame."""
    is_real = mask[..., None].expand(-1, -1, patches.shape[2])
    mixed_proxies, mixed_patches = grouped_attention(
        block.attention, block.ln_1(proxies), block.ln_1(patches), is_real, has_whole_groups=True
    )
    return block.finish(proxies, mixed_proxies), block.finish(patches, mixed_patches)


@dataclass(frozen=True)
class EncodedVideo:
    """Features of videos, and the proxies as they left the last block."""

    features: VideoFeatures
    proxies: Float[Tensor, "videos proxies width"]


class VideoProxies(nn.Module):
    """Proxy tokens and a table of frame positions, which CLIP-ViP adds to CLIP's vision tower.

    The tower stays in the encoder; ``forward`` runs a video through it.

    Args:
        num_added: proxies beside the class token, which is the first proxy.
        num_positions: rows of the frame table, which starts at zero (CLIP-ViP: 12, stretched
            linearly over more or fewer frames).
    """

    def __init__(self, width: int, *, num_added: int = 3, num_positions: int = 12) -> None:
        super().__init__()
        self.added = nn.Parameter(torch.randn(num_added, width))
        self.frame_positions = nn.Parameter(torch.zeros(num_positions, width))

    def frame_embedding(self, mask: Mask) -> Float[Tensor, "videos frames width"]:
        """The table stretched linearly over the valid frames of each video.

        By valid frames and not by the width of the batch, so that padding changes nothing. Frame
        ``o`` of ``n`` reads row ``(o + 1/2) T / n - 1/2`` of the ``T``, held inside the table.
        """
        rows = len(self.frame_positions)
        order = (mask.cumsum(dim=1) - 1).clamp(min=0)
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        # bfloat16 has 8 bits: too coarse for positions between the rows of a long table.
        dtype = torch.promote_types(self.frame_positions.dtype, torch.float32)
        position = ((order.to(dtype) + 0.5) * rows / count - 0.5).clamp(0, rows - 1)
        low = position.floor().long()
        high = (low + 1).clamp(max=rows - 1)
        fraction = (position - low).to(self.frame_positions.dtype)[..., None]
        return torch.lerp(self.frame_positions[low], self.frame_positions[high], fraction)

    def embed(
        self,
        tower: VisionTower,
        frames: Frames,
        mask: Mask,
    ) -> tuple[FirstTokens, Patches]:
        """Inputs of the first block. All proxies stand at the class token's position."""
        patches = tower.patch_embedding(frames.flatten(0, 1)) + tower.positional_embedding[1:]
        patches = patches.reshape(*mask.shape, *patches.shape[1:])
        patches = patches + self.frame_embedding(mask)[:, :, None, :]
        proxies = torch.cat([tower.class_embedding[None], self.added])
        proxies = (proxies + tower.positional_embedding[0]).expand(len(mask), -1, -1)
        return tower.ln_pre(proxies), tower.ln_pre(patches)

    def forward(
        self,
        tower: VisionTower,
        frames: Frames,
        mask: Mask,
    ) -> tuple[FirstTokens, Patches]:
        """Last hidden states of the proxies (class token first) and of the patches."""
        proxies, patches = self.embed(tower, frames, mask)
        for index, block in enumerate(tower.blocks):
            step = functools.partial(proxy_block, block)  # type: ignore[arg-type]
            is_checkpointed = index < tower.gradient_checkpointing and tower.training
            if is_checkpointed and torch.is_grad_enabled():
                proxies, patches = checkpoint(
                    step, proxies, patches, mask, use_reentrant=False, preserve_rng_state=False
                )
            else:
                proxies, patches = step(proxies, patches, mask)
        return proxies, patches

    def encode(
        self, tower: VisionTower, videos: Clips | VideoFeatures, *, all_frames: bool = False
    ) -> EncodedVideo:
        """Clips to features: the class token is the video, a frame the mean of its patches.

        ``all_frames`` lets padded frames be seen, as the official code does.
        """
        clips = need_clips(videos, "a tower with video proxies")
        device = self.added.device
        mask = clips.mask.to(device)
        frames = clips.frames.to(device, non_blocking=True)
        proxies, patches = self(tower, frames, torch.ones_like(mask) if all_frames else mask)
        features = VideoFeatures(
            frames=tower.project(patches).mean(dim=2), mask=mask, video=tower.project(proxies[:, 0])
        )
        return EncodedVideo(features, proxies)
