"""The image tower: a ViT that gives every frame a class token and patch tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.encoders.blocks import initialise_blocks, make_blocks, run_block
from eaglenet.encoders.config import VisionConfig
from eaglenet.encoders.temporal_stem import TemporalStem
from eaglenet.encoders.token_shift import shift_stride
from eaglenet.encoders.tower_parts import TowerParts
from eaglenet.errors import ConfigError, UsageError, too_many_frames


@runtime_checkable
class PatchGrid(Protocol):
    """How a tower cuts images; ``grid`` patches along one side."""

    @property
    def image_size(self) -> int: ...

    @property
    def patch_size(self) -> int: ...

    @property
    def grid(self) -> int: ...

    @property
    def width(self) -> int: ...


class PatchEmbedding(nn.Module):
    """Cut images into patches, normalise the pixels, project each patch.

    A convolution whose stride is its kernel, written as the matrix product it is. uint8 pixels
    become (x / 255 - mean) / std; floating-point pixels are taken as normalised already.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        config: PatchGrid,
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

    def forward(
        self, pixels: Shaped[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images patches channels"]:
        result: Tensor = self.projection(self.cut(pixels))
        return result

    def cut(
        self, pixels: Shaped[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images patches pixels"]:
        """Normalised pixels of each patch, flattened as a convolution's kernel is."""
        size, side, grid = self.image_size, self.patch_size, self.grid
        if pixels.shape[-2:] != (size, size):
            raise UsageError(
                f"frames are {pixels.shape[-2]} x {pixels.shape[-1]}, this tower takes "
                f"{size} x {size}; decode with FrameSpec(size={size})"
            )
        pixels = pixels[..., : grid * side, : grid * side]
        patches = pixels.reshape(len(pixels), 3, grid, side, grid, side)
        # [images, row, column, channel, y, x]
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        if not pixels.is_floating_point():
            patches = torch.addcmul(self.shift, patches, self.scale)
        return patches.to(self.projection.weight.dtype)


class VisionTower(TowerParts):
    """Frames to projected tokens: embed, blocks, ln_post, projection."""

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

    def embed(
        self,
        pixels: Shaped[Tensor, "images 3 height width"],
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
    ) -> Float[Tensor, "images tokens channels"]:
        """What the first block takes: class token, then patches row by row, with positions."""
        cut = self.patch_embedding.cut(pixels)
        patches = self.patch_embedding.projection(cut)
        if self.temporal_stem is not None:
            patches = patches + self.temporal_stem(cut, num_frames, frame_mask)
        class_token = self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        tokens = torch.cat([class_token, patches], dim=1) + self.positional_embedding
        result: Tensor = self.ln_pre(tokens)
        return result

    def project(self, tokens: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch dim"]:
        """Into the joint width, not normalised."""
        result: Tensor = self.projection(self.ln_post(tokens))
        return result

    def enter(self, tokens: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch channels"]:
        result: Tensor = self.ln_pre(tokens)
        return result

    def read_video(
        self,
        first: Float[Tensor, "videos 1 channels"],
        patches: Float[Tensor, "videos frames patches channels"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        """The class token is the video, a frame the mean of its projected patches."""
        return self.project(first[:, 0]), self.project(patches).mean(dim=2)

    def forward(
        self,
        pixels: Shaped[Tensor, "images 3 height width"],
        *,
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images tokens dim"]:
        """Projected tokens: the class token alone, or with ``patches`` all, class token first.

        ``images`` are videos times ``num_frames``, in order; only token shift, frame positions and
        a temporal stem look at that, and only token shift and the stem at ``frame_mask``: which
        frames are real.
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
        """See patches with the frames before and after; nothing changes until it is trained."""
        self.temporal_stem = TemporalStem(self.patch_embedding.projection)

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
    """Add to all tokens of a frame where in its video it is."""
    if num_frames > len(positions):
        raise too_many_frames(num_frames, len(positions), "frame_positions")
    videos = tokens.reshape(-1, num_frames, *tokens.shape[1:])
    return (videos + positions[:num_frames, None]).flatten(0, 1)
