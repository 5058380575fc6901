"""The shape of a compact model: plain values, saved beside the weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglenet.errors import ConfigError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class CompactVisionConfig:
    """The image tower; defaults are a ViT-S/14 at 168 pixels.

    pool_after: blocks that see every patch; after them each 2 x 2 patches become their mean, so
        that the other blocks cost a quarter. 0 never pools.
    """

    image_size: int = 168
    patch_size: int = 14
    width: int = 384
    layers: int = 12
    heads: int = 6
    mlp_width: int = 1536
    norm_eps: float = 1e-6
    pool_after: int = 0

    def __post_init__(self) -> None:
        _check_heads("vision", self.width, self.heads)
        if self.image_size < 1 or self.patch_size < 1 or self.image_size % self.patch_size:
            raise ConfigError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        if not 0 <= self.pool_after < self.layers:
            raise ConfigError(
                f"pool_after {self.pool_after} should be 0 (never) to {self.layers - 1}, one less "
                "than the blocks"
            )
        if self.pool_after and self.grid % 2:
            raise ConfigError(
                f"a grid of {self.grid} x {self.grid} patches cannot be pooled by 2; choose an "
                "image_size that gives an even grid, or pool_after=0"
            )

    @property
    def grid(self) -> int:
        """Patches along one side, before pooling."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        """Patches after the last block."""
        return (self.grid // 2) ** 2 if self.pool_after else self.grid**2


@dataclass(frozen=True)
class CompactTextConfig:
    """The text tower: norms after each part, as in BERT; every word sees every other."""

    vocabulary_size: int = 30522
    context_length: int = 64
    width: int = 384
    layers: int = 6
    heads: int = 12
    mlp_width: int = 1536
    norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        _check_heads("text", self.width, self.heads)
        if self.vocabulary_size < 1 or self.context_length < 3 or self.layers < 1:
            raise ConfigError("a text tower needs a word, three positions and a block at least")


@dataclass(frozen=True)
class CompactConfig:
    """Both towers, their joint width, and how pixels in 0..1 are normalised."""

    dim: int = 384
    vision: CompactVisionConfig = field(default_factory=CompactVisionConfig)
    text: CompactTextConfig = field(default_factory=CompactTextConfig)
    pixel_mean: tuple[float, float, float] = IMAGENET_MEAN
    pixel_std: tuple[float, float, float] = IMAGENET_STD


def _check_heads(name: str, width: int, heads: int) -> None:
    if width < 1 or heads < 1 or width % heads:
        raise ConfigError(
            f"{name} width {width} cannot be split into {heads} heads; choose a width that is a "
            "multiple of heads"
        )
