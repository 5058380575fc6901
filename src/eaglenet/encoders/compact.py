"""Compact towers as an encoder of texts and videos."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Abilities, TextFeatures
from eaglenet.encoders import ENCODERS, EncoderSpec
from eaglenet.encoders.base import Frames, TowerEncoder
from eaglenet.encoders.blocks import Attention, FeedForward, ResidualBlock, run_blocks
from eaglenet.encoders.clip_config import TowerConfig, VisionTowerConfig
from eaglenet.encoders.vision import (
    FirstTokens,
    Mask,
    MergedPatches,
    PatchEmbedding,
    Patches,
    PatchSizes,
    Pixels,
    TowerParts,
)

# The shape of a compact model: plain values, saved beside the weights.

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class CompactVisionConfig(VisionTowerConfig):
    """Image tower; defaults are a ViT-S/14 at 168 pixels."""

    image_size: int = 168
    patch_size: int = 14
    width: int = 384
    layers: int = 12
    heads: int = 6
    mlp_width: int = 1536
    norm_eps: float = 1e-6
    activation = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )

    @property
    def num_tokens(self) -> int:
        """Class token and patches of a frame."""
        return self.grid**2 + 1


@dataclass(frozen=True)
class CompactTextConfig(TowerConfig):
    """Text tower: norms after each part and attention over all tokens, as in BERT."""

    vocabulary_size: int = 30522
    context_length: int = 64
    width: int = 384
    layers: int = 6
    heads: int = 12
    mlp_width: int = 1536
    norm_eps: float = 1e-12
    activation = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < 3:
            raise ConfigError(f"context_length is {self.context_length}; expected 3 or more")


@dataclass(frozen=True)
class CompactConfig:
    """Both towers, their joint width, and the normalisation of pixels in 0..1."""

    dim: int = 384
    vision: CompactVisionConfig = field(default_factory=CompactVisionConfig)
    text: CompactTextConfig = field(default_factory=CompactTextConfig)
    pixel_mean: tuple[float, float, float] = IMAGENET_MEAN
    pixel_std: tuple[float, float, float] = IMAGENET_STD


def _initialise(tower: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of a new tower from ``generator``."""
    for name, parameter in tower.named_parameters():
        if parameter.ndim > 1 or name == "class_embedding":
            nn.init.normal_(parameter, std=0.02, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


# The compact text tower: a few blocks like BERT's over word pieces.


class CompactBlock(nn.Module):
    """x = ln_1(x + attention(x)), then x = ln_2(x + mlp(x))."""

    def __init__(self, config: CompactTextConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads)
        self.ln_1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = FeedForward(config.width, config.mlp_width, "gelu")
        self.ln_2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = 0.0
        """Dropout rate of each branch in training."""

    def forward(
        self,
        words: Float[Tensor, "texts words width"],
        *,
        mask: Bool[Tensor, "texts 1 1 words"] | None = None,
    ) -> Float[Tensor, "texts words width"]:
        words = self.ln_1(words + self._drop(self.attention(words, mask=mask)))
        result: Tensor = self.ln_2(words + self._drop(self.mlp(words)))
        return result

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout) if self.training and self.dropout else branch


