"""SigLIP as an encoder of texts and videos."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, processors
from torch import Tensor, nn

from eaglenet.core.errors import CheckpointError, ModelNotFoundError
from eaglenet.core.types import Abilities, TextFeatures
from eaglenet.encoders import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.blocks import AttentionPooling, initialise_blocks, make_blocks, run_blocks
from eaglenet.encoders.clip_config import PIXEL_HALF, Activation, TowerConfig, VisionTowerConfig
from eaglenet.encoders.tokenizers import (
    FILE,
    SPIECE,
    JsonTokenizer,
    TokenizerSettings,
    read_backend,
    read_sentencepiece,
)
from eaglenet.encoders.vision import PatchEmbedding, PooledVisionTower
from eaglenet.encoders.weight_names import (
    PATCHES,
    Weights,
    fused_pooling,
    hub_blocks,
    hub_section,
    hub_tower_sizes,
    openai_blocks,
    rename,
    take,
    timm_blocks,
    timm_pooling,
    tower_sizes,
)
from eaglenet.encoders.weights import (
    make_encoder,
    model_type,
    open_clip_trunk,
    read_json,
    read_open_clip_weights,
    read_optional_json,
    read_weights,
)

# The shape of a SigLIP model; defaults are B/16 at 224 pixels of the first SigLIP.


@dataclass(frozen=True)
class SiglipVisionConfig(VisionTowerConfig):
    """Image tower; ``width`` is the joint width, since there is no projection."""

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
    """Text tower. ``pad_token`` pads every text to ``context_length``."""

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
    """Both towers, and the normalisation of pixels in 0..1."""

    vision: SiglipVisionConfig = field(default_factory=SiglipVisionConfig)
    text: SiglipTextConfig = field(default_factory=SiglipTextConfig)
    pixel_mean: tuple[float, float, float] = PIXEL_HALF
    pixel_std: tuple[float, float, float] = PIXEL_HALF

    @property
    def dim(self) -> int:
        return self.vision.width


_LARGE_TEXT: dict[str, Any] = {"width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096}
_SO_TEXT: dict[str, Any] = {"width": 1152, "layers": 27, "heads": 16, "mlp_width": 4304}
_GEMMA: dict[str, Any] = {"vocabulary_size": 256000, "pad_token": 0}

SIGLIP_SHAPES: dict[str, SiglipConfig] = {
    "google/siglip-base-patch16-224": SiglipConfig(),
    "google/siglip-large-patch16-256": SiglipConfig(
        SiglipVisionConfig(256, 16, 1024, 24, 16, 4096), SiglipTextConfig(**_LARGE_TEXT)
    ),
    "google/siglip-so400m-patch14-384": SiglipConfig(
        SiglipVisionConfig(384, 14, 1152, 27, 16, 4304), SiglipTextConfig(**_SO_TEXT)
    ),
    "google/siglip2-base-patch32-256": SiglipConfig(
        SiglipVisionConfig(256, 32, 768, 12, 12, 3072), SiglipTextConfig(**_GEMMA)
    ),
    "google/siglip2-base-patch16-224": SiglipConfig(text=SiglipTextConfig(**_GEMMA)),
    "google/siglip2-large-patch16-256": SiglipConfig(
        SiglipVisionConfig(256, 16, 1024, 24, 16, 4096), SiglipTextConfig(**_LARGE_TEXT, **_GEMMA)
    ),
    "google/siglip2-so400m-patch14-384": SiglipConfig(
        SiglipVisionConfig(384, 14, 1152, 27, 16, 4304), SiglipTextConfig(**_SO_TEXT, **_GEMMA)
    ),
}
"""Shapes of released models; models of other input sizes differ only in ``image_size``."""


# SigLIP's towers: attention pooling instead of a class token; texts without a causal mask.


class SiglipVisionTower(PooledVisionTower):
    """Encodes frames: patches and positions, blocks, ln_post, attention pooling."""

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
        self.pooling = AttentionPooling(config, heads=config.heads, mlp_width=config.mlp_width)
        self.gradient_checkpointing = 0

    def initialise(self, generator: torch.Generator) -> None:
        deviation = self.config.width**-0.5
        nn.init.normal_(self.positional_embedding, std=deviation, generator=generator)
        projection = self.patch_embedding.projection
        nn.init.normal_(projection.weight, std=projection.in_features**-0.5, generator=generator)
        nn.init.zeros_(projection.bias)
        initialise_blocks(self.blocks, generator)
        self.pooling.initialise(generator)


class SiglipTextTower(nn.Module):
    """Encodes token ids: embed, blocks, ln_final, projection with bias.

    The vector of a text is that of the last of ``context_length`` positions, and tokens attend to
    padding, as in training. Every text is therefore padded to the full length.
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
        """Return the projection of every position; the last one is the vector of the text."""
        missing = self.config.context_length - ids.shape[1]
        pad = self.config.pad_token
        ids = F.pad(ids.masked_fill(~mask, pad), (0, missing), value=pad)
        tokens = run_blocks(self, self.token_embedding(ids) + self.positional_embedding)
        result: Tensor = self.projection(self.ln_final(tokens))
        return result

    def read(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"], *, words: bool
    ) -> TextFeatures:
        """Return the vector of each text; with ``words``, also every token."""
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
"""Initial values of SigLIP's training (Zhai et al. 2023, section 3.2)."""


