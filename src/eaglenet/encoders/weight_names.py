"""Renaming of weights from transformers, OpenAI, open_clip and timm to our names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.errors import CheckpointError
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig

Weights = Mapping[str, Tensor]

# Our name -> the other one. The name of a module stands for its weight and its bias.
HUB_VISION = {
    "vision.class_embedding": "vision_model.embeddings.class_embedding",
    "vision.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "vision.ln_pre": "vision_model.pre_layrnorm",  # Spelled like this on the hub.
    "vision.ln_post": "vision_model.post_layernorm",
    "vision.projection.weight": "visual_projection.weight",
}
HUB_TEXT = {
    "text.token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "text.positional_embedding": "text_model.embeddings.position_embedding.weight",
    "text.ln_final": "text_model.final_layer_norm",
    "text.projection.weight": "text_projection.weight",
}
HUB_BLOCK_NAMES = {
    "ln_1": "layer_norm1",
    "attention.out": "self_attn.out_proj",
    "ln_2": "layer_norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
OPENAI_BLOCK_NAMES = {
    "ln_1": "ln_1",
    "attention.out": "attn.out_proj",
    "ln_2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
TIMM_BLOCK_NAMES = {
    "ln_1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "ln_2": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
WRAPPED_ATTENTION = ".attn.net."
"""The released code wraps the attention of its two shifted blocks in one more module."""
PATCHES = "vision.patch_embedding.projection.weight"
"""Our linear map of a patch, which is a convolution in other layouts."""


def from_hub(weights: Weights) -> dict[str, Tensor]:
    """Return weights of transformers' ``CLIPModel`` by our names."""
    scale = {"logit_scale": take(weights, "logit_scale")}
    return {**hub_vision(weights), **hub_text(weights), **scale}


def hub_vision(weights: Weights, prefix: str = "") -> dict[str, Tensor]:
    """Return the image tower of a CLIP of transformers; ``prefix`` precedes all names."""
    ours = rename(weights, {name: prefix + theirs for name, theirs in HUB_VISION.items()})
    patches = take(weights, f"{prefix}vision_model.embeddings.patch_embedding.weight")
    return {**ours, **hub_blocks(weights, "vision", prefix), PATCHES: patches.flatten(1)}


def hub_text(weights: Weights, prefix: str = "") -> dict[str, Tensor]:
    """Return the text tower of a CLIP of transformers."""
    ours = rename(weights, {name: prefix + theirs for name, theirs in HUB_TEXT.items()})
    return ours | hub_blocks(weights, "text", prefix)


def hub_blocks(weights: Weights, tower: str, prefix: str = "") -> dict[str, Tensor]:
    """Return the blocks of a tower (``vision`` or ``text``) of a CLIP or SigLIP of transformers."""
    layers = f"{prefix}{tower}_model.encoder.layers"
    ours = _blocks(weights, tower, layers, HUB_BLOCK_NAMES)
    for index in range(depth_of(weights, f"{layers}.")):
        for kind in ("weight", "bias"):
            parts = [take(weights, f"{layers}.{index}.self_attn.{p}_proj.{kind}") for p in "qkv"]
            ours[f"{tower}.blocks.{index}.attention.qkv.{kind}"] = torch.cat(parts)
    return ours


def from_openai(weights: Weights) -> dict[str, Tensor]:
    """Return weights of OpenAI's ``CLIP`` class, or of the released code's copy, by our names."""
    weights = {name.replace(WRAPPED_ATTENTION, ".attn."): w for name, w in weights.items()}
    return {
        **openai_stem(weights, "visual"),
        PATCHES: take(weights, "visual.conv1.weight").flatten(1),
        **openai_vision(weights, "visual"),
        **openai_text(weights),
        "logit_scale": take(weights, "logit_scale"),
    }


def openai_stem(weights: Weights, visual: str) -> dict[str, Tensor]:
    """Return the embeddings of an image tower in OpenAI's layout, without the map of patches."""
    names = ("class_embedding", "positional_embedding", "ln_pre")
    return rename(weights, {f"vision.{name}": f"{visual}.{name}" for name in names})


def openai_vision(weights: Weights, visual: str) -> dict[str, Tensor]:
    """Return the blocks and the head of an image tower in OpenAI's layout."""
    return {
        **openai_blocks(weights, "vision", f"{visual}.transformer"),
        **rename(weights, {"vision.ln_post": f"{visual}.ln_post"}),
        # Stored for x @ proj; a linear layer has the transpose.
        "vision.projection.weight": take(weights, f"{visual}.proj").T,
    }


def openai_text(weights: Weights, prefix: str = "") -> dict[str, Tensor]:
    """Return the text tower in the layout of OpenAI, open_clip and Meta."""
    names = ("token_embedding.weight", "positional_embedding", "ln_final")
    return {
        **rename(weights, {f"text.{name}": f"{prefix}{name}" for name in names}),
        **openai_blocks(weights, "text", f"{prefix}transformer"),
        "text.projection.weight": take(weights, f"{prefix}text_projection").T,
    }


def openai_blocks(weights: Weights, tower: str, prefix: str) -> dict[str, Tensor]:
    """Return the blocks of a tower in OpenAI's layout."""
    ours = _blocks(weights, tower, f"{prefix}.resblocks", OPENAI_BLOCK_NAMES)
    for index in range(depth_of(weights, f"{prefix}.resblocks.")):
        for kind in ("weight", "bias"):
            theirs = f"{prefix}.resblocks.{index}.attn.in_proj_{kind}"
            ours[f"{tower}.blocks.{index}.attention.qkv.{kind}"] = take(weights, theirs)
    return ours