class CompactText(nn.Module):
    """Encodes token ids to vectors in the joint space; the vector of a text is their mean."""

    def __init__(self, config: CompactTextConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        # `initialise` draws the values: on the meta device this would import torch's compiler, 1 s.
        self.embedding = nn.Embedding.from_pretrained(
            torch.empty(config.vocabulary_size, config.width), freeze=False
        )
        self.positional_embedding = nn.Parameter(torch.zeros(config.context_length, config.width))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.blocks = nn.ModuleList(CompactBlock(config) for _ in range(config.layers))
        self.projection = nn.Linear(config.width, dim, bias=False)
        self.gradient_checkpointing = 0

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Return vectors of all positions, including padding."""
        result: Tensor = self.projection(self.states(ids, mask))
        return result

    def states(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words width"]:
        """Return the outputs of the last block, before the projection."""
        tokens = self.embedding(ids) + self.positional_embedding[: ids.shape[1]]
        words: Tensor = self.norm(tokens)
        return run_blocks(self, words, mask=mask[:, None, None, :])

    def read(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"], *, words: bool
    ) -> TextFeatures:
        """Return one vector per text; with ``words``, also one per token."""
        if not words:
            # Columns that are padding in every text have no effect, but take as long as tokens.
            max_length = int(mask.any(dim=0).sum())
            ids, mask = ids[:, :max_length], mask[:, :max_length]
        vectors = self(ids, mask)
        sentence = self.pool(vectors, mask)
        if not words:
            return TextFeatures(sentence=sentence)
        return TextFeatures(sentence=sentence, words=vectors, words_mask=mask)

    def pool(
        self, words: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts dim"]:
        """Return the vector of each text, given those of its tokens."""
        return mean_of_words(words, mask)

    initialise = _initialise


def mean_of_words(
    words: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]
) -> Float[Tensor, "texts dim"]:
    """Return the mean of the real tokens of each text."""
    weights = mask.to(words.dtype)[..., None]
    return (words * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


# The compact image tower: a ViT with scaled residual branches.


class ScaledBlock(ResidualBlock):
    """x + scale_1 attention(ln_1(x)), then x + scale_2 mlp(ln_2(x)), with a scale per channel."""

    def __init__(self, config: CompactVisionConfig) -> None:
        super().__init__(config)
        self.scale_1 = nn.Parameter(torch.ones(config.width))
        self.scale_2 = nn.Parameter(torch.ones(config.width))
        self.drop_path = 0.0
        """Fraction of images whose branch is dropped in training (stochastic depth)."""

    def add_attention(
        self, tokens: Float[Tensor, "*batch width"], output: Float[Tensor, "*batch width"]
    ) -> Float[Tensor, "*batch width"]:
        return tokens + self._drop(self.scale_1 * output)

    def add_mlp(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        result: Tensor = tokens + self._drop(self.scale_2 * self.mlp(self.ln_2(tokens)))
        return result

    def _drop(self, branch: Tensor) -> Tensor:
        if not self.training or not self.drop_path:
            return branch
        ones = [1] * (branch.ndim - 1)
        is_real = torch.rand(len(branch), *ones, device=branch.device) >= self.drop_path
        return branch * is_real.to(branch.dtype) / (1 - self.drop_path)


class CompactVision(TowerParts):
    """Encodes frames: embed, blocks, norm, projection.

    frame = W [class; mean of patches]. With W = [A, B] this is the mean over patches of
    A class + B patch. ``patches`` returns these vectors: they are in the joint space, and their
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
        self.patch_embedding = PatchEmbedding(config, mean, std)
        self.class_embedding = nn.Parameter(torch.zeros(config.width))
        # The bias of the patch projection is part of the position embeddings.
        self.positional_embedding = nn.Parameter(torch.zeros(config.grid**2 + 1, config.width))
        self.blocks = nn.ModuleList(ScaledBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.projection = nn.Linear(2 * config.width, dim, bias=False)
        self.gradient_checkpointing = 0
        self.patch_dropout = 0.0
        """Fraction of patches dropped in training."""

    def forward(
        self,
        pixels: Pixels,
        *,
        num_frames: int = 1,
        frame_mask: Mask | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images tokens dim"]:
        """Return the vector of each frame, with ``patches`` followed by its patches, row by row.

        Only token shift uses ``num_frames`` and ``frame_mask``, the mask of real frames.
        """
        tokens = self.embed(pixels)
        if self.training and self.patch_dropout:
            tokens = drop_patches(tokens, self.patch_dropout)
        tokens = self.norm(run_blocks(self, tokens, num_frames=num_frames, frame_mask=frame_mask))
        whole, patches_only = tokens[:, :1], tokens[:, 1:]
        if not patches:
            result: Tensor = self.projection(
                torch.cat([whole, patches_only.mean(dim=1, keepdim=True)], dim=-1)
            )
            return result
        vectors = self.projection(torch.cat([whole.expand_as(patches_only), patches_only], dim=-1))
        return torch.cat([vectors.mean(dim=1, keepdim=True), vectors], dim=1)

    def read_video(
        self, first: FirstTokens, patches: Patches, mask: Mask
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        """Return W [class; mean of patches], over all real frames and for each frame."""
        first, each = self.norm(first), self.norm(patches).mean(dim=2)
        weights = mask.to(each.dtype) / mask.sum(dim=1, keepdim=True).clamp_min(1)
        together = torch.cat([first, (weights[:, None] @ each)], dim=-1)
        frames = torch.cat([first.expand_as(each), each], dim=-1)
        return self.projection(together)[:, 0], self.projection(frames)

    def read_merged(
        self, first: FirstTokens, patches: MergedPatches, sizes: PatchSizes
    ) -> Float[Tensor, "clips firsts dim"]:
        """Return W [class; mean of the clip's patches, weighted by their sizes] for each frame.

        The mean over a clip is W [mean of classes; mean of patches], as without merging.
        """
        weights = (sizes / sizes.sum(dim=1, keepdim=True)).to(patches.dtype)
        mean = weights[:, None] @ self.norm(patches)
        first = self.norm(first)
        result: Tensor = self.projection(torch.cat([first, mean.expand_as(first)], dim=-1))
        return result

    def normalise(
        self, pixels: Float[Tensor, "images 3 rows columns"]
    ) -> Float[Tensor, "images 3 rows columns"]:
        """Normalise floating-point pixels from 0 to 255, for :meth:`forward`."""
        embedding = self.patch_embedding
        mean, std = (
            torch.tensor(values, device=pixels.device).view(3, 1, 1)
            for values in (embedding.mean, embedding.std)
        )
        return (pixels / 255 - mean) / std

    initialise = _initialise


def drop_patches(
    tokens: Float[Tensor, "images tokens width"], fraction: float
) -> Float[Tensor, "images left width"]:
    """Return the class token and a random subset of the patches of each image."""
    images, count, width = tokens.shape
    num_left = max(1, round((count - 1) * (1 - fraction)))
    order = torch.rand(images, count - 1, device=tokens.device).argsort(dim=1)[:, :num_left] + 1
    patches = tokens.gather(1, order[..., None].expand(-1, -1, width))
    return torch.cat([tokens[:, :1], patches], dim=1)


def resize_positions(
    positions: Float[Tensor, "tokens width"], grid: int
) -> Float[Tensor, "other_tokens width"]:
    """Resize the position embeddings of a square grid (bicubic, antialiased)."""
    side = round((len(positions) - 1) ** 0.5)
    square = positions[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    new_grid = F.interpolate(square, (grid, grid), mode="bicubic", antialias=True)
    return torch.cat([positions[:1], new_grid.flatten(2)[0].T])


LOGIT_SCALE = 3.0
"""Initial natural logarithm of the factor on cosines."""


class CompactEncoder(TowerEncoder):
    """Encodes a frame as the mean of its patches, a text as the mean of its tokens.

    A new encoder is random (``seed``); ``eaglenet train small`` trains one.
    """

    family = "compact"
    abilities = Abilities(words=True, patches=True, token_shift=True)
    resize = "stretch"
    config: CompactConfig
    vision: CompactVision
    text: CompactText

    def __init__(self, config: CompactConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision = CompactVision(config.vision, config.dim, config.pixel_mean, config.pixel_std)
        text = CompactText(config.text, config.dim)
        self.set_towers(config, vision, text, logit_scale=LOGIT_SCALE, seed=seed)

    def encode_frames(
        self, frames: Frames, mask: Mask | None = None, *, patches: bool = False
    ) -> Float[Tensor, "videos frames tokens dim"]:
        """Encode frames; on a CPU, padding is skipped and becomes zeros unless tokens shift."""
        if mask is None or mask.is_cuda or self._depends_on_time or bool(mask.all()):
            return super().encode_frames(frames, mask, patches=patches)
        real = super().encode_frames(frames[mask][:, None], patches=patches)[:, 0]
        result = real.new_zeros(*mask.shape, *real.shape[1:])
        result[mask] = real
        return result


ENCODERS.add(
    "compact",
    EncoderSpec(
        title="the compact towers of this project",
        config_class=CompactConfig,
        build=CompactEncoder,
    ),
)
