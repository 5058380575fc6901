"""Image towers: shared parts, and CLIP's ViT."""

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
"""uint8, or normalised floats."""
Mask = Bool[Tensor, "videos frames"]
FirstTokens = Float[Tensor, "videos firsts width"]
"""Tokens that attend to the whole video: the class token, proxies, or none."""
Patches = Float[Tensor, "videos frames patches width"]
MergedPatches = Float[Tensor, "clips merged width"]
PatchSizes = Float[Tensor, "clips merged"]
"""Number of patches in each merged patch."""


def check_size(pixels: Pixels, size: int) -> None:
    """Refuse frames that are not ``size`` x ``size``."""
    if pixels.shape[-2:] != (size, size):
        raise UsageError(
            f"frames are {pixels.shape[-2]} x {pixels.shape[-1]}, this tower takes "
            f"{size} x {size}; decode with FrameSpec(size={size})"
        )


class TemporalStem(nn.Module):
    """CLIP4Clip's stem: the outer slices of a convolution over three frames.

    The middle slice is the patch projection of the tower. The outer ones start at zero, so a new
    stem changes nothing. Missing and padded neighbours are zeros, CLIP's mean colour.
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
        """Return the contribution of neighbours to each projected patch, from normalised pixels."""
        videos = patches.reshape(-1, num_frames, *patches.shape[1:])
        if frame_mask is not None:
            videos = videos.masked_fill(~frame_mask.to(videos.device)[..., None, None], 0.0)
        from_before = F.pad(self.before(videos[:, :-1]), (0, 0, 0, 0, 1, 0))
        from_after = F.pad(self.after(videos[:, 1:]), (0, 0, 0, 0, 0, 1))
        return (from_before + from_after).flatten(0, 1)


def _zero_copy(linear: nn.Linear) -> nn.Linear:
    """Return a layer of the same shape, device and precision with zeros as weights."""
    copy = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    copy.weight = nn.Parameter(linear.weight.detach().new_zeros(linear.weight.shape))
    return copy


class TowerParts(nn.Module):
    """Image tower that can encode frames together (:mod:`eaglenet.encoders.video_tower`).

    Its blocks have ``ln_1``, ``attention`` and ``finish``, which calls ``add_attention`` and then
    ``add_mlp``. The first token of a video is the class token, if the tower has one.

    counts_frames: the class token has the weight of one token per frame, so a repeated image is
        encoded like the image. In CLIP's tower it counts as one token, as in the papers.
    """

    counts_frames = True
    config: Any
    blocks: nn.ModuleList
    patch_embedding: nn.Module
    class_embedding: nn.Parameter | None
    positional_embedding: nn.Parameter

    def first_tokens(self) -> Float[Tensor, "firsts width"]:
        """Return the class token with its position, if any, before :meth:`pre_normalise`."""
        positions = self.positional_embedding[: -(self.config.grid**2)]
        return positions if self.class_embedding is None else self.class_embedding + positions

    def patches_with_positions(self, pixels: Pixels) -> Float[Tensor, "images patches width"]:
        """Return patches with their positions, before :meth:`pre_normalise`."""
        patches: Tensor = self.patch_embedding(pixels)
        return patches + self.positional_embedding[-patches.shape[1] :]

    def pre_normalise(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Normalise tokens for the first block."""
        return tokens

    def embed(
        self, pixels: Pixels, num_frames: int = 1, frame_mask: Mask | None = None
    ) -> Float[Tensor, "images tokens width"]:
        """Return the inputs of the first block: the class token, if any, and patches row by row."""
        tokens = self.embed_patches(pixels, num_frames, frame_mask)
        if self.class_embedding is not None:
            first = self.class_embedding.to(tokens.dtype).expand(len(tokens), 1, -1)
            tokens = torch.cat([first, tokens], dim=1)
        return self.pre_normalise(tokens + self.positional_embedding)

    def embed_patches(
        self, pixels: Pixels, num_frames: int, frame_mask: Mask | None
    ) -> Float[Tensor, "images patches width"]:
        """Return patches without positions."""
        patches: Tensor = self.patch_embedding(pixels)
        return patches

    def rotary_tables(self, dtype: torch.dtype) -> Rotation | None:
        """Return the rotary positions of the first token and of the patches of a frame, if any."""
        return None

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        """Shift tokens in time in exactly these blocks (numbered from 0)."""
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
        """Return the vectors of videos, from their real frames, and of each frame."""


