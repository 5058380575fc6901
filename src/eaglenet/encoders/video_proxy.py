"""CLIP-ViP's video tower: a few proxy tokens see the whole video, patches see their frame."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Clips, VideoFeatures
from eaglenet.encoders.blocks import Attention, ResidualBlock
from eaglenet.encoders.vision import VisionTower


def split_heads(
    tokens: Float[Tensor, "rows tokens width"], heads: int
) -> Float[Tensor, "rows heads tokens head_dim"]:
    return tokens.reshape(*tokens.shape[:2], heads, -1).transpose(1, 2)


def proxy_attention(
    attention: Attention,
    proxies: Float[Tensor, "videos proxies width"],
    patches: Float[Tensor, "videos frames patches width"],
    mask: Bool[Tensor, "videos frames"],
) -> tuple[Float[Tensor, "videos proxies width"], Float[Tensor, "videos frames patches width"]]:
    """Proxies attend to everything valid; patches to the proxies and to their own frame.

    Two dense calls instead of one over a mask that is almost all zeros: for 12 frames of 49
    patches the full matrix has 350,464 entries a head, these two have 33,532.
    """
    num_videos, num_frames, num_patches, width = patches.shape
    num_proxies = proxies.shape[1]
    joined = torch.cat([proxies, patches.flatten(1, 2)], dim=1)
    query, key, value = attention.qkv(joined).chunk(3, dim=-1)

    everything = mask.repeat_interleave(num_patches, dim=1)
    everything = torch.cat([everything.new_ones(num_videos, num_proxies), everything], dim=1)
    mixed_proxies = F.scaled_dot_product_attention(
        split_heads(query[:, :num_proxies], attention.heads),
        split_heads(key, attention.heads),
        split_heads(value, attention.heads),
        attn_mask=everything[:, None, None, :],
    )

    def with_proxies(states: Tensor) -> Tensor:
        """Keys of each frame: the proxies, then its own patches."""
        shared = states[:, None, :num_proxies].expand(-1, num_frames, -1, -1)
        own = states[:, num_proxies:].reshape(num_videos, num_frames, num_patches, width)
        return split_heads(torch.cat([shared, own], dim=2).flatten(0, 1), attention.heads)

    patch_queries = query[:, num_proxies:].reshape(num_videos * num_frames, num_patches, width)
    mixed_patches = F.scaled_dot_product_attention(
        split_heads(patch_queries, attention.heads), with_proxies(key), with_proxies(value)
    )
    proxies = attention.out(mixed_proxies.transpose(1, 2).flatten(2))
    patches = attention.out(mixed_patches.transpose(1, 2).flatten(2))
    return proxies, patches.reshape(num_videos, num_frames, num_patches, width)


def proxy_block(
    block: ResidualBlock,
    proxies: Float[Tensor, "videos proxies width"],
    patches: Float[Tensor, "videos frames patches width"],
    mask: Bool[Tensor, "videos frames"],
) -> tuple[Float[Tensor, "videos proxies width"], Float[Tensor, "videos frames patches width"]]:
    """A CLIP block with its own weights, but proxy-guided attention."""
    mixed_proxies, mixed_patches = proxy_attention(
        block.attention, block.ln_1(proxies), block.ln_1(patches), mask
    )
    proxies, patches = proxies + mixed_proxies, patches + mixed_patches
    return (
        proxies + block.mlp(block.ln_2(proxies)),
        patches + block.mlp(block.ln_2(patches)),
    )


def freeze_frame_embedding(tower: VisionTower) -> None:
    """A tower's own frame positions, where it has any, are not read beside those of CLIP-ViP."""
    if tower.frame_embedding is not None:
        tower.frame_embedding.requires_grad_(False)


def unit_videos(features: VideoFeatures) -> Float[Tensor, "videos dim"]:
    """The class token that saw the whole video, as a unit vector."""
    if features.video is None:
        raise ConfigError(
            "video features without a video vector: make them with encode_video of a method "
            "with video proxies"
        )
    return F.normalize(features.video, dim=-1)


@dataclass(frozen=True)
class EncodedVideo:
    """Features of videos, and the proxies as they left the last block."""

    features: VideoFeatures
    proxies: Float[Tensor, "videos proxies width"]


class VideoProxies(nn.Module):
    """What CLIP-ViP adds to a vision tower: proxy tokens and a table of frame positions.

    Holds no part of the tower, which stays the encoder's; ``forward`` runs a video through it.

    Args:
        num_added: proxies beside the class token, which is the first proxy.
        num_positions: rows of the frame table, which starts at zero (CLIP-ViP: 12, stretched
            linearly over more or fewer frames).
    """

    def __init__(self, width: int, *, num_added: int = 3, num_positions: int = 12) -> None:
        super().__init__()
        self.added = nn.Parameter(torch.randn(num_added, width))
        self.frame_positions = nn.Parameter(torch.zeros(num_positions, width))

    def frame_embedding(
        self, mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames width"]:
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
        frames: UInt8[Tensor, "videos frames 3 rows columns"]
        | Float[Tensor, "videos frames 3 rows columns"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos proxies width"], Float[Tensor, "videos frames patches width"]]:
        """What the first block takes. All proxies stand at the class token's position."""
        patches = tower.patch_embedding(frames.flatten(0, 1)) + tower.positional_embedding[1:]
        patches = patches.reshape(*mask.shape, *patches.shape[1:])
        patches = patches + self.frame_embedding(mask)[:, :, None, :]
        proxies = torch.cat([tower.class_embedding[None], self.added])
        proxies = (proxies + tower.positional_embedding[0]).expand(len(mask), -1, -1)
        return tower.ln_pre(proxies), tower.ln_pre(patches)

    def forward(
        self,
        tower: VisionTower,
        frames: UInt8[Tensor, "videos frames 3 rows columns"]
        | Float[Tensor, "videos frames 3 rows columns"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos proxies width"], Float[Tensor, "videos frames patches width"]]:
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
        if not isinstance(videos, Clips):
            raise UsageError(
                f"a tower with video proxies reads Clips, got {type(videos).__name__}; "
                "it cannot run on frozen features"
            )
        device = self.added.device
        mask = videos.mask.to(device)
        frames = videos.frames.to(device, non_blocking=True)
        proxies, patches = self(tower, frames, torch.ones_like(mask) if all_frames else mask)
        features = VideoFeatures(
            frames=tower.project(patches).mean(dim=2), mask=mask, video=tower.project(proxies[:, 0])
        )
        return EncodedVideo(features, proxies)
