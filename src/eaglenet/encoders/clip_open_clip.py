"""CLIP and MetaCLIP 2 in open_clip's layout: ``open_clip_config.json`` beside the weights.

The weights have OpenAI's names; what they do not tell (activation, heads, where a sentence is read,
pixels) is in the file. Options that would change the towers are refused by name: read without
them, a model would load and see nothing rightly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.config import CLIP_PIXEL_MEAN, CLIP_PIXEL_STD, Activation, ClipConfig
from eaglenet.encoders.model_files import (
    OPEN_CLIP_CONFIG,
    fill,
    open_clip_trunk,
    read_json,
    read_open_clip_weights,
)
from eaglenet.encoders.weight_names import Weights, from_openai, openai_config
from eaglenet.errors import CheckpointError, ConfigError

HEAD_WIDTH = 64
TOP = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "init_logit_scale"}
VISION = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "patch_dropout"}
TEXT = {
    *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"),
    *("hf_tokenizer_name", "pool_type", "eos_id"),
}
"""Options whose meaning the towers have; what else a file sets is refused."""


def is_open_clip(location: Path) -> bool:
    """A folder of open_clip whose image tower is open_clip's own, not one of timm."""
    return (location / OPEN_CLIP_CONFIG).is_file() and not open_clip_trunk(location)


def read_open_clip(folder: Path, *, dtype: torch.dtype = torch.float32) -> ClipEncoder:
    """The encoder of such a folder, in eval mode."""
    weights = read_open_clip_weights(folder)
    config = config_from_open_clip(read_json(folder / OPEN_CLIP_CONFIG), weights)
    with torch.device("meta"):
        encoder = ClipEncoder(config)
    return fill(encoder, from_openai(weights, config), folder, dtype)


def config_from_open_clip(values: Mapping[str, Any], weights: Weights) -> ClipConfig:
    """Our config: sizes by the weights, the rest by ``open_clip_config.json``."""
    plain = values.get("model_cfg", values)
    pictures = values.get("preprocess_cfg") or {}
    vision, text = (plain.get(name) or {} for name in ("vision_cfg", "text_cfg"))
    odd = [
        f"{title}{name}"
        for title, section, known in (
            ("", plain, TOP),
            ("vision ", vision, VISION),
            ("text ", text, TEXT),
        )
        for name in sorted(set(section) - known)
        if section[name]
    ]
    if text.get("pool_type", "argmax") not in ("argmax", "eos"):
        odd.append(f"text pool_type {text['pool_type']!r}")
    if pictures.get("resize_mode", "shortest") != "shortest":
        odd.append(f"resize_mode {pictures['resize_mode']!r}")
    if odd:
        raise CheckpointError(
            f"{OPEN_CLIP_CONFIG}: {', '.join(odd)} are not of CLIP's own towers; load the model "
            "by open_clip's name: openclip:NAME/PRETRAINED"
        )
    activation: Activation = "quick_gelu" if plain.get("quick_gelu") else "gelu"
    try:
        sizes = openai_config(weights)
        return dataclasses.replace(
            sizes,
            vision=dataclasses.replace(
                sizes.vision,
                heads=sizes.vision.width // vision.get("head_width", HEAD_WIDTH),
                activation=activation,
            ),
            text=dataclasses.replace(
                sizes.text,
                heads=text.get("heads", sizes.text.heads),
                activation=activation,
                end_token=text.get("eos_id", 2) if text.get("pool_type") == "eos" else None,
            ),
            pixel_mean=tuple(pictures.get("mean", CLIP_PIXEL_MEAN)),
            pixel_std=tuple(pictures.get("std", CLIP_PIXEL_STD)),
        )
    except (ConfigError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"{OPEN_CLIP_CONFIG}: {error}") from error
