"""Folders of SigLIP as they are published: config, weights, tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, processors
from torch import Tensor

from eaglenet.encoders.json_tokenizer import FILE, JsonTokenizer, TokenizerSettings, read_backend
from eaglenet.encoders.model_files import (
    fill,
    open_clip_trunk,
    read_json,
    read_open_clip_weights,
    read_optional_json,
    read_weights,
)
from eaglenet.encoders.sentencepiece_file import FILE as SPIECE
from eaglenet.encoders.sentencepiece_file import read_sentencepiece
from eaglenet.encoders.siglip import open_clip
from eaglenet.encoders.siglip.config import (
    PIXEL_HALF,
    SiglipConfig,
    SiglipTextConfig,
    SiglipVisionConfig,
)
from eaglenet.encoders.siglip.encoder import SiglipEncoder
from eaglenet.encoders.weight_names import Weights, hub_blocks, rename, take
from eaglenet.errors import CheckpointError, ModelNotFoundError

# transformers leaves values out that equal its defaults, so these are part of the format.
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
    "vision.pooling.out": "vision_model.head.attention.out_proj",
    "vision.pooling.norm": "vision_model.head.layernorm",
    "vision.pooling.mlp.up": "vision_model.head.mlp.fc1",
    "vision.pooling.mlp.down": "vision_model.head.mlp.fc2",
    "text.token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "text.positional_embedding": "text_model.embeddings.position_embedding.weight",
    "text.ln_final": "text_model.final_layer_norm",
    "text.projection": "text_model.head",
}
PATCHES = "vision_model.embeddings.patch_embedding"


def read_siglip_folder(folder: Path, *, dtype: torch.dtype = torch.float32) -> SiglipEncoder:
    """The encoder of a folder in transformers' or open_clip's layout, in eval mode."""
    if open_clip_trunk(folder):
        ours = open_clip.from_open_clip(read_open_clip_weights(folder))
        config = open_clip.config_from_weights(ours)
        name = "vision.patch_embedding.projection.weight"
        ours[name] = ours[name].flatten(1)
        with torch.device("meta"):
            encoder = SiglipEncoder(config)
        return fill(encoder, ours, folder, dtype)
    config = config_from_hub(
        read_json(folder / "config.json"), read_optional_json(folder / "preprocessor_config.json")
    )
    with torch.device("meta"):
        encoder = SiglipEncoder(config)
    return fill(encoder, from_hub(read_weights(folder), config), folder, dtype)


def config_from_hub(
    values: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
) -> SiglipConfig:
    """Our config from ``config.json`` and, where there is one, ``preprocessor_config.json``."""
    if values.get("model_type") == "siglip2":
        raise CheckpointError(
            "this is a SigLIP 2 of variable resolution (NaFlex), which is not supported; choose a "
            "fixed-resolution one, such as google/siglip2-base-patch16-224"
        )
    text = TOWER_DEFAULTS | TEXT_DEFAULTS | _section(values, "text_config")
    vision = TOWER_DEFAULTS | VISION_DEFAULTS | _section(values, "vision_config")
    projection = text.get("projection_size") or text["hidden_size"]
    if projection != vision["hidden_size"]:
        raise CheckpointError(
            f"config.json: texts are projected to {projection}, images are "
            f"{vision['hidden_size']} wide; expected one width"
        )
    if vision["num_channels"] != 3 or vision.get("vision_use_head") is False:
        raise CheckpointError("config.json: expected an image tower of 3 channels with its head")
    preprocessor = preprocessor or {}
    return SiglipConfig(
        vision=SiglipVisionConfig(
            image_size=vision["image_size"], patch_size=vision["patch_size"], **_tower(vision)
        ),
        text=SiglipTextConfig(
            vocabulary_size=text["vocab_size"],
            context_length=text["max_position_embeddings"],
            pad_token=text["pad_token_id"],
            **_tower(text),
        ),
        pixel_mean=tuple(preprocessor.get("image_mean", PIXEL_HALF)),
        pixel_std=tuple(preprocessor.get("image_std", PIXEL_HALF)),
    )


def from_hub(weights: Weights, config: SiglipConfig) -> dict[str, Tensor]:
    """Weights of transformers' ``SiglipModel`` by our names."""
    ours = rename(weights, NAMES)
    ours |= hub_blocks(weights, "vision", config.vision.layers)
    ours |= hub_blocks(weights, "text", config.text.layers)
    for name in ("logit_scale", "logit_bias"):
        ours[name] = take(weights, name).reshape(())
    ours["vision.patch_embedding.projection.weight"] = take(weights, f"{PATCHES}.weight").flatten(1)
    ours["vision.patch_embedding.projection.bias"] = take(weights, f"{PATCHES}.bias")
    ours["vision.pooling.probe"] = take(weights, "vision_model.head.probe").flatten()
    for kind in ("weight", "bias"):
        fused = take(weights, f"vision_model.head.attention.in_proj_{kind}").chunk(3)
        for name, part in zip(("query", "key", "value"), fused, strict=True):
            ours[f"vision.pooling.{name}.{kind}"] = part
    return ours


def read_siglip_tokenizer(folder: Path, config: SiglipConfig) -> JsonTokenizer:
    """SigLIP's own (its file cleans the text) or SigLIP 2's, Gemma's over lower-cased text.

    SigLIP's may also lie in SentencePiece's own file.
    """
    path = folder / FILE if folder.is_dir() else folder
    text = config.text
    spiece = path.with_name(SPIECE)
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
            f"no {FILE} and no {SPIECE} in {folder}: put the one that was published with the model "
            "there (SigLIP 2: tokenizer.json), or pass tokenizer=FOLDER"
        )
    backend = read_backend(path)
    settings = read_optional_json(path.parent / "tokenizer_config.json") or {}
    model = read_json(path).get("model", {})
    if model.get("type") == "BPE":  # Gemma's; SigLIP's own is a Unigram
        lower_cased(backend)
    framed(backend, settings)
    return JsonTokenizer(backend, TokenizerSettings(text.context_length, text.pad_token))


def lower_cased(backend: Backend) -> None:
    """Lower-case before all else: SigLIP 2 saw no capitals, and Gemma's file keeps them."""
    own = backend.normalizer
    lower = normalizers.Lowercase()
    backend.normalizer = lower if own is None else normalizers.Sequence([lower, own])


def framed(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Start and end tokens as ``tokenizer_config.json`` says; it wins over ``tokenizer.json``."""
    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return
    before = str(settings.get("bos_token")) if settings.get("add_bos_token") else ""
    after = str(settings.get("eos_token")) if settings.get("add_eos_token") else ""
    special = [(name, backend.token_to_id(name)) for name in (before, after) if name]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(part for part in (before, "$A", after) if part), special_tokens=special
    )


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in (values.get(name) or {}).items() if value is not None}


def _tower(values: Mapping[str, Any]) -> dict[str, Any]:
    if values["hidden_act"] not in ("gelu_pytorch_tanh", "gelu"):
        raise CheckpointError(f"config.json: unknown activation {values['hidden_act']!r}")
    return {
        "width": values["hidden_size"],
        "layers": values["num_hidden_layers"],
        "heads": values["num_attention_heads"],
        "mlp_width": values["intermediate_size"],
        "activation": "gelu" if values["hidden_act"] == "gelu" else "gelu_tanh",
        "norm_eps": values["layer_norm_eps"],
    }
