"""A ResNet of detectron2 with BERT's token embeddings: the inputs of ClipBERT's transformer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Abilities, TextFeatures, TextStack
from eaglenet.encoders import ENCODERS, EncoderSpec
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.blocks import run_blocks
from eaglenet.encoders.clip_config import CLIP_LOGIT_SCALE, MAX_SIZES
from eaglenet.encoders.compact import IMAGENET_MEAN, mean_of_words
from eaglenet.encoders.vision import Mask, Pixels, check_size

MIN_SIZE = 64
"""Pixels along one side of a grid cell: stride 32 of the last stage, times the pooling's 2."""
FROZEN_STAGES = 1
"""Number of first stages that are not trained, like the stem."""


@dataclass(frozen=True)
class ResnetConfig:
    """Image tower; defaults are ResNet-50 at 448 pixels.

    stem_width: channels after the first convolution.
    width, bottleneck_width: channels of the first stage, outside and inside its blocks; each stage
        doubles both.
    depths: blocks per stage.
    """

    image_size: int = 448
    stem_width: int = 64
    width: int = 256
    bottleneck_width: int = 64
    depths: tuple[int, ...] = (3, 4, 6, 3)

    def __post_init__(self) -> None:
        if min(self.stem_width, self.width, self.bottleneck_width) < 1:
            raise ConfigError("stem_width, width and bottleneck_width must be 1 or more")
        if len(self.depths) != 4 or not all(
            1 <= depth <= MAX_SIZES["layers"] for depth in self.depths
        ):
            raise ConfigError(f"depths are {self.depths}; expected four numbers of 1 or more")
        if not MIN_SIZE <= self.image_size <= MAX_SIZES["image_size"]:
            raise ConfigError(f"image_size is {self.image_size}; expected {MIN_SIZE} or more")


@dataclass(frozen=True)
class WordsConfig:
    """Text tower: an embedding of ``bert-base-uncased``'s tokens."""

    vocabulary_size: int = 30522
    context_length: int = 512


@dataclass(frozen=True)
class ResnetBertConfig:
    """Both towers, and the width of tokens and of grid cells."""

    dim: int = 768
    vision: ResnetConfig = field(default_factory=ResnetConfig)
    text: WordsConfig = field(default_factory=WordsConfig)


class FrozenNorm(nn.Module):
    """Batch normalisation with fixed statistics: x * scale + shift, per channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("shift", torch.zeros(channels))

    def forward(
        self, maps: Float[Tensor, "images channels rows columns"]
    ) -> Float[Tensor, "images channels rows columns"]:
        return maps * self.scale[:, None, None] + self.shift[:, None, None]


class NormedConvolution(nn.Sequential):
    """Convolution without bias, then :class:`FrozenNorm`; stride 1 keeps the size."""

    def __init__(self, channels: int, out_channels: int, side: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(channels, out_channels, side, stride, padding=side // 2, bias=False),
            FrozenNorm(out_channels),
        )


class Bottleneck(nn.Module):
    """Block of three convolutions; the first one has the stride, as in the first ResNet."""

    def __init__(self, channels: int, inner: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.reduce = NormedConvolution(channels, inner, 1, stride)
        self.middle = NormedConvolution(inner, inner, 3)
        self.expand = NormedConvolution(inner, out_channels, 1)
        self.shortcut = (
            NormedConvolution(channels, out_channels, 1, stride)
            if channels != out_channels
            else None
        )

    def forward(
        self, maps: Float[Tensor, "images channels rows columns"]
    ) -> Float[Tensor, "images out_channels out_rows out_columns"]:
        inner = F.relu(self.middle(F.relu(self.reduce(maps))))
        residual = maps if self.shortcut is None else self.shortcut(maps)
        return F.relu(self.expand(inner) + residual)


class ResnetTower(nn.Module):
    """Encodes pixels as grid cells, row by row: ResNet, convolution, maximum over 2 x 2 cells.

    The stem and the first stage are not trained.
    """

    def __init__(self, config: ResnetConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.stem = NormedConvolution(3, config.stem_width, 7, stride=2)
        channels, blocks = config.stem_width, []
        for stage, depth in enumerate(config.depths):
            inner, width = config.bottleneck_width << stage, config.width << stage
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(Bottleneck(channels, inner, width, stride))
                channels = width
        self.blocks = nn.ModuleList(blocks)
        self.grid = nn.Conv2d(channels, dim, 3, padding=1, bias=False)
        self.gradient_checkpointing = 0
        num_frozen = sum(config.depths[:FROZEN_STAGES])
        for module in (self.stem, *self.blocks[:num_frozen]):
            module.requires_grad_(False)

    def forward(
        self,
        pixels: Pixels,
        *,
        num_frames: int = 1,
        frame_mask: Mask | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images tokens dim"]:
        """Return the mean of the cells; with ``patches``, followed by all cells."""
        check_size(pixels, self.config.image_size)
        weight = self.grid.weight
        if not pixels.is_floating_point():
            mean = 255 * torch.tensor(IMAGENET_MEAN, device=pixels.device)
            pixels = pixels - mean[:, None, None]
        maps = F.relu(self.stem(pixels.to(weight.dtype)))
        maps = run_blocks(self, F.max_pool2d(maps, 3, stride=2, padding=1))
        cells = F.relu(F.max_pool2d(self.grid(maps), 2)).flatten(2).transpose(1, 2)
        mean_cell = cells.mean(dim=1, keepdim=True)
        return torch.cat([mean_cell, cells], dim=1) if patches else mean_cell

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights of a new tower from ``generator``."""
        for parameter in self.parameters():
            deviation = (2 / parameter[0].numel()) ** 0.5
            nn.init.normal_(parameter, std=deviation, generator=generator)


class WordTower(nn.Module):
    """Encodes token ids as embeddings without positions; the vector of a text is their mean."""

    def __init__(self, config: WordsConfig, dim: int) -> None:
        super().__init__()
        # `initialise` draws the values: on the meta device this would import torch's compiler, 1 s.
        self.embedding = nn.Embedding.from_pretrained(
            torch.empty(config.vocabulary_size, dim), freeze=False
        )
        self.blocks = nn.ModuleList()
        self.gradient_checkpointing = 0

    def read(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"], *, words: bool
    ) -> TextFeatures:
        """Return one vector per text; with ``words``, also one per token."""
        vectors = self.embedding(ids)
        sentence = mean_of_words(vectors, mask)
        if not words:
            return TextFeatures(sentence=sentence)
        return TextFeatures(sentence=sentence, words=vectors, words_mask=mask)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights of a new tower from ``generator``."""
        nn.init.normal_(self.embedding.weight, std=0.02, generator=generator)


class ResnetBertEncoder(TowerEncoder):
    """Encodes a frame as grid cells, a text as tokens, for ClipBERT's transformer.

    Frames and texts have no joint space before it. A new encoder is random (``seed``);
    ``eaglenet convert --from clipbert`` converts a trained one.
    """

    family = "resnet_bert"
    abilities = Abilities(words=True, patches=True)
    resize = "pad"
    config: ResnetBertConfig
    vision: ResnetTower
    text: WordTower

    def __init__(self, config: ResnetBertConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision, text = ResnetTower(config.vision, config.dim), WordTower(config.text, config.dim)
        self.set_towers(config, vision, text, logit_scale=CLIP_LOGIT_SCALE, seed=seed)

    def text_stack(self) -> TextStack | None:
        return None


ENCODERS.add(
    "resnet_bert",
    EncoderSpec(
        title="a ResNet with BERT's word embeddings",
        config_class=ResnetBertConfig,
        build=ResnetBertEncoder,
    ),
)