def timm_blocks(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """Return the blocks of a timm vision transformer."""
    return _blocks(weights, "vision", prefix, TIMM_BLOCK_NAMES)


def _blocks(
    weights: Weights, tower: str, prefix: str, names: Mapping[str, str]
) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    for index in range(depth_of(weights, f"{prefix}.")):
        block = f"{tower}.blocks.{index}"
        ours |= rename(weights, {f"{block}.{a}": f"{prefix}.{index}.{b}" for a, b in names.items()})
    return ours


def timm_pooling(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """Return timm's attention pooling with a learnt query."""
    ours = rename(
        weights,
        {
            "vision.pooling.query": f"{prefix}.q",
            "vision.pooling.out": f"{prefix}.proj",
            "vision.pooling.norm": f"{prefix}.norm",
            "vision.pooling.mlp.up": f"{prefix}.mlp.fc1",
            "vision.pooling.mlp.down": f"{prefix}.mlp.fc2",
        },
    )
    for kind in ("weight", "bias"):
        key, value = take(weights, f"{prefix}.kv.{kind}").chunk(2)
        ours |= {f"vision.pooling.key.{kind}": key, f"vision.pooling.value.{kind}": value}
    ours["vision.pooling.probe"] = take(weights, f"{prefix}.latent").flatten()
    return ours


def fused_pooling(
    weights: Weights, prefix: str, attention: str, mlp: tuple[str, str]
) -> dict[str, Tensor]:
    """Return attention pooling whose ``attention`` is torch's, with one fused projection."""
    names = {"out": f"{attention}.out_proj", "norm": "layernorm", "mlp.up": mlp[0]}
    names |= {"mlp.down": mlp[1]}
    ours = rename(weights, {f"vision.pooling.{a}": f"{prefix}.{b}" for a, b in names.items()})
    for kind in ("weight", "bias"):
        parts = take(weights, f"{prefix}.{attention}.in_proj_{kind}").chunk(3)
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            ours[f"vision.pooling.{name}.{kind}"] = part
    return ours | {"vision.pooling.probe": take(weights, f"{prefix}.probe").flatten()}


def clip_config(ours: Weights) -> ClipConfig:
    """Return the configuration of a CLIP given by the shapes of its weights."""
    vision, text = tower_sizes(ours)
    return ClipConfig(
        len(take(ours, "text.projection.weight")), VisionConfig(**vision), TextConfig(**text)
    )


def tower_sizes(ours: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sizes of both towers given by their weights; assumes heads of width 64."""
    patches = take(ours, PATCHES)
    side = math.isqrt(patches.shape[1:].numel() // 3)
    num_patches = len(take(ours, "vision.positional_embedding")) - (
        "vision.class_embedding" in ours
    )
    vocabulary_size = len(take(ours, "text.token_embedding.weight"))
    return (
        {
            "image_size": round(num_patches**0.5) * side,
            "patch_size": side,
            **_block_sizes(ours, "vision"),
        },
        {
            "vocabulary_size": vocabulary_size,
            "context_length": len(take(ours, "text.positional_embedding")),
            **_block_sizes(ours, "text"),
        },
    )


def _block_sizes(ours: Weights, tower: str) -> dict[str, int]:
    mlp_width, width = take(ours, f"{tower}.blocks.0.mlp.up.weight").shape
    return {
        "width": width,
        "layers": depth_of(ours, f"{tower}.blocks."),
        "heads": max(width // 64, 1),
        "mlp_width": mlp_width,
    }


def hub_section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values of a tower; ``<name>_dict`` of early configs overrides ``<name>``."""
    legacy = values.get(f"{name}_dict")
    section = legacy if legacy is not None else values.get(name) or {}
    if not isinstance(section, Mapping):
        raise CheckpointError(f"config.json: {name} should be an object, is {section!r:.60}")
    return {key: value for key, value in section.items() if value is not None}


def hub_tower_sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a tower in a ``config.json`` of transformers, by our names."""
    act = values["hidden_act"]
    return {
        "width": values["hidden_size"],
        "layers": values["num_hidden_layers"],
        "heads": values["num_attention_heads"],
        "mlp_width": values["intermediate_size"],
        "activation": "gelu_tanh" if act == "gelu_pytorch_tanh" else act,
        "norm_eps": values["layer_norm_eps"],
    }


def depth_of(weights: Weights, prefix: str) -> int:
    """Return the number of modules in the list ``prefix``."""
    return len({n[len(prefix) :].split(".")[0] for n in weights if n.startswith(prefix)})


def rename(weights: Weights, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Select and rename weights; ``names`` maps new names to old ones, of weights or modules."""
    result = {}
    for new, old in names.items():
        if old in weights or f"{old}.weight" not in weights:
            result[new] = take(weights, old)
        else:
            for kind in ("weight", "bias"):
                result[f"{new}.{kind}"] = take(weights, f"{old}.{kind}")
    return result


def take(weights: Weights, name: str) -> Tensor:
    """Return a weight; raise ``CheckpointError`` if it is missing."""
    if name not in weights:
        first = ", ".join(sorted(weights)[:3])
        raise CheckpointError(
            f"the checkpoint has no weight {name!r} (it has {len(weights)}: {first}, ...); "
            "expected a model with both towers"
        )
    return weights[name]
