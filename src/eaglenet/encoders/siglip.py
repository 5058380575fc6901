"""SigLIP as an encoder of texts and videos."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from eaglenet.core.types import Abilities, TextFeatures
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.blocks import AttentionPooling, initialise_blocks, make_blocks, run_blocks
from eaglenet.encoders.clip_config import PIXEL_HALF, Activation, TowerConfig, VisionTowerConfig
from eaglenet.encoders.vision import PatchEmbedding, TowerParts, pool_video

# The shape of a SigLIP model; defaults are B/16 at 224 pixels of the first SigLIP.


@dataclass(frozen=True)
class SiglipVisionConfig(VisionTowerConfig):
    """The image tower; ``width`` is the joint width, as nothing projects."""

    image_size: int = 224
    patch_size: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    mlp_width: int = 3072
    activation: Activation = "gelu_tanh"
    norm_eps: float = 1e-6


@dataclass(frozen=True)
class SiglipTextConfig(TowerConfig):
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


# SigLIP's towers: no class token but attention pooling; texts without a causal mask.


class SiglipVisionTower(TowerParts):
    """Frames to one vector each: patches and positions, blocks, ln_post, attention pooling."""

    patch_embedding: PatchEmbedding

    def __init__(
        self, config: SiglipVisionConfig, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = PatchEmbedding(config, mean, std, bias=True)
        self.class_embedding = None
        self.positional_embedding = nn.Parameter(torch.zeros(config.grid**2, config.width))
        self.blocks = make_blocks(config)
        self.ln_post = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.pooling = AttentionPooling(
            config.width,
            heads=config.heads,
            mlp_width=config.mlp_width,
            activation=config.activation,
            norm_eps=config.norm_eps,
        )
        self.gradient_checkpointing = 0

    def forward(
        self,
        pixels: Shaped[Tensor, "images 3 height width"],
        *,
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images 1 dim"]:
        tokens = run_blocks(self, self.embed(pixels))
        result: Tensor = self.pooling(self.ln_post(tokens))
        return result[:, None]

    def read_video(
        self,
        first: Float[Tensor, "videos 0 width"],
        patches: Float[Tensor, "videos frames patches width"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        return pool_video(self.pooling, first, self.ln_post(patches), mask)

    def initialise(self, generator: torch.Generator) -> None:
        deviation = self.config.width**-0.5
        nn.init.normal_(self.positional_embedding, std=deviation, generator=generator)
        projection = self.patch_embedding.projection
        nn.init.normal_(projection.weight, std=projection.in_features**-0.5, generator=generator)
        nn.init.zeros_(projection.bias)
        initialise_blocks(self.blocks, generator)
        self.pooling.initialise(generator)


class SiglipTextTower(nn.Module):
    """Token ids to words and sentences: embed, blocks, ln_final, projection with bias.

    The sentence is read at the last of ``context_length`` positions, whatever stands there, and
    pads are seen like words, as the models were trained. So every text is filled up with the pad
    token here, however wide it came.
    """

    def __init__(self, config: SiglipTextConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.positional_embedding = nn.Parameter(torch.zeros(config.context_length, config.width))
        self.blocks = make_blocks(config)
        self.ln_final = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.projection = nn.Linear(config.width, dim)
        self.gradient_checkpointing = 0

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts positions dim"]:
        """The projection of every position; the last is the sentence."""
        missing = self.config.context_length - ids.shape[1]
        pad = self.config.pad_token
        ids = F.pad(ids.masked_fill(~mask, pad), (0, missing), value=pad)
        tokens = run_blocks(self, self.token_embedding(ids) + self.positional_embedding)
        result: Tensor = self.projection(self.ln_final(tokens))
        return result

    def read(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"], *, words: bool
    ) -> TextFeatures:
        """Return the last position of each text; with ``words`` every token too."""
        features = self(ids, mask)
        if not words:
            return TextFeatures(sentence=features[:, -1])
        return TextFeatures(features[:, -1], words=features[:, : ids.shape[1]], words_mask=mask)

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.token_embedding.weight, std=0.02, generator=generator)
        nn.init.normal_(self.positional_embedding, std=0.01, generator=generator)
        nn.init.normal_(self.projection.weight, std=self.config.width**-0.5, generator=generator)
        nn.init.zeros_(self.projection.bias)
        initialise_blocks(self.blocks, generator)


LOGIT_SCALE, LOGIT_BIAS = math.log(10.0), -10.0
"""Where SigLIP's own training starts (Zhai et al. 2023, section 3.2)."""


class SiglipEncoder(TowerEncoder):
    """A frame is pooled by attention, a sentence read at the last position.

    Patches have no place in the joint space, so it gives none.
    """

    family = "siglip"
    abilities = Abilities(words=True)
    resize = "stretch"
    config: SiglipConfig
    vision: SiglipVisionTower
    text: SiglipTextTower

    def __init__(self, config: SiglipConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision = SiglipVisionTower(config.vision, config.pixel_mean, config.pixel_std)
        text = SiglipTextTower(config.text, config.dim)
        self.hold_towers(config, vision, text, logit_scale=LOGIT_SCALE, seed=seed)
        self.logit_bias = nn.Parameter(torch.tensor(LOGIT_BIAS))