class SiglipEncoder(TowerEncoder):
    """Pools a frame by attention; the vector of a text is that of its last position.

    Returns no patches, since they are not in the joint space.
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
        self.set_towers(config, vision, text, logit_scale=LOGIT_SCALE, seed=seed)
        self.logit_bias = nn.Parameter(torch.tensor(LOGIT_BIAS))


# SigLIP in the layout of timm and open_clip: a timm trunk and open_clip's text tower.

GEMMA_VOCABULARY = 256000
OPEN_CLIP_NAMES = {
    "vision.ln_post": "visual.trunk.norm",
    "text.token_embedding.weight": "text.token_embedding.weight",
    "text.positional_embedding": "text.positional_embedding",
    "text.ln_final": "text.ln_final",
    "text.projection": "text.text_projection",
}


def from_open_clip(weights: Weights) -> dict[str, Tensor]:
    """Return weights of open_clip's ``CustomTextCLIP`` by our names."""
    trunk = "visual.trunk"
    ours = rename(weights, OPEN_CLIP_NAMES) | timm_blocks(weights, f"{trunk}.blocks")
    ours |= timm_pooling(weights, f"{trunk}.attn_pool")
    ours |= openai_blocks(weights, "text", "text.transformer")
    ours["vision.positional_embedding"] = take(weights, f"{trunk}.pos_embed")[0]
    return ours | _patches_and_scale(weights, f"{trunk}.patch_embed.proj")


def _patches_and_scale(weights: Weights, patches: str) -> dict[str, Tensor]:
    return {
        PATCHES: take(weights, f"{patches}.weight").flatten(1),
        "vision.patch_embedding.projection.bias": take(weights, f"{patches}.bias"),
        "logit_scale": take(weights, "logit_scale").reshape(()),
        "logit_bias": take(weights, "logit_bias").reshape(()),
    }


def config_from_weights(ours: Weights) -> SiglipConfig:
    """Return the configuration given by the shapes of the weights."""
    vision, text = tower_sizes(ours)
    for sizes in (vision, text):
        sizes["heads"] = min(sizes["heads"], 16)  # Heads are 72 wide in So400m, 96 in giant.
    pad_token = 0 if text["vocabulary_size"] == GEMMA_VOCABULARY else 1
    return SiglipConfig(SiglipVisionConfig(**vision), SiglipTextConfig(**text, pad_token=pad_token))


# transformers omits values that equal its defaults, so these are part of the format.
TOWER_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
TEXT_DEFAULTS = {"vocab_size": 32000, "max_position_embeddings": 64, "pad_token_id": 1}
VISION_DEFAULTS = {"image_size": 224, "patch_size": 16, "num_channels": 3}
NAMES = {
    "vision.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "vision.ln_post": "vision_model.post_layernorm",
    "text.token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "text.positional_embedding": "text_model.embeddings.position_embedding.weight",
    "text.ln_final": "text_model.final_layer_norm",
    "text.projection": "text_model.head",
}


def read_siglip_folder(folder: Path) -> SiglipEncoder:
    """Read the encoder of a folder in transformers' or open_clip's layout, in eval mode."""
    if open_clip_trunk(folder):
        ours = from_open_clip(read_open_clip_weights(folder))
        config = config_from_weights(ours)
    else:
        config = config_from_hub(
            read_json(folder / "config.json"),
            read_optional_json(folder / "preprocessor_config.json"),
        )
        ours = from_hub(read_weights(folder))
    return make_encoder(SiglipEncoder, config, ours, folder)


