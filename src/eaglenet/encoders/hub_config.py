"""``config.json`` of a CLIP folder on the hub, to our config and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglenet.encoders.config import (
    CLIP_LOGIT_SCALE,
    CLIP_PIXEL_MEAN,
    CLIP_PIXEL_STD,
    ClipConfig,
    TextConfig,
    VisionConfig,
)
from eaglenet.errors import CheckpointError, ConfigError
from eaglenet.settings import from_plain

# transformers leaves values out that equal its defaults, so these are part of the format.
TEXT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}
VISION_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
LEGACY_END_TOKEN = 2
"""Written into CLIP's early configs by mistake; it means "the largest id"."""
METACLIP_2 = "metaclip_2"
"""CLIP's towers over XLM-R's vocabulary, whose end token is 2 indeed."""


def config_from_hub(
    values: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
) -> ClipConfig:
    """Our config from ``config.json`` and, where there is one, ``preprocessor_config.json``."""
    kind = values.get("model_type", "clip")
    if kind not in ("clip", METACLIP_2):
        raise CheckpointError(
            f"config.json describes a {kind!r} model; expected model_type 'clip' "
            "(CLIP, LAION or MetaCLIP in transformers' format)"
        )
    text = TEXT_DEFAULTS | _section(values, "text_config")
    vision = VISION_DEFAULTS | _section(values, "vision_config")
    if vision["num_channels"] != 3:
        raise CheckpointError(f"the image tower takes {vision['num_channels']} channels, not 3")
    preprocessor = preprocessor or {}
    try:
        return from_plain(
            ClipConfig,
            {
                "dim": values.get("projection_dim", 512),
                "vision": {
                    "image_size": _square(vision["image_size"]),
                    "patch_size": _square(vision["patch_size"]),
                    **_tower(vision),
                },
                "text": {
                    "vocabulary_size": text["vocab_size"],
                    "context_length": text["max_position_embeddings"],
                    "end_token": _end_token(text["eos_token_id"], is_legacy=kind == "clip"),
                    **_tower(text),
                },
                "pixel_mean": preprocessor.get("image_mean", CLIP_PIXEL_MEAN),
                "pixel_std": preprocessor.get("image_std", CLIP_PIXEL_STD),
            },
        )
    except (ConfigError, TypeError, ValueError, LookupError) as error:
        raise CheckpointError(f"config.json: {error}") from error


def config_to_hub(config: ClipConfig) -> dict[str, Any]:
    """``config.json`` for transformers' ``CLIPModel``, or ``MetaClip2Model`` where it fits."""
    text, vision = config.text, config.vision
    end_token = LEGACY_END_TOKEN if text.end_token is None else text.end_token
    is_metaclip = text.end_token == LEGACY_END_TOKEN
    family = METACLIP_2 if is_metaclip else "clip"
    return {
        "architectures": ["MetaClip2Model" if is_metaclip else "CLIPModel"],
        "model_type": family,
        "projection_dim": config.dim,
        "logit_scale_init_value": CLIP_LOGIT_SCALE,
        "text_config": {
            "model_type": f"{family}_text_model",
            "vocab_size": text.vocabulary_size,
            "max_position_embeddings": text.context_length,
            "projection_dim": config.dim,
            "eos_token_id": end_token,
            **_section_of(text),
        },
        "vision_config": {
            "model_type": f"{family}_vision_model",
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "projection_dim": config.dim,
            **_section_of(vision),
        },
    }


def preprocessor_to_hub(config: ClipConfig) -> dict[str, Any]:
    """``preprocessor_config.json``: how transformers makes the same pixels from an image."""
    size = config.vision.image_size
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "image_mean": list(config.pixel_mean),
        "image_std": list(config.pixel_std),
    }


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A tower's own values. ``<name>_dict`` is how early configs said it, and it wins."""
    legacy = values.get(f"{name}_dict")
    given = legacy if legacy is not None else values.get(name) or {}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json: {name} should be an object, is {given!r:.60}")
    return {key: value for key, value in given.items() if value is not None}


def _tower(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "width": values["hidden_size"],
        "layers": values["num_hidden_layers"],
        "heads": values["num_attention_heads"],
        "mlp_width": values["intermediate_size"],
        "activation": values["hidden_act"],
        "norm_eps": values["layer_norm_eps"],
    }


def _section_of(tower: VisionConfig | TextConfig) -> dict[str, Any]:
    return {
        "hidden_size": tower.width,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads,
        "intermediate_size": tower.mlp_width,
        "hidden_act": tower.activation,
        "layer_norm_eps": tower.norm_eps,
    }


def _square(size: Any) -> Any:
    if isinstance(size, int):
        return size
    if not isinstance(size, list) or len({str(side) for side in size}) != 1:
        raise CheckpointError(f"images or patches of {size} pixels; only squares are understood")
    return size[0]


def _end_token(value: Any, *, is_legacy: bool) -> Any:
    first = value[0] if isinstance(value, list) and value else value
    return None if is_legacy and first == LEGACY_END_TOKEN else first
