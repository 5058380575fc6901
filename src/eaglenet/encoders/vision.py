"""Image towers: the parts all share, and CLIP's ViT."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError, too_many_frames
from eaglenet.encoders.blocks import (
    AttentionPooling,
    Rotation,
    initialise_blocks,
    make_blocks,
    run_block,
    run_blocks,
    shift_stride,
)
from eaglenet.encoders.clip_config import VisionConfig, VisionTowerConfig

Pixels = Shaped[Tensor, "images 3 rows columns"]
"""uint8, or floats that are normalised already."""
Mask = Bool[Tensor, "videos frames"]
FirstTokens = Float[Tensor, "videos firsts width"]
"""Tokens that see the whole video: the class token, proxies, or none."""
Patches = Float[Tensor, "videos frames patches width"]
MergedPatches = Float[Tensor, "clips merged width"]
PatchSizes = Float[Tensor, "clips merged"]
"""Number of patches that each merged patch stands for."""

# CLIP4Clip's stem over three frames: each patch is combined with those before and after it.


def check_size(pixels: Pixels, size: int) -> None:
    """Refuse frames that are not ``size`` x ``size``."""
    if pixels.shape[-2:] != (size, size):
        raise UsageError(
            f"frames are {pixels.shape[-2]} x {pixels.shape[-1]}, this tower takes "
            f"{size} x {size}; decode with FrameSpec(size={size})"
        )


class TemporalStem(nn.Module):
    """Outer slices of a convolution over three frames, whose middle is the tower's own patch map.

    Both start at zero, so a new stem changes nothing. Beyond the ends of a video and in padded
    frames, neighbours are zeros, CLIP's mean colour.
    """

    def __init__(self, middle: nn.Linear) -> None:
        super().__init__()
        self.before, self.after = _zero_copy(middle), _zero_copy(middle)

    def forward(
        self,
        patches: Float[Tensor, "images patches pixels"],
        num_frames: int,
        frame_mask: Mask | None = None,
    ) -> Float[Tensor, "images patches channels"]:
        """Return what the neighbours add to each projected patch, from normalised pixels."""
        videos = patches.reshape(-1, num_frames, *patches.shape[1:])
        if frame_mask is not None:
            videos = videos.masked_fill(~frame_mask.to(videos.device)[..., None, None], 0.0)
        from_before = F.pad(self.before(videos[:, :-1]), (0, 0, 0, 0, 1, 0))
        from_after = F.pad(self.after(videos[:, 1:]), (0, 0, 0, 0, 0, 1))
        return (from_before + from_after).flatten(0, 1)


def _zero_copy(linear: nn.Linear) -> nn.Linear:
    """Return a map of the same shape, device and precision, all zeros."""
    copy = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    copy.weight = nn.Parameter(linear.weight.detach().new_zeros(linear.weight.shape))
    return copy


class TowerParts(nn.Module):
    """An image tower whose frames can be read together (:mod:`eaglenet.encoders.video_tower`).

    Its blocks have ``ln_1``, ``attention`` and ``finish``, which is ``add_attention`` and then
    ``add_mlp``. A video has one first token, the class token, or none if the tower has none.

    counts_frames: the class token is weighted like one token per frame, so that a repeated image
        is encoded like the image. In CLIP's tower it counts as one token, as in the papers.
    """

    counts_frames = True
    config: Any
    blocks: nn.ModuleList
    patch_embedding: nn.Module
    class_embedding: nn.Parameter | None
    positional_embedding: nn.Parameter

    def first_tokens(self) -> Float[Tensor, "firsts width"]:
        """Class token with its position, or nothing, before :meth:`enter`."""
        positions = self.positional_embedding[: -(self.config.grid**2)]
        return positions if self.class_embedding is None else self.class_embedding + positions

    def place_patches(self, pixels: Pixels) -> Float[Tensor, "images patches width"]:
        """Patches with their positions, before :meth:`enter`."""
        patches: Tensor = self.patch_embedding(pixels)
        return patches + self.positional_embedding[-patches.shape[1] :]

    def enter(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Normalise tokens for the first block."""
        return tokens

    def embed(
        self, pixels: Pixels, num_frames: int = 1, frame_mask: Mask | None = None
    ) -> Float[Tensor, "images tokens width"]:
        """Inputs of the first block: the class token, if there is one, then patches row by row."""
        tokens = self.embed_patches(pixels, num_frames, frame_mask)
        if self.class_embedding is not None:
            first = self.class_embedding.to(tokens.dtype).expand(len(tokens), 1, -1)
            tokens = torch.cat([first, tokens], dim=1)
        return self.enter(tokens + self.positional_embedding)

    def embed_patches(
        self, pixels: Pixels, num_frames: int, frame_mask: Mask | None
    ) -> Float[Tensor, "images patches width"]:
        """Patches before their positions are added."""
        patches: Tensor = self.patch_embedding(pixels)
        return patches

    def turn(self, dtype: torch.dtype) -> Rotation | None:
        """Rotary positions of the first token and of one frame's patches."""
        return None

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        """Shift tokens in time in these blocks (from 0) and in no other."""
        wrong = [index for index in blocks if not 0 <= index < len(self.blocks)]
        if wrong:
            raise ConfigError(
                f"token shift in blocks {wrong}: this tower has blocks 0 to {len(self.blocks) - 1}"
            )
        if blocks:
            shift_stride(self.config.num_tokens)
        for index, block in enumerate(self.blocks):
            block.token_shift = index in blocks  # type: ignore[assignment]

    @abstractmethod
    def read_video(
        self, first: FirstTokens, patches: Patches, mask: Mask
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        """Return vectors of the videos, from real frames only, and of each frame."""


class PooledVisionTower(TowerParts):
    """An image tower with one vector per frame: embed, blocks, ln_post, attention pooling."""

    ln_post: nn.LayerNorm
    pooling: AttentionPooling

    def project(self, vectors: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch dim"]:
        """Into the joint width."""
        return vectors

    def forward(
        self,
        pixels: Pixels,
        *,
        num_frames: int = 1,
        frame_mask: Mask | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images 1 dim"]:
        tokens = self.embed(pixels)
        tokens = run_blocks(self, tokens, rotation=self.turn(tokens.dtype))
        return self.project(self.pooling(self.ln_post(tokens)))[:, None]

    def read_video(
        self, first: FirstTokens, patches: Patches, mask: Mask
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        first, patches = self.ln_post(first), self.ln_post(patches)
        video, frames = pool_video(self.pooling, first, patches, mask)
        return self.project(video), self.project(frames)


def pool_video(
    pooling: AttentionPooling, first: FirstTokens, patches: Patches, mask: Mask
) -> tuple[Float[Tensor, "videos width"], Float[Tensor, "videos frames width"]]:
    """Pool all real patches of a video by attention, and those of each frame."""
    every = torch.cat([first, patches.flatten(1, 2)], dim=1)
    is_real = mask.repeat_interleave(patches.shape[2], dim=1)
    bias = torch.zeros(is_real.shape, device=is_real.device)
    bias = bias.masked_fill(~is_real, torch.finfo(bias.dtype).min)
    own = frame_weight(mask)[:, None].expand(-1, first.shape[1])
    video: Tensor = pooling(every, torch.cat([own, bias], dim=1))
    first_tokens = first[:, None].expand(-1, mask.shape[1], -1, -1)
    each: Tensor = pooling(torch.cat([first_tokens, patches], dim=2).flatten(0, 1))
    return video, each.unflatten(0, mask.shape)


def frame_weight(mask: Mask) -> Float[Tensor, "videos"]:
    """log n: added to the score of a token that represents one in each of n real frames."""
    return mask.sum(dim=1).clamp_min(1).float().log()


class PatchEmbedding(nn.Module):
    """Cut images into patches, normalise the pixels, project each patch.

    A convolution whose stride is its kernel, written as the matrix product it is. uint8 pixels
    become (x / 255 - mean) / std; floating-point pixels are taken as normalised already.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        config: VisionTowerConfig,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.grid = config.grid
        self.image_size = config.image_size
        self.mean, self.std = mean, std
        self.projection = nn.Linear(3 * config.patch_size**2, config.width, bias=bias)
        # A real device even where the model is first built on "meta".
        self._set_statistics(torch.device("cpu"))

    def _set_statistics(self, device: torch.device) -> None:
        area = self.patch_size**2
        mean = torch.tensor(self.mean, dtype=torch.float64, device="cpu")
        std = torch.tensor(self.std, dtype=torch.float64, device="cpu")
        scale = (1 / (255 * std)).repeat_interleave(area)
        shift = (-mean / std).repeat_interleave(area)
        self.register_buffer("scale", scale.float().to(device), persistent=False)
        self.register_buffer("shift", shift.float().to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PatchEmbedding:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # A cast to bf16 or fp16 must not round the statistics: 0.4% of every pixel.
        self._set_statistics(self.scale.device)
        return self

    def forward(self, pixels: Pixels) -> Float[Tensor, "images patches channels"]:
        result: Tensor = self.projection(self.cut(pixels))
        return result

    def cut(self, pixels: Pixels) -> Float[Tensor, "images patches pixels"]:
        """Normalised pixels of each patch, flattened as a convolution's kernel is."""
        size, side, grid = self.image_size, self.patch_size, self.grid
        check_size(pixels, size)
        pixels = pixels[..., : grid * side, : grid * side]
        patches = pixels.reshape(len(pixels), 3, grid, side, grid, side)
        # [images, row, column, channel, y, x]
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        if not pixels.is_floating_point():
            patches = torch.addcmul(self.shift, patches, self.scale)
        return patches.to(self.projection.weight.dtype)


class VisionTower(TowerParts):
    """CLIP's image tower: embed, blocks, ln_post, projection."""

    counts_frames = False
    patch_embedding: PatchEmbedding
    class_embedding: nn.Parameter

    def __init__(
        self, config: VisionConfig, dim: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = PatchEmbedding(config, mean, std)
        self.temporal_stem: TemporalStem | None = None
        self.class_embedding = nn.Parameter(torch.zeros(config.width))
        self.positional_embedding = nn.Parameter(torch.zeros(config.num_tokens, config.width))
        self.frame_embedding = (
            nn.Parameter(torch.zeros(config.frame_positions, config.width))
            if config.frame_positions
            else None
        )
        self.ln_pre = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.blocks = make_blocks(config)
        self.ln_post = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.projection = nn.Linear(config.width, dim, bias=False)
        self.gradient_checkpointing = 0

    def embed_patches(
        self, pixels: Pixels, num_frames: int, frame_mask: Mask | None
    ) -> Float[Tensor, "images patches width"]:
        pixels_of_patches = self.patch_embedding.cut(pixels)
        patches: Tensor = self.patch_embedding.projection(pixels_of_patches)
        if self.temporal_stem is not None:
            patches = patches + self.temporal_stem(pixels_of_patches, num_frames, frame_mask)
        return patches

    def project(self, tokens: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch dim"]:
        """Into the joint width, not normalised."""
        result: Tensor = self.projection(self.ln_post(tokens))
        return result

    def enter(self, tokens: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch channels"]:
        result: Tensor = self.ln_pre(tokens)
        return result

    def read_video(
        self, first: FirstTokens, patches: Patches, mask: Mask
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        """The class token is the video, a frame the mean of its projected patches."""
        return self.project(first[:, 0]), self.project(patches).mean(dim=2)

    def read_merged(
        self, first: FirstTokens, patches: MergedPatches, sizes: PatchSizes
    ) -> Float[Tensor, "clips firsts dim"]:
        """Return the vector of each frame: its class token, whatever patches were merged."""
        return self.project(first)

    def forward(
        self,
        pixels: Pixels,
        *,
        num_frames: int = 1,
        frame_mask: Mask | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images tokens dim"]:
        """Return projected tokens: the class token alone, or with ``patches`` all, it first.

        ``images`` are videos times ``num_frames``, in order. Only token shift, frame positions and
        a temporal stem use that, and only token shift and the stem use ``frame_mask``, the mask of
        real frames.
        """
        tokens = self.embed(pixels, num_frames, frame_mask)
        if self.frame_embedding is not None:
            tokens = place_in_time(tokens, self.frame_embedding, num_frames)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            # Nothing but the class token is read after the last block: its other outputs, 6% of
            # the work of a 12-block tower, need not be computed.
            num_queries = 1 if index == last and not patches else None
            tokens = run_block(
                block,
                tokens,
                is_checkpointed=index < self.gradient_checkpointing and self.training,
                num_frames=num_frames,
                frame_mask=frame_mask,
                num_queries=num_queries,
            )
        return self.project(tokens if patches else tokens[:, :1])

    def add_temporal_stem(self) -> None:
        """Add a :class:`TemporalStem`; nothing changes until it is trained."""
        self.temporal_stem = TemporalStem(self.patch_embedding.projection)

    def initialise(self, generator: torch.Generator) -> None:
        deviation = self.config.width**-0.5
        weights: list[Any] = [self.class_embedding, self.positional_embedding]
        weights += [] if self.frame_embedding is None else [self.frame_embedding]
        weights += [self.patch_embedding.projection.weight, self.projection.weight]
        for weight in weights:
            nn.init.normal_(weight, std=deviation, generator=generator)
        initialise_blocks(self.blocks, generator)


def place_in_time(
    tokens: Float[Tensor, "images tokens channels"],
    positions: Float[Tensor, "positions channels"],
    num_frames: int,
) -> Float[Tensor, "images tokens channels"]:
    """Add the position of a frame in its video to all its tokens."""
    if num_frames > len(positions):
        raise too_many_frames(num_frames, len(positions), "frame_positions")
    videos = tokens.reshape(-1, num_frames, *tokens.shape[1:])
    return (videos + positions[:num_frames, None]).flatten(0, 1)
