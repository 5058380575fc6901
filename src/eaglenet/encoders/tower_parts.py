"""An image tower in parts: what a tower over space and time puts together anew."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.encoders.attention_pooling import AttentionPooling
from eaglenet.encoders.blocks import Rotation


class TowerParts(nn.Module):
    """An image tower whose frames can be read together (:mod:`eaglenet.encoders.space_time`).

    Its blocks have ``ln_1``, ``attention`` and ``finish``. A video has one first token, the class
    token, or none where the tower has none.

    counts_frames: the class token weighs as if every frame had brought its own, so that a picture
        shown again and again looks like the picture. CLIP's weighs once, as in the papers.
    """

    counts_frames = True
    config: Any
    blocks: nn.ModuleList
    patch_embedding: nn.Module
    class_embedding: nn.Parameter | None
    positional_embedding: nn.Parameter

    def first_tokens(self) -> Float[Tensor, "firsts width"]:
        """The class token at its position, or nothing, before :meth:`enter`."""
        places = self.positional_embedding[: -(self.config.grid**2)]
        return places if self.class_embedding is None else self.class_embedding + places

    def place_patches(
        self, pixels: Shaped[Tensor, "images 3 rows columns"]
    ) -> Float[Tensor, "images patches width"]:
        """Patches at their positions, before :meth:`enter`."""
        patches: Tensor = self.patch_embedding(pixels)
        return patches + self.positional_embedding[-patches.shape[1] :]

    def enter(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """What the first block takes."""
        return tokens

    def turn(self, dtype: torch.dtype) -> Rotation | None:
        """Rotary positions of the first token and of one frame's patches."""
        return None

    def before_block(
        self, index: int, patches: Float[Tensor, "videos frames patches width"]
    ) -> Float[Tensor, "videos frames kept width"]:
        """What block ``index`` reads of the patches that the one before it gave."""
        return patches

    @abstractmethod
    def read_video(
        self,
        first: Float[Tensor, "videos firsts width"],
        patches: Float[Tensor, "videos frames patches width"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        """Vectors of the videos, which see real frames alone, and of each frame by itself."""


def pool_video(
    pooling: AttentionPooling,
    first: Float[Tensor, "videos firsts width"],
    patches: Float[Tensor, "videos frames patches width"],
    mask: Bool[Tensor, "videos frames"],
) -> tuple[Float[Tensor, "videos width"], Float[Tensor, "videos frames width"]]:
    """A head of attention over all real patches of a video, and over those of each frame."""
    every = torch.cat([first, patches.flatten(1, 2)], dim=1)
    seen = mask.repeat_interleave(patches.shape[2], dim=1)
    bias = torch.zeros(seen.shape, device=seen.device)
    bias = bias.masked_fill(~seen, torch.finfo(bias.dtype).min)
    own = frame_weight(mask)[:, None].expand(-1, first.shape[1])
    video: Tensor = pooling(every, torch.cat([own, bias], dim=1))
    shared = first[:, None].expand(-1, mask.shape[1], -1, -1)
    each: Tensor = pooling(torch.cat([shared, patches], dim=2).flatten(0, 1))
    return video, each.unflatten(0, mask.shape)


def frame_weight(mask: Bool[Tensor, "videos frames"]) -> Float[Tensor, "videos"]:
    """What is added to the score of a token that stands for one in every real frame: log n."""
    return mask.sum(dim=1).clamp_min(1).float().log()
