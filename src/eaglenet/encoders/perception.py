"""PE-Core as an encoder of texts and videos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.types import Abilities
from eaglenet.encoders import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.blocks import AttentionPooling, Rotation, initialise_blocks, make_blocks
from eaglenet.encoders.clip import TextTower
from eaglenet.encoders.clip_config import (
    CLIP_LOGIT_SCALE,
    PIXEL_HALF,
    Activation,
    TextConfig,
    VisionTowerConfig,
)
from eaglenet.encoders.clip_files import clip_tokenizer_for
from eaglenet.encoders.vision import PatchEmbedding, PooledVisionTower
from eaglenet.encoders.weight_names import (
    PATCHES,
    Weights,
    fused_pooling,
    openai_blocks,
    openai_text,
    rename,
    take,
    timm_blocks,
    timm_pooling,
    tower_sizes,
)
from eaglenet.encoders.weights import (
    make_encoder,
    open_clip_trunk,
    read_open_clip_weights,
    read_weight_file,
)

# The shape of a PE-Core model; defaults are B/16 at 224 pixels.


@dataclass(frozen=True)
class PerceptionVisionConfig(VisionTowerConfig):
    """Image tower.

    class_token: True in T, S, B and L; the token is not rotated.
    grid_offset: added to rows and columns before they become angles; 1 in models with a class
        token, which counts as position 0.
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

    @property
    def num_tokens(self) -> int:
        return self.grid**2 + self.class_token


def perception_text(width: int, layers: int, heads: int) -> TextConfig:
    """Return the config of CLIP's text tower with a plain GELU and 32 tokens."""
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
    """Both towers, their joint width, and the normalisation of pixels in 0..1."""

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
"""Shapes of released models, by open_clip's names."""


# PE-Core's image tower: rotary positions in two directions, attention pooling.

TEMPERATURE = 10000.0


def grid_angles(config: PerceptionVisionConfig) -> Float[Tensor, "tokens half_head"]:
    """Return the rotary angles of each token: its column times n frequencies, then its row.

    Frequency ``i`` of ``n`` is ``10000^(-i/n)``. The class token, if there is one, is not rotated.
    """
    count = config.width // config.heads // 4
    exponents = torch.arange(count, device="cpu").float() / count
    frequencies = 1.0 / TEMPERATURE**exponents
    steps = torch.arange(config.grid, device="cpu").float() + config.grid_offset
    columns, rows = steps.repeat(config.grid), steps.repeat_interleave(config.grid)
    angles = torch.cat([columns[:, None] * frequencies, rows[:, None] * frequencies], dim=1)
    prefix = angles.new_zeros(int(config.class_token), angles.shape[1])
    return torch.cat([prefix, angles])


