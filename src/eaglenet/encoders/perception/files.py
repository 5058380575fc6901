"""PE-Core's weights in the two layouts that are published: open_clip's and Meta's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from eaglenet.encoders.config import TextConfig
from eaglenet.encoders.model_files import fill, read_open_clip_weights, read_weight_file
from eaglenet.encoders.perception.config import PerceptionConfig, PerceptionVisionConfig
from eaglenet.encoders.perception.encoder import PerceptionEncoder
from eaglenet.encoders.weight_names import (
    Weights,
    depth_of,
    openai_blocks,
    rename,
    take,
    timm_blocks,
    timm_pooling,
)
from eaglenet.errors import CheckpointError

GIGANTIC = 1536
"""Width of G, whose heads are 96 wide; in all others they are 64 wide."""
TIMM_NAMES = {
    "vision.ln_pre": "visual.trunk.norm_pre",
    "vision.ln_post": "visual.trunk.norm",
    "vision.projection": "visual.trunk.head",
}
META_NAMES = {"vision.ln_pre": "visual.ln_pre", "vision.ln_post": "visual.ln_post"}
META_POOLING = {
    "vision.pooling.out": "visual.attn_pool.attn.out_proj",
    "vision.pooling.norm": "visual.attn_pool.layernorm",
    "vision.pooling.mlp.up": "visual.attn_pool.mlp.c_fc",
    "vision.pooling.mlp.down": "visual.attn_pool.mlp.c_proj",
}


def read_perception(location: Path, *, dtype: torch.dtype = torch.float32) -> PerceptionEncoder:
    """The encoder of a file or folder, in eval mode; its shape is read off its weights."""
    if (location / "open_clip_config.json").is_file():
        ours = from_open_clip(read_open_clip_weights(location))
    else:
        path = location if location.is_file() else next(iter(sorted(location.glob("PE-Core*.pt"))))
        ours = from_meta(read_weight_file(path))
    config = config_from_weights(ours)
    with torch.device("meta"):
        encoder = PerceptionEncoder(config)
    side = config.vision.patch_size
    name = "vision.patch_embedding.projection.weight"
    if ours[name].shape[-1] != side:
        raise CheckpointError(f"{location}: patches of {list(ours[name].shape[-2:])} pixels")
    ours[name] = ours[name].flatten(1)
    return fill(encoder, ours, location, dtype)


def from_open_clip(weights: Weights) -> dict[str, Tensor]:
    """Weights of open_clip's ``CustomTextCLIP`` over a timm trunk, by our names."""
    trunk = "visual.trunk"
    ours = rename(weights, TIMM_NAMES) | timm_blocks(weights, f"{trunk}.blocks")
    ours |= timm_pooling(weights, f"{trunk}.attn_pool")
    ours["vision.positional_embedding"] = take(weights, f"{trunk}.pos_embed")[0]
    ours["vision.patch_embedding.projection.weight"] = take(
        weights, f"{trunk}.patch_embed.proj.weight"
    )
    if f"{trunk}.cls_token" in weights:
        ours["vision.class_embedding"] = weights[f"{trunk}.cls_token"].flatten()
    text = {name[5:]: value for name, value in weights.items() if name.startswith("text.")}
    return ours | _text(text) | {"logit_scale": take(weights, "logit_scale")}


def from_meta(weights: Weights) -> dict[str, Tensor]:
    """Weights of Meta's own files by our names; they are CLIP's, with another pooling."""
    ours = rename(weights, META_NAMES | META_POOLING)
    ours |= openai_blocks(weights, "vision", "visual.transformer")
    for kind in ("weight", "bias"):
        fused = take(weights, f"visual.attn_pool.attn.in_proj_{kind}").chunk(3)
        for name, part in zip(("query", "key", "value"), fused, strict=True):
            ours[f"vision.pooling.{name}.{kind}"] = part
    ours["vision.pooling.probe"] = take(weights, "visual.attn_pool.probe").flatten()
    ours["vision.positional_embedding"] = take(weights, "visual.positional_embedding")
    ours["vision.patch_embedding.projection.weight"] = take(weights, "visual.conv1.weight")
    if "visual.class_embedding" in weights:
        ours["vision.class_embedding"] = weights["visual.class_embedding"].flatten()
    projection = take(weights, "visual.proj").T
    ours["vision.projection.weight"] = projection
    ours["vision.projection.bias"] = torch.zeros(len(projection), dtype=projection.dtype)
    return ours | _text(weights) | {"logit_scale": take(weights, "logit_scale")}


def _text(weights: Weights) -> dict[str, Tensor]:
    """CLIP's text tower, whose names both layouts keep."""
    names = {
        "text.token_embedding.weight": "token_embedding.weight",
        "text.positional_embedding": "positional_embedding",
        "text.ln_final": "ln_final",
    }
    ours = rename(weights, names) | openai_blocks(weights, "text", "transformer")
    # Stored as the right-hand factor of a product; a linear layer keeps the transpose.
    ours["text.projection.weight"] = take(weights, "text_projection").T
    return ours


def config_from_weights(ours: Mapping[str, Tensor]) -> PerceptionConfig:
    """The shape of a model by its weights."""
    patches = ours["vision.patch_embedding.projection.weight"]
    width, side = patches.shape[0], patches.shape[-1]
    has_class = "vision.class_embedding" in ours
    positions = len(ours["vision.positional_embedding"]) - has_class
    vocabulary, text_width = ours["text.token_embedding.weight"].shape
    return PerceptionConfig(
        dim=len(ours["vision.projection.weight"]),
        vision=PerceptionVisionConfig(
            image_size=round(positions**0.5) * side,
            patch_size=side,
            width=width,
            layers=depth_of(ours, "vision.blocks."),
            heads=16 if width == GIGANTIC else max(width // 64, 1),
            mlp_width=len(ours["vision.blocks.0.mlp.up.weight"]),
            class_token=has_class,
            grid_offset=int(has_class),
        ),
        text=TextConfig(
            vocabulary_size=vocabulary,
            context_length=len(ours["text.positional_embedding"]),
            width=text_width,
            layers=depth_of(ours, "text.blocks."),
            heads=max(text_width // 64, 1),
            mlp_width=len(ours["text.blocks.0.mlp.up.weight"]),
            activation="gelu",
        ),
    )