class PooledVisionTower(TowerParts):
    """An image tower with one vector per frame: embed, blocks, ln_post, attention pooling."""

    ln_post: nn.LayerNorm
    pooling: AttentionPooling

    def project(self, vectors: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch dim"]:
        """Project to the joint width."""
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
        tokens = run_blocks(self, tokens, rotation=self.rotary_tables(tokens.dtype))
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
    """Pool by attention all real patches of each video, and the patches of each frame."""
    video_tokens = torch.cat([first, patches.flatten(1, 2)], dim=1)
    is_real = mask.repeat_interleave(patches.shape[2], dim=1)
    bias = torch.zeros(is_real.shape, device=is_real.device)
    bias = bias.masked_fill(~is_real, torch.finfo(bias.dtype).min)
    own = frame_weight(mask)[:, None].expand(-1, first.shape[1])
    video: Tensor = pooling(video_tokens, torch.cat([own, bias], dim=1))
    first_tokens = first[:, None].expand(-1, mask.shape[1], -1, -1)
    frames: Tensor = pooling(torch.cat([first_tokens, patches], dim=2).flatten(0, 1))
    return video, frames.unflatten(0, mask.shape)


def frame_weight(mask: Mask) -> Float[Tensor, "videos"]:
    """Return log n, to add to the score of a token that represents one in each of n real frames."""
    return mask.sum(dim=1).clamp_min(1).float().log()


class PatchEmbedding(nn.Module):
    """Cuts images into patches, normalises the pixels, and projects each patch.

    Equals a convolution whose stride is the size of its kernel. uint8 pixels become
    (x / 255 - mean) / std; floating-point pixels must be normalised.
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
        # On a real device, even if the model is built on "meta".
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
        # A cast to bf16 must not round the statistics, which would change pixels by 0.4%.
        self._set_statistics(self.scale.device)
        return self

    def forward(self, pixels: Pixels) -> Float[Tensor, "images patches channels"]:
        result: Tensor = self.projection(self.cut(pixels))
        return result

    def cut(self, pixels: Pixels) -> Float[Tensor, "images patches pixels"]:
        """Return the normalised pixels of each patch, in the order of a convolution's kernel."""
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
        """Project to the joint width, without normalising."""
        result: Tensor = self.projection(self.ln_post(tokens))
        return result

    def pre_normalise(
        self, tokens: Float[Tensor, "*batch channels"]
    ) -> Float[Tensor, "*batch channels"]:
        result: Tensor = self.ln_pre(tokens)
        return result

    def read_video(
        self, first: FirstTokens, patches: Patches, mask: Mask
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        """Return the class token of each video, and the mean projected patch of each frame."""
        return self.project(first[:, 0]), self.project(patches).mean(dim=2)

    def read_merged(
        self, first: FirstTokens, patches: MergedPatches, sizes: PatchSizes
    ) -> Float[Tensor, "clips firsts dim"]:
        """Return the vector of each frame: its class token, regardless of the patches."""
        return self.project(first)

    def forward(
        self,
        pixels: Pixels,
        *,
        num_frames: int = 1,
        frame_mask: Mask | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images tokens dim"]:
        """Return the projected class token of each image; with ``patches``, all tokens.

        ``images`` are videos times ``num_frames``, in order, which matters only for token shift,
        frame positions and a temporal stem. ``frame_mask`` marks the real frames for token shift
        and the stem.
        """
        tokens = self.embed(pixels, num_frames, frame_mask)
        if self.frame_embedding is not None:
            tokens = add_frame_positions(tokens, self.frame_embedding, num_frames)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            # Only the class token is used after the last block. Not computing the other outputs
            # saves 6% of the work of a 12-block tower.
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
        """Add a :class:`TemporalStem`, which has no effect before it is trained."""
        self.temporal_stem = TemporalStem(self.patch_embedding.projection)

    def initialise(self, generator: torch.Generator) -> None:
        deviation = self.config.width**-0.5
        weights: list[Any] = [self.class_embedding, self.positional_embedding]
        weights += [] if self.frame_embedding is None else [self.frame_embedding]
        weights += [self.patch_embedding.projection.weight, self.projection.weight]
        for weight in weights:
            nn.init.normal_(weight, std=deviation, generator=generator)
        initialise_blocks(self.blocks, generator)


def add_frame_positions(
    tokens: Float[Tensor, "images tokens channels"],
    positions: Float[Tensor, "positions channels"],
    num_frames: int,
) -> Float[Tensor, "images tokens channels"]:
    """Add to all tokens of a frame the position embedding of the frame in its video."""
    if num_frames > len(positions):
        raise too_many_frames(num_frames, len(positions), "frame_positions")
    videos = tokens.reshape(-1, num_frames, *tokens.shape[1:])
    return (videos + positions[:num_frames, None]).flatten(0, 1)
