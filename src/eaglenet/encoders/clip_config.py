"""Configuration of CLIP models: plain values, saved beside the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args

from eaglenet.core.errors import ConfigError

Activation = Literal["quick_gelu", "gelu", "gelu_tanh"]

CLIP_PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_PIXEL_STD = (0.26862954, 0.26130258, 0.27577711)
PIXEL_HALF = (0.5, 0.5, 0.5)
"""Mean and standard deviation of the pixels of SigLIP and PE-Core."""
CLIP_LOGIT_SCALE = math.log(100.0)

MAX_SIZES: dict[str, int] = {
    "layers": 512,
    "heads": 1024,
    "width": 65_536,
    "mlp_width": 1_048_576,
    "image_size": 8192,
    "patch_size": 8192,
    "vocabulary_size": 10_000_000,
    "context_length": 65_536,
    "dim": 65_536,
}
"""Limits far beyond any model, so a broken file cannot allocate too much memory."""


class TowerConfig:
    """Sizes of a transformer tower; subclasses are frozen dataclasses with defaults."""

    width: int
    layers: int
    heads: int
    mlp_width: int
    activation: Activation
    norm_eps: float

    def __post_init__(self) -> None:
        """Refuse impossible sizes, a width that heads do not divide, and unknown activations."""
        name = "vision" if isinstance(self, VisionTowerConfig) else "text"
        for size in MAX_SIZES:
            if hasattr(self, size):
                _check_size(name, size, getattr(self, size))
        if not isinstance(self.norm_eps, (int, float)) or not 0 < self.norm_eps < 1:
            raise ConfigError(f"{name} norm_eps is {self.norm_eps!r:.60}; expected about 1e-5")
        if self.width % self.heads:
            raise ConfigError(
                f"{name} width {self.width} cannot be split into {self.heads} heads; "
                "choose a width that is a multiple of heads"
            )
        if self.activation not in get_args(Activation):
            raise ConfigError(
                f"unknown {name} activation {self.activation!r} "
                f"(known: {', '.join(get_args(Activation))})"
            )


class VisionTowerConfig(TowerConfig):
    """Sizes of an image tower."""

    image_size: int
    patch_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.patch_size <= self.image_size:
            raise ConfigError(
                f"patch_size {self.patch_size} does not fit image_size {self.image_size}; "
                "it must be between 1 and image_size"
            )

    @property
    def grid(self) -> int:
        """Patches along one side; pixels beyond the last whole patch are ignored."""
        return self.image_size // self.patch_size


@dataclass(frozen=True)
class VisionConfig(VisionTowerConfig):
    """Image tower; defaults are ViT-B/32.

    frame_positions: maximum frames per video of a tower with frame positions; 0 for independent
        images, as in CLIP.
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
        super().__post_init__()
        if not 0 <= self.frame_positions <= MAX_SIZES["context_length"]:
            raise ConfigError(f"frame_positions is {self.frame_positions}; 0 means none")

    @property
    def num_tokens(self) -> int:
        return self.grid**2 + 1


@dataclass(frozen=True)
class TextConfig(TowerConfig):
    """Text tower. The vector of a text is that of ``end_token``; if None, of the largest id."""

    vocabulary_size: int = 49408
    context_length: int = 77
    width: int = 512
    layers: int = 12
    heads: int = 8
    mlp_width: int = 2048
    activation: Activation = "quick_gelu"
    norm_eps: float = 1e-5
    end_token: int | None = None


@dataclass(frozen=True)
class ClipConfig:
    """Both towers, their joint width, and the normalisation of pixels in 0..1."""

    dim: int = 512
    vision: VisionConfig = field(default_factory=VisionConfig)
    text: TextConfig = field(default_factory=TextConfig)
    pixel_mean: tuple[float, float, float] = CLIP_PIXEL_MEAN
    pixel_std: tuple[float, float, float] = CLIP_PIXEL_STD

    def __post_init__(self) -> None:
        _check_size("", "dim", self.dim)
        for name, values in (("pixel_mean", self.pixel_mean), ("pixel_std", self.pixel_std)):
            if len(values) != 3 or not all(map(math.isfinite, values)):
                raise ConfigError(f"{name} is {values}; expected three finite numbers")
        if min(self.pixel_std) <= 0:
            raise ConfigError(f"pixel_std is {self.pixel_std}; pixels are divided by it")


def _check_size(where: str, name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZES[name]:
        raise ConfigError(
            f"{where} {name} is {value!r:.60}; expected 1 to {MAX_SIZES[name]}".strip()
        )


def check_sizes(config: Any) -> None:
    """Refuse impossible sizes in a config, before a model is built with it."""
    for spec in fields(config):
        value = getattr(config, spec.name)
        kind = "layers" if "layers" in spec.name else spec.name
        limit = MAX_SIZES.get(kind, MAX_SIZES["width"])
        if isinstance(value, int) and not -1 <= value <= limit:
            raise ConfigError(f"{spec.name} is {value!r:.60}; expected at most {limit}")
        if isinstance(value, float) and value != value:
            raise ConfigError(f"{spec.name} is not a number")
        if is_dataclass(value):
            check_sizes(value)


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
"""Shapes of OpenAI's released models, by name."""