def config_from_hub(
    values: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
) -> SiglipConfig:
    """Convert ``config.json`` and ``preprocessor_config.json``, if it exists."""
    if values.get("model_type") == "siglip2":
        raise CheckpointError(
            "this is a SigLIP 2 of variable resolution (NaFlex), which is not supported; choose a "
            "fixed-resolution one, such as google/siglip2-base-patch16-224"
        )
    text = TOWER_DEFAULTS | TEXT_DEFAULTS | hub_section(values, "text_config")
    vision = TOWER_DEFAULTS | VISION_DEFAULTS | hub_section(values, "vision_config")
    projection = text.get("projection_size") or text["hidden_size"]
    if projection != vision["hidden_size"]:
        raise CheckpointError(
            f"config.json: texts are projected to {projection}, images are "
            f"{vision['hidden_size']} wide; expected one width"
        )
    if vision["num_channels"] != 3 or vision.get("vision_use_head") is False:
        raise CheckpointError("config.json: expected an image tower of 3 channels with its head")
    preprocessor = preprocessor or {}
    # The files of SigLIP 2 leave out the id or give that of SigLIP, but Gemma's tokenizer pads
    # with <pad>, which is 0.
    is_gemma = text["vocab_size"] == GEMMA_VOCABULARY
    return SiglipConfig(
        vision=SiglipVisionConfig(
            image_size=vision["image_size"],
            patch_size=vision["patch_size"],
            **hub_tower_sizes(vision),
        ),
        text=SiglipTextConfig(
            vocabulary_size=text["vocab_size"],
            context_length=text["max_position_embeddings"],
            pad_token=0 if is_gemma else text["pad_token_id"],
            **hub_tower_sizes(text),
        ),
        pixel_mean=tuple(preprocessor.get("image_mean", PIXEL_HALF)),
        pixel_std=tuple(preprocessor.get("image_std", PIXEL_HALF)),
    )


def from_hub(weights: Weights) -> dict[str, Tensor]:
    """Return weights of transformers' ``SiglipModel`` by our names."""
    return {
        **rename(weights, NAMES),
        **hub_blocks(weights, "vision"),
        **hub_blocks(weights, "text"),
        **fused_pooling(weights, "vision_model.head", "attention", ("mlp.fc1", "mlp.fc2")),
        **_patches_and_scale(weights, "vision_model.embeddings.patch_embedding"),
    }


def read_siglip_tokenizer(folder: Path, config: SiglipConfig) -> JsonTokenizer:
    """Read SigLIP's tokenizer, whose file normalises texts, or SigLIP 2's: Gemma's in lower case.

    SigLIP's may also be a SentencePiece file.
    """
    path, spiece, text = folder / FILE, folder / SPIECE, config.text
    if not path.is_file() and spiece.is_file():
        backend = read_sentencepiece(spiece)
        if backend.get_vocab_size() > text.vocabulary_size:
            raise CheckpointError(
                f"{spiece} has {backend.get_vocab_size()} pieces, the model {text.vocabulary_size}"
                "; they belong to different models"
            )
        return JsonTokenizer(backend, TokenizerSettings(text.context_length, text.pad_token))
    if not path.is_file():
        raise ModelNotFoundError(
            f"no {FILE} and no {SPIECE} in {folder}: copy the one published with the model "
            "into it (SigLIP 2: tokenizer.json)"
        )
    backend = read_backend(path)
    settings = read_optional_json(folder / "tokenizer_config.json") or {}
    model = read_json(path).get("model", {})
    if model.get("type") == "BPE":  # Gemma's; SigLIP's is a Unigram.
        add_lower_casing(backend)
    set_template(backend, settings)
    return JsonTokenizer(backend, TokenizerSettings(text.context_length, text.pad_token))


def add_lower_casing(backend: Backend) -> None:
    """Lower-case texts, as in the training of SigLIP 2; Gemma's file does not do it."""
    own = backend.normalizer
    lower = normalizers.Lowercase()
    backend.normalizer = lower if own is None else normalizers.Sequence([lower, own])


def set_template(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Set start and end tokens by ``tokenizer_config.json``, which overrides ``tokenizer.json``."""
    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return
    before = _token_name(settings.get("bos_token")) if settings.get("add_bos_token") else ""
    after = _token_name(settings.get("eos_token")) if settings.get("add_eos_token") else ""
    special = [(name, backend.token_to_id(name)) for name in (before, after) if name]
    for name, number in special:
        if number is None:
            raise CheckpointError(f"tokenizer_config.json names {name!r:.60}, which is no token")
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(part for part in (before, "$A", after) if part), special_tokens=special
    )


def _token_name(token: Any) -> str:
    """Return the name of a token, which the file gives alone or in a table with its options."""
    return str(token.get("content") if isinstance(token, Mapping) else token)


def is_siglip(location: Path) -> bool:
    """Recognise folders of SigLIP.

    In transformers, fixed-resolution models of both versions have the type ``siglip``, NaFlex
    models ``siglip2``; in open_clip, the name of the trunk contains ``siglip``.
    """
    return model_type(location) in ("siglip", "siglip2") or "siglip" in open_clip_trunk(location)


def _load(location: Path) -> Pretrained:
    encoder = read_siglip_folder(location)
    return Pretrained(encoder, read_siglip_tokenizer(location, encoder.config))


ENCODERS.add(
    "siglip",
    EncoderSpec(
        title="SigLIP and SigLIP 2 of fixed resolution",
        config_class=SiglipConfig,
        build=SiglipEncoder,
        recognises=is_siglip,
        load=_load,
    ),
)
