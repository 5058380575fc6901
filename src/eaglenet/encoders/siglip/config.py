"""The shape of a SigLIP model; defaults are B/16 at 224 pixels of the first SigLIP."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglenet.encoders.config import Activation, check_patches, check_tower

PIXEL_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class SiglipVisionConfig:
    """The image tower; ``width`` is the joint width, as nothing projects."""

    image_size: int = 224
    patch_size: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    mlp_width: int = 3072
    activation: Activation = "gelu_tanh"
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_tower("vision", self)
        check_patches(self.image_size, self.patch_size)

    @property
    def grid(self) -> int:
        """Patches along one side; pixels beyond the last whole patch are not seen."""
        return self.image_size // self.patch_size


@dataclass(frozen=True)
class SiglipTextConfig:
    """The text tower. ``pad_token`` fills every text up to ``context_length``."""

    vocabulary_size: int = 32000
    context_length: int = 64
    width: int = 768
    layers: int = 12
    heads: int = 12
    mlp_width: int = 3072
    activation: Activation = "gelu_tanh"
    norm_eps: float = 1e-6
    pad_token: int = 1

    def __post_init__(self) -> None:
        check_tower("text", self)


@dataclass(frozen=True)
class SiglipConfig:
    """Both towers, and how pixels in 0..1 are normalised."""

    vision: SiglipVisionConfig = field(default_factory=SiglipVisionConfig)
    text: SiglipTextConfig = field(default_factory=SiglipTextConfig)
    pixel_mean: tuple[float, float, float] = PIXEL_HALF
    pixel_std: tuple[float, float, float] = PIXEL_HALF

    @property
    def dim(self) -> int:
        return self.vision.width


def _shape(
    image_size: int, patch_size: int, width: int, layers: int, heads: int, mlp_width: int
) -> SiglipVisionConfig:
    return SiglipVisionConfig(image_size, patch_size, width, layers, heads, mlp_width)


_LARGE_TEXT = {"width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096}
_SO_TEXT = {"width": 1152, "layers": 27, "heads": 16, "mlp_width": 4304}
_GEMMA = {"vocabulary_size": 256000, "pad_token": 0}


def _text(**changes: int) -> SiglipTextConfig:
    return SiglipTextConfig(**changes)  # type: ignore[arg-type]


SIGLIP_SHAPES: dict[str, SiglipConfig] = {
    "google/siglip-base-patch16-224": SiglipConfig(),
    "google/siglip-large-patch16-256": SiglipConfig(
        _shape(256, 16, 1024, 24, 16, 4096), _text(**_LARGE_TEXT)
    ),
    "google/siglip-so400m-patch14-384": SiglipConfig(
        _shape(384, 14, 1152, 27, 16, 4304), _text(**_SO_TEXT)
    ),
    "google/siglip2-base-patch32-256": SiglipConfig(
        _shape(256, 32, 768, 12, 12, 3072), _text(**_GEMMA)
    ),
    "google/siglip2-base-patch16-224": SiglipConfig(text=_text(**_GEMMA)),
    "google/siglip2-large-patch16-256": SiglipConfig(
        _shape(256, 16, 1024, 24, 16, 4096), _text(**_LARGE_TEXT, **_GEMMA)
    ),
    "google/siglip2-so400m-patch14-384": SiglipConfig(
        _shape(384, 14, 1152, 27, 16, 4304), _text(**_SO_TEXT, **_GEMMA)
    ),
}
"""Shapes of released models; other input sizes differ in ``image_size`` alone."""
