"""The compact image tower: a ViT that can pool its patches once, early."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.encoders.blocks import Attention, FeedForward, run_block
from eaglenet.encoders.compact.config import CompactVisionConfig
from eaglenet.encoders.config import VisionConfig
from eaglenet.encoders.tower_parts import TowerParts
from eaglenet.encoders.vision import PatchEmbedding


class ScaledBlock(nn.Module):
    """x + scale_1 attention(ln_1(x)), then x + scale_2 mlp(ln_2(x)), scales a channel each."""

    def __init__(self, config: CompactVisionConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config.width, config.heads)
        self.scale_1 = nn.Parameter(torch.ones(config.width))
        self.ln_2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = FeedForward(config.width, config.mlp_width, "gelu")
        self.scale_2 = nn.Parameter(torch.ones(config.width))
        self.drop_path = 0.0
        """Share of images for which training leaves a branch out (stochastic depth)."""

    def forward(
        self, tokens: Float[Tensor, "images tokens width"]
    ) -> Float[Tensor, "images tokens width"]:
        return self.finish(tokens, self.attention(self.ln_1(tokens)))

    def finish(
        self, tokens: Float[Tensor, "*batch width"], attended: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        """What follows attention: both residual sums."""
        tokens = tokens + self._kept(self.scale_1 * attended)
        result: Tensor = tokens + self._kept(self.scale_2 * self.mlp(self.ln_2(tokens)))
        return result

    def _kept(self, branch: Tensor) -> Tensor:
        if not self.training or not self.drop_path:
            return branch
        ones = [1] * (branch.ndim - 1)
        kept = torch.rand(len(branch), *ones, device=branch.device) >= self.drop_path
        return branch * kept.to(branch.dtype) / (1 - self.drop_path)


class CompactVision(TowerParts):
    """Frames to one vector each: embed, blocks, pool 2 x 2 patches between them, norm, project.

    frame = W [class; mean of patches]. Split as W = [A, B] this is the mean over patches of
    A class + B patch, which is what ``patches`` gives: vectors of places in the joint space whose
    mean is the frame.
    """

    patch_embedding: PatchEmbedding
    class_embedding: nn.Parameter

    def __init__(
        self,
        config: CompactVisionConfig,
        dim: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
    ) -> None:
        super().__init__()
        self.config = config
        shape = VisionConfig(
            image_size=config.image_size,
            patch_size=config.patch_size,
            width=config.width,
            heads=config.heads,
        )
        self.patch_embedding = PatchEmbedding(shape, mean, std)
        self.class_embedding = nn.Parameter(torch.zeros(config.width))
        # The bias of the patch projection is a part of the patches' positions.
        self.positional_embedding = nn.Parameter(torch.zeros(config.grid**2 + 1, config.width))
        self.blocks = nn.ModuleList(ScaledBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.projection = nn.Linear(2 * config.width, dim, bias=False)
        self.gradient_checkpointing = 0
        self.patch_dropout = 0.0
        """Share of patches that training leaves out, where patches are not pooled."""

    def forward(
        self,
        pixels: Shaped[Tensor, "images 3 height width"],
        *,
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images tokens dim"]:
        """The frame alone, or with ``patches`` the frame and then its places, row by row.

        Every frame is a picture by itself: which video it belongs to does not matter here.
        """
        embedded = self.patch_embedding(pixels)
        first = self.class_embedding.to(embedded.dtype).expand(len(embedded), 1, -1)
        tokens = torch.cat([first, embedded], dim=1) + self.positional_embedding
        if self.training and self.patch_dropout and not self.config.pool_after:
            tokens = leave_out_patches(tokens, self.patch_dropout)
        for index, block in enumerate(self.blocks):
            if index == self.config.pool_after and index:
                tokens = pool_patches(tokens, self.config.grid)
            tokens = run_block(
                block, tokens, is_checkpointed=self.training and index < self.gradient_checkpointing
            )
        tokens = self.norm(tokens)
        whole, patches_only = tokens[:, :1], tokens[:, 1:]
        if not patches:
            result: Tensor = self.projection(
                torch.cat([whole, patches_only.mean(dim=1, keepdim=True)], dim=-1)
            )
            return result
        vectors = self.projection(torch.cat([whole.expand_as(patches_only), patches_only], dim=-1))
        return torch.cat([vectors.mean(dim=1, keepdim=True), vectors], dim=1)

    def before_block(
        self, index: int, patches: Float[Tensor, "videos frames patches width"]
    ) -> Float[Tensor, "videos frames kept width"]:
        is_here = index and index == self.config.pool_after
        return pool_squares(patches, self.config.grid) if is_here else patches

    def read_video(
        self,
        first: Float[Tensor, "videos 1 width"],
        patches: Float[Tensor, "videos frames patches width"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        """W [class; mean of patches], over the real frames and over each."""
        first, each = self.norm(first), self.norm(patches).mean(dim=2)
        shares = mask.to(each.dtype) / mask.sum(dim=1, keepdim=True).clamp_min(1)
        together = torch.cat([first, (shares[:, None] @ each)], dim=-1)
        frames = torch.cat([first.expand_as(each), each], dim=-1)
        return self.projection(together)[:, 0], self.projection(frames)

    def normalise(
        self, pixels: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images 3 height width"]:
        """What :meth:`forward` takes, of floating-point pixels in 0..255."""
        embedding = self.patch_embedding
        mean, std = (
            torch.tensor(values, device=pixels.device).view(3, 1, 1)
            for values in (embedding.mean, embedding.std)
        )
        return (pixels / 255 - mean) / std

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights of a new tower, by the generator alone."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1 or name == "class_embedding":
                nn.init.normal_(parameter, std=0.02, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def pool_patches(
    tokens: Float[Tensor, "images tokens width"], grid: int
) -> Float[Tensor, "images pooled width"]:
    """The class token, and the mean of each 2 x 2 patches."""
    return torch.cat([tokens[:, :1], pool_squares(tokens[:, 1:], grid)], dim=1)


def pool_squares(
    patches: Float[Tensor, "*batch patches width"], grid: int
) -> Float[Tensor, "*batch pooled width"]:
    """The mean of each 2 x 2 patches."""
    half = grid // 2
    squares = patches.reshape(*patches.shape[:-2], half, 2, half, 2, patches.shape[-1])
    return squares.mean(dim=(-4, -2)).flatten(-3, -2)


def leave_out_patches(
    tokens: Float[Tensor, "images tokens width"], share: float
) -> Float[Tensor, "images kept width"]:
    """The class token and a random choice of the patches, another one for each image."""
    images, count, width = tokens.shape
    kept = max(1, round((count - 1) * (1 - share)))
    order = torch.rand(images, count - 1, device=tokens.device).argsort(dim=1)[:, :kept] + 1
    chosen = tokens.gather(1, order[..., None].expand(-1, -1, width))
    return torch.cat([tokens[:, :1], chosen], dim=1)


def resize_positions(
    positions: Float[Tensor, "tokens width"], grid: int
) -> Float[Tensor, "other_tokens width"]:
    """Learnt positions of a square grid, for a grid of another size (bicubic, antialiased)."""
    side = round((len(positions) - 1) ** 0.5)
    square = positions[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(square, (grid, grid), mode="bicubic", antialias=True)
    return torch.cat([positions[:1], resized.flatten(2)[0].T])
