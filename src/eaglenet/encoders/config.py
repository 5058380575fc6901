"""The shape of a CLIP model: plain values, saved beside the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args, runtime_checkable

from eaglenet.errors import ConfigError

Activation = Literal["quick_gelu", "gelu", "gelu_tanh"]

CLIP_PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_PIXEL_STD = (0.26862954, 0.26130258, 0.27577711)
CLIP_LOGIT_SCALE = math.log(100.0)


@runtime_checkable
class TowerShape(Protocol):
    """What every transformer of a tower has."""

    @property
    def width(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def activation(self) -> str: ...


def check_tower(name: str, config: TowerShape) -> None:
    """Refuse a width that heads do not divide, and unknown activations."""
    if config.width % config.heads:
        raise ConfigError(
            f"{name} width {config.width} cannot be split into {config.heads} heads; "
            "choose a width that is a multiple of heads"
        )
    if config.activation not in get_args(Activation):
        raise ConfigError(
            f"unknown {name} activation {config.activation!r} "
            f"(known: {', '.join(get_args(Activation))})"
        )


def check_patches(image_size: int, patch_size: int) -> None:
    if not 0 < patch_size <= image_size:
        raise ConfigError(
            f"patch_size {patch_size} does not fit image_size {image_size}; "
            "it must be between 1 and image_size"
        )


@dataclass(frozen=True)
class VisionConfig:
    """The image tower; defaults are ViT-B/32.

    frame_positions: most frames a video may have for a tower that knows which frame it looks at;
        0, as in CLIP: every frame is a picture by itself.
    """

    image_size: int = 224
    patch_size: int = 32
    width: int = 768
    layers: int = 12
    heads: int = 12
    mlp_width: int = 3072
    activation: Activation = "quick_gelu"
    norm_eps: float = 1e-5
    frame_positions: int = 0

    def __post_init__(self) -> None:
        check_tower("vision", self)
        check_patches(self.image_size, self.patch_size)

    @property
    def grid(self) -> int:
        """Patches along one side; pixels beyond the last whole patch are not seen."""
        return self.image_size // self.patch_size

    @property
    def num_tokens(self) -> int:
        return self.grid**2 + 1


@dataclass(frozen=True)
class TextConfig:
    """The text tower. ``end_token`` None: the sentence is read at the largest id, as CLIP does."""

    vocabulary_size: int = 49408
    context_length: int = 77
    width: int = 512
    layers: int = 12
    heads: int = 8
    mlp_width: int = 2048
    activation: Activation = "quick_gelu"
    norm_eps: float = 1e-5
    end_token: int | None = None

    def __post_init__(self) -> None:
        check_tower("text", self)


@dataclass(frozen=True)
class ClipConfig:
    """Both towers, their joint width, and how pixels in 0..1 are normalised."""

    dim: int = 512
    vision: VisionConfig = field(default_factory=VisionConfig)
    text: TextConfig = field(default_factory=TextConfig)
    pixel_mean: tuple[float, float, float] = CLIP_PIXEL_MEAN
    pixel_std: tuple[float, float, float] = CLIP_PIXEL_STD


CLIP_SHAPES: dict[str, ClipConfig] = {
    "ViT-B/32": ClipConfig(),
    "ViT-B/16": ClipConfig(vision=VisionConfig(patch_size=16)),
    "ViT-L/14": ClipConfig(
        dim=768,
        vision=VisionConfig(patch_size=14, width=1024, layers=24, heads=16, mlp_width=4096),
        text=TextConfig(width=768, heads=12, mlp_width=3072),
    ),
    "ViT-L/14@336px": ClipConfig(
        dim=768,
        vision=VisionConfig(
            image_size=336, patch_size=14, width=1024, layers=24, heads=16, mlp_width=4096
        ),
        text=TextConfig(width=768, heads=12, mlp_width=3072),
    ),
}
"""The shapes of OpenAI's released models, by their names."""
