"""The shape of a PE-Core model; defaults are B/16 at 224 pixels."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglenet.encoders.config import Activation, TextConfig, check_patches, check_tower

PIXEL_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class PerceptionVisionConfig:
    """The image tower.

    class_token: T, S, B and L have one; it has no rotary position of its own.
    grid_offset: added to rows and columns before they become angles; 1 in models with a class
        token, whose authors count it as position 0.
    """

    image_size: int = 224
    patch_size: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    mlp_width: int = 3072
    pooling_heads: int = 8
    class_token: bool = True
    grid_offset: int = 1
    activation: Activation = "gelu"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_tower("vision", self)
        check_patches(self.image_size, self.patch_size)

    @property
    def grid(self) -> int:
        """Patches along one side; pixels beyond the last whole patch are not seen."""
        return self.image_size // self.patch_size

    @property
    def num_tokens(self) -> int:
        return self.grid**2 + self.class_token


def perception_text(width: int, layers: int, heads: int) -> TextConfig:
    """CLIP's text tower with a plain GELU over 32 tokens."""
    return TextConfig(
        context_length=32,
        width=width,
        layers=layers,
        heads=heads,
        mlp_width=4 * width,
        activation="gelu",
    )


@dataclass(frozen=True)
class PerceptionConfig:
    """Both towers, their joint width, and how pixels in 0..1 are normalised."""

    dim: int = 1024
    vision: PerceptionVisionConfig = field(default_factory=PerceptionVisionConfig)
    text: TextConfig = field(default_factory=lambda: perception_text(1024, 24, 16))
    pixel_mean: tuple[float, float, float] = PIXEL_HALF
    pixel_std: tuple[float, float, float] = PIXEL_HALF


PERCEPTION_SHAPES: dict[str, PerceptionConfig] = {
    "PE-Core-T-16-384": PerceptionConfig(
        512, PerceptionVisionConfig(384, 16, 192, 12, 3, 768), perception_text(512, 12, 8)
    ),
    "PE-Core-S-16-384": PerceptionConfig(
        512, PerceptionVisionConfig(384, 16, 384, 12, 6, 1536), perception_text(512, 12, 8)
    ),
    "PE-Core-B-16": PerceptionConfig(),
    "PE-Core-L-14-336": PerceptionConfig(1024, PerceptionVisionConfig(336, 14, 1024, 24, 16, 4096)),
}
"""Shapes of released models, by the names open_clip gives them."""
