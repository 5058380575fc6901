"""A ViT of timm with DistilBERT: the towers of Frozen in Time and BridgeFormer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.types import Abilities
from eaglenet.encoders import ENCODERS, EncoderSpec
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.clip_config import CLIP_LOGIT_SCALE, VisionConfig
from eaglenet.encoders.compact import IMAGENET_MEAN, IMAGENET_STD, CompactText, CompactTextConfig
from eaglenet.encoders.vision import PatchEmbedding, VisionTower


def vit(**sizes: int) -> VisionConfig:
    """Return the config of a ViT with timm's activation and norms; defaults are ViT-B/16."""
    return VisionConfig(**{"patch_size": 16, **sizes}, activation="gelu", norm_eps=1e-6)


def distilbert(**sizes: int) -> CompactTextConfig:
    """Return the config of a DistilBERT; defaults are ``distilbert-base``."""
    base = {"context_length": 512, "width": 768, "layers": 6, "heads": 12, "mlp_width": 3072}
    return CompactTextConfig(**{**base, **sizes})


@dataclass(frozen=True)
class VitBertConfig:
    """Both towers, their joint width, and the normalisation of pixels in 0..1."""

    dim: int = 256
    vision: VisionConfig = field(default_factory=vit)
    text: CompactTextConfig = field(default_factory=distilbert)
    pixel_mean: tuple[float, float, float] = IMAGENET_MEAN
    pixel_std: tuple[float, float, float] = IMAGENET_STD


class VitTower(VisionTower):
    """CLIP's image tower with biased patches and projection, without a norm before blocks."""

    def __init__(
        self, config: VisionConfig, dim: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        super().__init__(config, dim, mean, std)
        self.patch_embedding = PatchEmbedding(config, mean, std, bias=True)
        self.ln_pre = nn.Identity()  # type: ignore[assignment]
        self.projection = nn.Linear(config.width, dim)

    def initialise(self, generator: torch.Generator) -> None:
        super().initialise(generator)
        nn.init.zeros_(self.patch_embedding.projection.bias)
        nn.init.zeros_(self.projection.bias)


class DistilBertTower(CompactText):
    """Encodes token ids to vectors in the joint space; the vector of a text is its first token."""

    def __init__(self, config: CompactTextConfig, dim: int) -> None:
        super().__init__(config, dim)
        self.projection = nn.Linear(config.width, dim)

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Return vectors of all positions, including padding."""
        result: Tensor = self.projection(F.relu(self.states(ids, mask)))
        return result

    def pool(
        self, words: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts dim"]:
        return words[:, 0]


class VitBertEncoder(TowerEncoder):
    """Encodes a frame as its class token, a text as its first token.

    A new encoder is random (``seed``); ``eaglenet convert --from frozen`` or ``bridgeformer``
    converts a trained one.
    """

    family = "vit_bert"
    abilities = Abilities(words=True, patches=True)
    config: VitBertConfig
    vision: VitTower
    text: DistilBertTower

    def __init__(self, config: VitBertConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision = VitTower(config.vision, config.dim, config.pixel_mean, config.pixel_std)
        text = DistilBertTower(config.text, config.dim)
        self.set_towers(config, vision, text, logit_scale=CLIP_LOGIT_SCALE, seed=seed)


ENCODERS.add(
    "vit_bert",
    EncoderSpec(
        title="a ViT with DistilBERT",
        config_class=VitBertConfig,
        build=VitBertEncoder,
    ),
)
