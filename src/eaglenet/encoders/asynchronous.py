"""RAP's vision tower: frozen blocks whose features are modulated in time, and looked at askew.

Read from the abstract and summaries alone: ranks, places and the form of offsets are our choice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.encoders.blocks import Attention, ResidualBlock
from eaglenet.encoders.video_proxy import split_heads
from eaglenet.encoders.vision import VisionTower, place_in_time


class LowRankModulation(nn.Module):
    """``F' = (1 + A_s B_s) F + A_c B_c`` over frames and channels; ``B`` starts at 0: identity."""

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
    """The patches most like their frame's class token also attend to patches of other moments.

    Slot ``k`` of the kept patches offers its key and value as they are ``time_offset[k]`` frames
    later and ``patch_offset[k]`` patches further, between whole ones by linear interpolation; the
    result is added with a learned gate.
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
        """What is added to the attention's output; ``count`` real frames come first."""
        chosen = self._choose(tokens)  # [videos, frames, kept], places among the patches
        warped = self._warp(tokens, chosen, count)
        own = tokens[:, :, 1:].take_along_dim(chosen[..., None], dim=2)
        width = tokens.shape[-1]
        query = F.linear(own, attention.qkv.weight[:width], attention.qkv.bias[:width])
        key, value = F.linear(
            warped, attention.qkv.weight[width:], attention.qkv.bias[width:]
        ).chunk(2, dim=-1)
        query, key, value = (
            split_heads(part.flatten(0, 1), attention.heads) for part in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        added = attention.out(mixed.transpose(1, 2).flatten(2)).unflatten(0, tokens.shape[:2])
        places = (chosen + 1)[..., None].expand_as(added)
        return torch.zeros_like(tokens).scatter(2, places, self.gate * added.to(tokens.dtype))

    def _choose(
        self, tokens: Float[Tensor, "videos frames tokens width"]
    ) -> Int[Tensor, "videos frames kept"]:
        unit = F.normalize(tokens.detach(), dim=-1)
        likeness = (unit[:, :, 1:] * unit[:, :, :1]).sum(dim=-1)
        return likeness.topk(self.num_kept, dim=-1).indices.sort(dim=-1).values

    def _warp(
        self,
        tokens: Float[Tensor, "videos frames tokens width"],
        chosen: Int[Tensor, "videos frames kept"],
        count: Int[Tensor, "videos"],
    ) -> Float[Tensor, "videos frames kept width"]:
        """Tokens at ``(m + time_offset, p + patch_offset)``, held inside video and frame."""
        frames, patches = tokens.shape[1], tokens.shape[2] - 1
        last = (count - 1).clamp(min=0)[:, None, None]
        moment = torch.arange(frames, device=tokens.device)[None, :, None] + self.time_offset
        moment = torch.minimum(moment.clamp(min=0), last.to(moment.dtype))
        place = (chosen + self.patch_offset).clamp(0, patches - 1)
        flat = tokens[:, :, 1:].flatten(1, 2)
        total = torch.zeros((), dtype=tokens.dtype, device=tokens.device)
        for early in (True, False):
            frame = moment.detach().floor() if early else moment.detach().floor() + 1
            by_time = 1 - (moment - frame).abs()
            for left in (True, False):
                patch = place.detach().floor() if left else place.detach().floor() + 1
                weight = by_time * (1 - (place - patch).abs())
                index = torch.minimum(frame.long(), last) * patches
                index = (index + patch.long().clamp(max=patches - 1)).flatten(1)
                taken = flat.take_along_dim(index[..., None], dim=1).unflatten(1, chosen.shape[1:])
                total = total + weight[..., None].to(taken.dtype) * taken
        return total


class AsynchronousTower(nn.Module):
    """What RAP adds to a vision tower: a modulation after every block, askew attention in the last.

    Args:
        num_asynchronous: of how many of the last blocks but one.
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
        kept = min(num_kept, config.num_tokens - 1)
        # Not in the very last block, after which nothing reads patches.
        self.first = max(config.layers - 1 - num_asynchronous, 0)
        self.askew = nn.ModuleList(
            AsynchronousAttention(kept) for _ in range(config.layers - 1 - self.first)
        )

    def forward(
        self, tower: VisionTower, frames: Tensor, mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        """The class token of every frame, projected. Real frames come first."""
        num_videos, num_frames = mask.shape
        most = len(self.modulations[0].scale_time)  # type: ignore[arg-type]
        if num_frames > most:
            raise too_many_frames(num_frames, most)
        tokens = tower.embed(frames.flatten(0, 1))
        if tower.frame_embedding is not None:
            tokens = place_in_time(tokens, tower.frame_embedding, num_frames)
        count = mask.sum(dim=1)
        for index, block in enumerate(tower.blocks):
            if not isinstance(block, ResidualBlock):
                raise ConfigError("rap needs the blocks of a CLIP tower")
            normed = block.ln_1(tokens)
            mixed = block.attention(normed)
            if self.first <= index < len(tower.blocks) - 1:
                apart = normed.unflatten(0, (num_videos, num_frames))
                askew = self.askew[index - self.first](block.attention, apart, count)
                mixed = mixed + askew.flatten(0, 1)
            tokens = tokens + mixed
            tokens = tokens + block.mlp(block.ln_2(tokens))
            apart = tokens.unflatten(0, (num_videos, num_frames))
            tokens = self.modulations[index](apart).flatten(0, 1)
        return tower.project(tokens[:, 0]).unflatten(0, (num_videos, num_frames))  # type: ignore[no-any-return]


def real_first(
    mask: Bool[Tensor, "videos frames"],
) -> tuple[Int[Tensor, "videos frames"], Int[Tensor, "videos frames"]]:
    """An order with real frames before padded ones, and the way back."""
    order = (~mask).long().argsort(dim=1, stable=True)
    return order, order.argsort(dim=1)
