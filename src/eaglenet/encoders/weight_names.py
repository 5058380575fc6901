"""Our weights by the names two other formats give them: the hub's and OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eaglenet.core.errors import CheckpointError
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig

Weights = Mapping[str, Tensor]

# ours -> theirs. A name without ".weight" or ".bias" stands for both.
HUB_NAMES = {
    "logit_scale": "logit_scale",
    "vision.class_embedding": "vision_model.embeddings.class_embedding",
    "vision.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "vision.ln_pre": "vision_model.pre_layrnorm",  # the hub's spelling
    "vision.ln_post": "vision_model.post_layernorm",
    "vision.projection.weight": "visual_projection.weight",
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
HUB_PATCHES = "vision_model.embeddings.patch_embedding.weight"

OPENAI_NAMES = {
    "logit_scale": "logit_scale",
    "vision.class_embedding": "visual.class_embedding",
    "vision.positional_embedding": "visual.positional_embedding",
    "vision.ln_pre": "visual.ln_pre",
    "vision.ln_post": "visual.ln_post",
    "text.token_embedding.weight": "token_embedding.weight",
    "text.positional_embedding": "positional_embedding",
    "text.ln_final": "ln_final",
}
OPENAI_BLOCK_NAMES = {
    "ln_1": "ln_1",
    "attention.out": "attn.out_proj",
    "ln_2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
SHIFTED = ".attn.net."
"""The released code wraps the attention of its two shifted blocks in one more module."""

OURS_PATCHES = "vision.patch_embedding.projection.weight"


def from_hub(weights: Weights, config: ClipConfig) -> dict[str, Tensor]:
    """Weights of transformers' ``CLIPModel`` by our names."""
    ours = rename(weights, HUB_NAMES)
    for tower, depth in (("vision", config.vision.layers), ("text", config.text.layers)):
        ours |= hub_blocks(weights, tower, depth)
    ours[OURS_PATCHES] = take(weights, HUB_PATCHES).flatten(1)
    return ours


def hub_blocks(weights: Weights, tower: str, depth: int) -> dict[str, Tensor]:
    """The blocks of one tower (``vision`` or ``text``) of a CLIP or SigLIP of transformers."""
    ours: dict[str, Tensor] = {}
    for index in range(depth):
        theirs, block = f"{tower}_model.encoder.layers.{index}", f"{tower}.blocks.{index}"
        names = {f"{block}.{a}": f"{theirs}.{b}" for a, b in HUB_BLOCK_NAMES.items()}
        ours |= rename(weights, names)
        for kind in ("weight", "bias"):
            parts = [take(weights, f"{theirs}.self_attn.{p}_proj.{kind}") for p in "qkv"]
            ours[f"{block}.attention.qkv.{kind}"] = torch.cat(parts)
    return ours


def from_openai(weights: Weights, config: ClipConfig) -> dict[str, Tensor]:
    """Weights of OpenAI's ``CLIP`` class, or of the released code's copy of it, by our names."""
    weights = {name.replace(SHIFTED, ".attn."): value for name, value in weights.items()}
    ours = rename(weights, OPENAI_NAMES)
    ours |= openai_blocks(weights, "vision", "visual.transformer")
    ours |= openai_blocks(weights, "text", "transformer")
    ours[OURS_PATCHES] = take(weights, "visual.conv1.weight").flatten(1)
    # Stored as the right-hand factor of a product; a linear layer keeps the transpose.
    ours["vision.projection.weight"] = take(weights, "visual.proj").T
    ours["text.projection.weight"] = take(weights, "text_projection").T
    return ours


def openai_blocks(weights: Weights, tower: str, prefix: str) -> dict[str, Tensor]:
    """The blocks of one tower in OpenAI's layout, which open_clip's own towers keep."""
    ours: dict[str, Tensor] = {}
    for index in range(depth_of(weights, f"{prefix}.resblocks.")):
        theirs, block = f"{prefix}.resblocks.{index}", f"{tower}.blocks.{index}"
        names = {f"{block}.{a}": f"{theirs}.{b}" for a, b in OPENAI_BLOCK_NAMES.items()}
        ours |= rename(weights, names)
        for kind in ("weight", "bias"):
            fused = take(weights, f"{theirs}.attn.in_proj_{kind}")
            ours[f"{block}.attention.qkv.{kind}"] = fused
    return ours


TIMM_BLOCK_NAMES = {
    "ln_1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "ln_2": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}


def timm_blocks(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The blocks of a timm vision transformer."""
    ours: dict[str, Tensor] = {}
    for index in range(depth_of(weights, f"{prefix}.")):
        block = f"vision.blocks.{index}"
        names = {f"{block}.{a}": f"{prefix}.{index}.{b}" for a, b in TIMM_BLOCK_NAMES.items()}
        ours |= rename(weights, names)
    return ours


def timm_pooling(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """timm's attention pooling with a learnt query."""
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


def openai_config(weights: Weights) -> ClipConfig:
    """The shape of an OpenAI model, read off its weights: heads are 64 wide, always."""
    patches = take(weights, "visual.conv1.weight")
    positions = take(weights, "visual.positional_embedding")
    width, side = patches.shape[0], patches.shape[-1]
    grid = round((positions.shape[0] - 1) ** 0.5)
    vocabulary_size, text_width = take(weights, "token_embedding.weight").shape
    hidden = "resblocks.0.mlp.c_fc.weight"
    return ClipConfig(
        dim=take(weights, "text_projection").shape[1],
        vision=VisionConfig(
            image_size=grid * side,
            patch_size=side,
            width=width,
            layers=depth_of(weights, "visual.transformer.resblocks."),
            heads=max(width // 64, 1),
            mlp_width=take(weights, f"visual.transformer.{hidden}").shape[0],
        ),
        text=TextConfig(
            vocabulary_size=vocabulary_size,
            context_length=take(weights, "positional_embedding").shape[0],
            width=text_width,
            layers=depth_of(weights, "transformer.resblocks."),
            heads=max(text_width // 64, 1),
            mlp_width=take(weights, f"transformer.{hidden}").shape[0],
        ),
    )


def depth_of(weights: Weights, prefix: str) -> int:
    return len({n[len(prefix) :].split(".")[0] for n in weights if n.startswith(prefix)})


def rename(weights: Weights, names: Mapping[str, str]) -> dict[str, Tensor]:
    """``names`` is new -> old; a module's name stands for its weight and its bias."""
    result = {}
    for new, old in names.items():
        if old in weights or f"{old}.weight" not in weights:
            result[new] = take(weights, old)
        else:
            for kind in ("weight", "bias"):
                result[f"{new}.{kind}"] = take(weights, f"{old}.{kind}")
    return result


def take(weights: Weights, name: str) -> Tensor:
    if name not in weights:
        seen = ", ".join(sorted(weights)[:3])
        raise CheckpointError(
            f"the checkpoint has no weight {name!r} (it has {len(weights)}: {seen}, ...); "
            "expected a model with both towers"
        )
    return weights[name]
