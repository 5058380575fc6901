"""RAP, approximate: a frozen CLIP with low-rank modulation and asynchronous attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.core.types import VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.encoders.blocks import Attention, ResidualBlock
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.low_rank import freeze_tower
from eaglenet.encoders.video_tower import require_clips, split_heads
from eaglenet.encoders.vision import VisionTower, add_frame_positions
from eaglenet.layers.masking import real_first
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import CosineMethod, TowerMethod


class LowRankModulation(nn.Module):
    """``F' = (1 + A_s B_s) F + A_c B_c`` over frames and channels; the identity at the start."""

    def __init__(self, num_frames: int, width: int, rank: int) -> None:
        super().__init__()
        self.scale_time = nn.Parameter(torch.randn(num_frames, rank) * 0.02)
        self.scale_width = nn.Parameter(torch.zeros(rank, width))
        self.shift_time = nn.Parameter(torch.randn(num_frames, rank) * 0.02)
        self.shift_width = nn.Parameter(torch.zeros(rank, width))

    def forward(
        self, tokens: Float[Tensor, "videos frames tokens width"]
    ) -> Float[Tensor, "videos frames tokens width"]:
        count = tokens.shape[1]
        scale = (self.scale_time[:count] @ self.scale_width)[None, :, None]
        shift = (self.shift_time[:count] @ self.shift_width)[None, :, None]
        return tokens * (1 + scale) + shift


class AsynchronousAttention(nn.Module):
    """Attention of the patches most similar to the class token, to patches of other frames.

    Key and value ``k`` of the selected patches are taken ``time_offset[k]`` frames later and
    ``patch_offset[k]`` patches further, by linear interpolation. The result is added with a learned
    gate.
    """

    def __init__(self, num_kept: int) -> None:
        super().__init__()
        self.num_kept = num_kept
        self.time_offset = nn.Parameter(torch.linspace(-1.0, 1.0, num_kept) * 0.5)
        self.patch_offset = nn.Parameter(torch.linspace(1.0, -1.0, num_kept) * 0.25)
        self.gate = nn.Parameter(torch.tensor(0.1))

    def forward(
        self,
        attention: Attention,
        tokens: Float[Tensor, "videos frames tokens width"],
        count: Int[Tensor, "videos"],
    ) -> Float[Tensor, "videos frames tokens width"]:
        """Return the term to add to the attention output; ``count`` real frames come first."""
        indices = self._choose(tokens)  # [videos, frames, kept], indices of patches
        neighbours = self._warp(tokens, indices, count)
        patches = tokens[:, :, 1:].take_along_dim(indices[..., None], dim=2)
        width = tokens.shape[-1]
        query = F.linear(patches, attention.qkv.weight[:width], attention.qkv.bias[:width])
        key, value = F.linear(
            neighbours, attention.qkv.weight[width:], attention.qkv.bias[width:]
        ).chunk(2, dim=-1)
        query, key, value = (
            split_heads(each.flatten(0, 1), attention.heads) for each in (query, key, value)
        )
        output = F.scaled_dot_product_attention(query, key, value)
        output = attention.out(output.transpose(1, 2).flatten(2)).unflatten(0, tokens.shape[:2])
        positions = (indices + 1)[..., None].expand_as(output)
        return torch.zeros_like(tokens).scatter(2, positions, self.gate * output.to(tokens.dtype))

    def _choose(
        self, tokens: Float[Tensor, "videos frames tokens width"]
    ) -> Int[Tensor, "videos frames kept"]:
        unit = F.normalize(tokens.detach(), dim=-1)
        similarity = (unit[:, :, 1:] * unit[:, :, :1]).sum(dim=-1)
        return similarity.topk(self.num_kept, dim=-1).indices.sort(dim=-1).values

    def _warp(
        self,
        tokens: Float[Tensor, "videos frames tokens width"],
        indices: Int[Tensor, "videos frames kept"],
        count: Int[Tensor, "videos"],
    ) -> Float[Tensor, "videos frames kept width"]:
        """Return the tokens at ``(m + time_offset, p + patch_offset)``, clamped to the video."""
        frames, patches = tokens.shape[1], tokens.shape[2] - 1
        last = (count - 1).clamp(min=0)[:, None, None]
        time = torch.arange(frames, device=tokens.device)[None, :, None] + self.time_offset
        time = torch.minimum(time.clamp(min=0), last.to(time.dtype))
        position = (indices + self.patch_offset).clamp(0, patches - 1)
        flat = tokens[:, :, 1:].flatten(1, 2)
        total = torch.zeros((), dtype=tokens.dtype, device=tokens.device)
        for is_early in (True, False):
            frame = time.detach().floor() if is_early else time.detach().floor() + 1
            by_time = 1 - (time - frame).abs()
            for is_left in (True, False):
                patch = position.detach().floor() if is_left else position.detach().floor() + 1
                weight = by_time * (1 - (position - patch).abs())
                index = torch.minimum(frame.long(), last) * patches
                index = (index + patch.long().clamp(max=patches - 1)).flatten(1)
                values = flat.take_along_dim(index[..., None], dim=1).unflatten(
                    1, indices.shape[1:]
                )
                total = total + weight[..., None].to(values.dtype) * values
        return total