class GridRotation(nn.Module):
    """Cosines and sines of :func:`grid_angles`, repeated for both numbers of a pair."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: PerceptionVisionConfig) -> None:
        super().__init__()
        self.config = config
        self._set_tables(torch.device("cpu"))

    def _set_tables(self, device: torch.device) -> None:
        # Computed on a real device even if the model is built on "meta", and in fp32 after casts.
        angles = grid_angles(self.config).repeat_interleave(2, dim=1)
        self.register_buffer("cosines", angles.cos().to(device), persistent=False)
        self.register_buffer("sines", angles.sin().to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GridRotation:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._set_tables(self.cosines.device)
        return self


class PerceptionVisionTower(PooledVisionTower):
    """Encodes frames: embed, ln_pre, blocks, ln_post, attention pooling, projection."""

    patch_embedding: PatchEmbedding

    def __init__(
        self,
        config: PerceptionVisionConfig,
        dim: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = PatchEmbedding(config, mean, std)
        self.class_embedding = (
            nn.Parameter(torch.zeros(config.width)) if config.class_token else None
        )
        self.positional_embedding = nn.Parameter(torch.zeros(config.num_tokens, config.width))
        self.ln_pre = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.rotation = GridRotation(config)
        self.blocks = make_blocks(config)
        self.ln_post = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.pooling = AttentionPooling(
            config, heads=config.pooling_heads, mlp_width=4 * config.width
        )
        self.projection = nn.Linear(config.width, dim)
        self.gradient_checkpointing = 0

    def pre_normalise(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        result: Tensor = self.ln_pre(tokens)
        return result

    def rotary_tables(self, dtype: torch.dtype) -> Rotation:
        """Return the tables in the type of the tokens; fp32 would make queries and keys fp32."""
        return self.rotation.cosines.to(dtype), self.rotation.sines.to(dtype)

    def project(self, vectors: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch dim"]:
        result: Tensor = self.projection(vectors)
        return result

    def initialise(self, generator: torch.Generator) -> None:
        deviation = self.config.width**-0.5
        weights = [self.positional_embedding, self.patch_embedding.projection.weight]
        weights += [] if self.class_embedding is None else [self.class_embedding]
        for weight in [*weights, self.projection.weight]:
            nn.init.normal_(weight, std=deviation, generator=generator)
        nn.init.zeros_(self.projection.bias)
        initialise_blocks(self.blocks, generator)
        self.pooling.initialise(generator)


class PerceptionEncoder(TowerEncoder):
    """Pools a frame by attention; the vector of a text is that of its end token.

    Returns no patches, since they are not in the joint space.
    """

    family = "perception"
    abilities = Abilities(words=True)
    resize = "stretch"
    config: PerceptionConfig
    vision: PerceptionVisionTower
    text: TextTower

    def __init__(self, config: PerceptionConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision = PerceptionVisionTower(
            config.vision, config.dim, config.pixel_mean, config.pixel_std
        )
        text = TextTower(config.text, config.dim)
        self.set_towers(config, vision, text, logit_scale=CLIP_LOGIT_SCALE, seed=seed)


# PE-Core's weights in the two published layouts: open_clip's and Meta's.

GIGANTIC = 1536
"""Width of G, whose heads are 96 wide; those of the other models are 64 wide."""
TIMM_NAMES = {
    "vision.ln_pre": "visual.trunk.norm_pre",
    "vision.ln_post": "visual.trunk.norm",
    "vision.projection": "visual.trunk.head",
}


def read_perception(location: Path) -> PerceptionEncoder:
    """Read the encoder of a file or folder; the shapes of the weights give its configuration."""
    if (location / "open_clip_config.json").is_file():
        ours = from_open_clip(read_open_clip_weights(location))
    else:
        path = location if location.is_file() else next(iter(sorted(location.glob("PE-Core*.pt"))))
        ours = from_meta(read_weight_file(path))
    return make_encoder(PerceptionEncoder, config_from_weights(ours), ours, location)


def from_open_clip(weights: Weights) -> dict[str, Tensor]:
    """Return weights of open_clip's ``CustomTextCLIP`` with a timm trunk, by our names."""
    trunk = "visual.trunk"
    ours = rename(weights, TIMM_NAMES) | timm_blocks(weights, f"{trunk}.blocks")
    ours |= timm_pooling(weights, f"{trunk}.attn_pool")
    ours["vision.positional_embedding"] = take(weights, f"{trunk}.pos_embed")[0]
    ours[PATCHES] = take(weights, f"{trunk}.patch_embed.proj.weight").flatten(1)
    if f"{trunk}.cls_token" in weights:
        ours["vision.class_embedding"] = weights[f"{trunk}.cls_token"].flatten()
    text = {name[5:]: value for name, value in weights.items() if name.startswith("text.")}
    return ours | openai_text(text) | {"logit_scale": take(weights, "logit_scale")}


def from_meta(weights: Weights) -> dict[str, Tensor]:
    """Return weights of Meta's files by our names; they are CLIP's, with another pooling."""
    visual = "visual"
    names = ["ln_pre", "ln_post", "positional_embedding"]
    names += ["class_embedding"] if f"{visual}.class_embedding" in weights else []
    ours = rename(weights, {f"vision.{name}": f"{visual}.{name}" for name in names})
    ours |= openai_blocks(weights, "vision", f"{visual}.transformer") | openai_text(weights)
    ours |= fused_pooling(weights, f"{visual}.attn_pool", "attn", ("mlp.c_fc", "mlp.c_proj"))
    projection = take(weights, f"{visual}.proj").T
    return {
        **ours,
        PATCHES: take(weights, f"{visual}.conv1.weight").flatten(1),
        "vision.projection.weight": projection,
        "vision.projection.bias": torch.zeros(len(projection), dtype=projection.dtype),
        "logit_scale": take(weights, "logit_scale"),
    }


def config_from_weights(ours: Weights) -> PerceptionConfig:
    """Return the configuration given by the shapes of the weights."""
    vision, text = tower_sizes(ours)
    has_class = "vision.class_embedding" in ours
    if vision["width"] == GIGANTIC:
        vision["heads"] = 16
    return PerceptionConfig(
        dim=len(ours["vision.projection.weight"]),
        vision=PerceptionVisionConfig(**vision, class_token=has_class, grid_offset=int(has_class)),
        text=TextConfig(**text, activation="gelu"),
    )


PREFIX = "pe-core"


def is_perception(location: Path) -> bool:
    """Recognise Meta's ``PE-Core-*.pt``, a folder with one, or open_clip with such a trunk."""
    if location.is_file():
        return location.name.lower().startswith(PREFIX)
    trunk = open_clip_trunk(location)
    return trunk.startswith("vit_pe_core") if trunk else any(location.glob("PE-Core*.pt"))


def _load(location: Path) -> Pretrained:
    return Pretrained(read_perception(location), clip_tokenizer_for(location))


ENCODERS.add(
    "perception",
    EncoderSpec(
        title="PE-Core (Perception Encoder)",
        config_class=PerceptionConfig,
        build=PerceptionEncoder,
        recognises=is_perception,
        load=_load,
    ),
)
