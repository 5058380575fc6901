"""Image towers that encode all frames of a video together.

:class:`SpaceTime` runs the blocks of any image tower (:class:`TowerParts`) over space and, as an
option, over time; a video of one frame has the vector of that image. :class:`VideoProxies`
(CLIP-ViP) adds a few tokens that attend to the whole video.
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


def require_clips(videos: Clips | VideoFeatures, name: str) -> Clips:
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
    """Let first tokens attend to all real tokens, and other tokens to them and their own group.

    Groups are frames (attention over space) or positions in the image (attention over time). Two
    dense calls replace one with a mask of almost only zeros: for 12 frames of 49 patches the full
    matrix has 350,464 entries per head, these two have 33,532.

    Args:
        has_whole_groups: each group is all real or all padding, so no mask is needed inside it.
        rotation: rotary positions of the first tokens and of the members of a group.
        own_weight: number added to the score of a first token for itself.
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
            # A group of padding would attend to nothing and give NaN; its output is not used.
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

    start: ``identity`` copies the attention of the block and sets its output to zero, so a new
        tower encodes images as before and all weights learn. ``released`` starts like the
        authors' code: queries, keys and values of zero, and an output of ones. The gradient of
        queries and keys then stays 0, and time attention remains a mean over frames.
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
    r"""Weights that a video tower adds to an image tower, which stays in the encoder.

    With time attention, a block is that of Frozen in Time, where space is added to x, not to y:

    .. math:: y = x + \mathrm{Time}(\mathrm{LN}_3 x), \quad
        z = x + \mathrm{Space}(\mathrm{LN}_1 y), \quad
        \mathrm{out} = z + \mathrm{MLP}(\mathrm{LN}_2 z)

    Without it (BridgeFormer), y = x, and there are no additional weights.

    A tower without a class token (SigLIP) combines frames only in time attention and in its head.
    Rotary positions (PE-Core) apply to attention over space; over time, all positions are equal.

    Args:
        time: initial weights of time attention; None for a tower without it.
        num_positions: number of frame position embeddings, which start at zero; 0 for none.
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
        """Return the inputs of the first block: one class token per video, and all patches."""
        videos, count = frames.shape[:2]
        patches = tower.patches_with_positions(frames.flatten(0, 1))
        patches = patches.reshape(videos, count, *patches.shape[1:])
        if self.frame_positions is not None:
            if count > len(self.frame_positions):
                raise too_many_frames(count, len(self.frame_positions))
            patches = patches + self.frame_positions[:count, None]
        first = tower.first_tokens().expand(videos, -1, -1)
        return tower.pre_normalise(first), tower.pre_normalise(patches)

    def forward(
        self,
        tower: TowerParts,
        frames: Frames,
        mask: Mask,
    ) -> tuple[FirstTokens, Patches]:
        """Return the last hidden states."""
        first, patches = self.embed(tower, frames)
        own_weight = frame_weight(mask) if tower.counts_frames else None
        rotation = tower.rotary_tables(patches.dtype)
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
        """Encode videos and their frames (:meth:`TowerParts.read_video`)."""
        clips = require_clips(videos, "a tower over space and time")
        device = tower.positional_embedding.device
        mask = clips.mask.to(device)
        pixels = clips.frames.to(device, non_blocking=True)
        first, patches = self(tower, pixels, mask)
        video, frames = tower.read_video(first, patches, mask)
        return VideoFeatures(frames=frames, mask=mask, video=video)


def proxy_block(
    block: ResidualBlock, proxies: FirstTokens, patches: Patches, mask: Mask
) -> tuple[FirstTokens, Patches]:
    """Run a block of CLIP; proxies attend to all real frames, patches to their own frame."""
    is_real = mask[..., None].expand(-1, -1, patches.shape[2])
    proxy_outputs, patch_outputs = grouped_attention(
        block.attention, block.ln_1(proxies), block.ln_1(patches), is_real, has_whole_groups=True
    )
    return block.finish(proxies, proxy_outputs), block.finish(patches, patch_outputs)


@dataclass(frozen=True)
class EncodedVideo:
    """Features of videos, and the proxies after the last block."""

    features: VideoFeatures
    proxies: Float[Tensor, "videos proxies width"]


class VideoProxies(nn.Module):
    """Proxy tokens and frame position embeddings, which CLIP-ViP adds to CLIP's vision tower.

    The tower stays in the encoder; ``forward`` encodes videos with it.

    Args:
        num_added: number of proxies in addition to the class token, the first proxy.
        num_positions: number of frame position embeddings, which start at zero (CLIP-ViP: 12,
            interpolated linearly for more or fewer frames).
    """

    def __init__(self, width: int, *, num_added: int = 3, num_positions: int = 12) -> None:
        super().__init__()
        self.added = nn.Parameter(torch.randn(num_added, width))
        self.frame_positions = nn.Parameter(torch.zeros(num_positions, width))

    def frame_embedding(self, mask: Mask) -> Float[Tensor, "videos frames width"]:
        """Interpolate the frame positions linearly over the real frames of each video.

        Padding has no effect. Frame ``o`` of ``n`` gets position ``(o + 1/2) T / n - 1/2`` of
        ``T``, limited to the range of the positions.
        """
        rows = len(self.frame_positions)
        order = (mask.cumsum(dim=1) - 1).clamp(min=0)
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        # The 8 bits of bfloat16 are too coarse for positions in a long table.
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
        """Return the inputs of the first block. All proxies have the class token's position."""
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
        """Return the last hidden states of the proxies (class token first) and of the patches."""
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
        """Encode a video as its class token, a frame as the mean of its patches.

        ``all_frames`` makes tokens attend to padded frames, too, as in the official code.
        """
        clips = require_clips(videos, "a tower with video proxies")
        device = self.added.device
        mask = clips.mask.to(device)
        frames = clips.frames.to(device, non_blocking=True)
        proxies, patches = self(tower, frames, torch.ones_like(mask) if all_frames else mask)
        features = VideoFeatures(
            frames=tower.project(patches).mean(dim=2), mask=mask, video=tower.project(proxies[:, 0])
        )
        return EncodedVideo(features, proxies)