class AsynchronousTower(nn.Module):
    """Vision tower with the additions of RAP: modulation and asynchronous attention.

    Args:
        num_asynchronous: number of blocks before the last one with asynchronous attention.
    """

    def __init__(
        self,
        tower: VisionTower,
        *,
        num_frames: int,
        rank: int,
        num_kept: int,
        num_asynchronous: int,
    ) -> None:
        super().__init__()
        config = tower.config
        self.modulations = nn.ModuleList(
            LowRankModulation(num_frames, config.width, rank) for _ in range(config.layers)
        )
        num_selected = min(num_kept, config.num_tokens - 1)
        # Not in the last block, whose patches nothing reads.
        self.first = max(config.layers - 1 - num_asynchronous, 0)
        self.askew = nn.ModuleList(
            AsynchronousAttention(num_selected) for _ in range(config.layers - 1 - self.first)
        )

    def forward(
        self, tower: VisionTower, frames: Tensor, mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        """Return the projected class token of every frame; real frames come first."""
        num_videos, num_frames = mask.shape
        max_frames = len(self.modulations[0].scale_time)  # type: ignore[arg-type]
        if num_frames > max_frames:
            raise too_many_frames(num_frames, max_frames)
        tokens = tower.embed(frames.flatten(0, 1))
        if tower.frame_embedding is not None:
            tokens = add_frame_positions(tokens, tower.frame_embedding, num_frames)
        count = mask.sum(dim=1)
        for index, block in enumerate(tower.blocks):
            if not isinstance(block, ResidualBlock):
                raise ConfigError("rap needs the blocks of a CLIP tower")
            states = block.ln_1(tokens)
            output = block.attention(states)
            if self.first <= index < len(tower.blocks) - 1:
                by_video = states.unflatten(0, (num_videos, num_frames))
                term = self.askew[index - self.first](block.attention, by_video, count)
                output = output + term.flatten(0, 1)
            tokens = tokens + output
            tokens = tokens + block.mlp(block.ln_2(tokens))
            by_video = tokens.unflatten(0, (num_videos, num_frames))
            tokens = self.modulations[index](by_video).flatten(0, 1)
        return tower.project(tokens[:, 0]).unflatten(0, (num_videos, num_frames))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RAPConfig(MethodConfig):
    """Settings of our interpretation of RAP.

    frozen: do not train the towers. rank: rank of the modulation. num_kept: patches per frame with
    asynchronous attention. num_asynchronous: number of blocks before the last one with
    asynchronous attention.
    """

    frozen: bool = True
    rank: int = 4
    num_kept: int = 8
    num_asynchronous: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_kept")


@register(
    RAPConfig,
    paper="RAP (Cao et al., Findings of ACL 2024)",
    checked_by="approximate from the abstract",
)
class RAP(CosineMethod, TowerMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the unit mean of unit frames of the adapted tower.

    Approximate: implemented from the abstract. The abstract selects patches by the text; here the
    class token of the frame selects them, so that videos can be encoded without a text. The text
    tower is that of CLIP, frozen.
    """

    name = "rap"
    has_video_vector = False
    config: RAPConfig

    def __init__(self, encoder: ClipEncoder, config: RAPConfig) -> None:
        super().__init__(encoder, config)
        self.tower = AsynchronousTower(
            encoder.vision,
            num_frames=config.num_frames,
            rank=config.rank,
            num_kept=config.num_kept,
            num_asynchronous=config.num_asynchronous,
        )
        self.loss = SoftmaxLoss()

    @classmethod
    def prepare(cls, config: RAPConfig, encoder: ClipEncoder) -> None:
        if config.frozen:
            freeze_tower(encoder)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        clips = require_clips(videos, self.name)
        mask = clips.mask.to(self.device)
        order, back = real_first(mask)
        frames = clips.frames.to(self.device, non_blocking=True)
        frames = frames.take_along_dim(order[..., None, None, None], dim=1)
        features = self.tower(self.encoder.vision, frames, mask.take_along_dim(order, dim=1))
        return VideoFeatures(features.take_along_dim(back[..., None], dim=1), mask)
