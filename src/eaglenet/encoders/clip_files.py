"""Trained CLIP models from a folder, a hub id or an OpenAI file."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglenet.core.errors import CheckpointError, ConfigError, ModelNotFoundError
from eaglenet.core.settings import from_plain
from eaglenet.encoders import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_PIXEL_MEAN, CLIP_PIXEL_STD, Activation, ClipConfig
from eaglenet.encoders.hub import OPEN_CLIP_CONFIG, find_hub_folder
from eaglenet.encoders.openai_archive import load_openai_clip
from eaglenet.encoders.tokenizers import FILE, ClipTokenizer, JsonTokenizer, TokenizerSettings
from eaglenet.encoders.weight_names import (
    Weights,
    clip_config,
    from_hub,
    from_openai,
    hub_section,
    hub_tower_sizes,
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

# ``config.json`` of a CLIP folder on the hub, to our config and back.

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
"""CLIP's towers over XLM-R's vocabulary, whose end token really is 2."""


def config_from_hub(
    values: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
) -> ClipConfig:
    """Convert ``config.json`` and, if it exists, ``preprocessor_config.json``."""
    kind = values.get("model_type", "clip")
    if kind not in ("clip", METACLIP_2):
        raise CheckpointError(
            f"config.json describes a {kind!r} model; expected model_type 'clip' "
            "(CLIP, LAION or MetaCLIP in transformers' format)"
        )
    text = TEXT_DEFAULTS | hub_section(values, "text_config")
    vision = VISION_DEFAULTS | hub_section(values, "vision_config")
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
                    **hub_tower_sizes(vision),
                },
                "text": {
                    "vocabulary_size": text["vocab_size"],
                    "context_length": text["max_position_embeddings"],
                    "end_token": _end_token(text["eos_token_id"], is_legacy=kind == "clip"),
                    **hub_tower_sizes(text),
                },
                "pixel_mean": preprocessor.get("image_mean", CLIP_PIXEL_MEAN),
                "pixel_std": preprocessor.get("image_std", CLIP_PIXEL_STD),
            },
        )
    except (ConfigError, TypeError, ValueError, LookupError) as error:
        raise CheckpointError(f"config.json: {error}") from error


def _square(size: Any) -> Any:
    if isinstance(size, int):
        return size
    if not isinstance(size, list) or len({str(side) for side in size}) != 1:
        raise CheckpointError(f"images or patches of {size} pixels; only squares are supported")
    return size[0]


def _end_token(value: Any, *, is_legacy: bool) -> Any:
    first = value[0] if isinstance(value, list) and value else value
    return None if is_legacy and first == LEGACY_END_TOKEN else first


# CLIP and MetaCLIP 2 in open_clip's layout: ``open_clip_config.json`` beside the weights.

HEAD_WIDTH = 64
TOP = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "init_logit_scale"}
VISION = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "patch_dropout"}
TEXT = {
    *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"),
    *("hf_tokenizer_name", "pool_type", "eos_id"),
}
"""Supported options; a file that sets others is refused."""


def is_open_clip(location: Path) -> bool:
    """Recognise a folder of open_clip whose image tower is open_clip's own, not timm's."""
    return (location / OPEN_CLIP_CONFIG).is_file() and not open_clip_trunk(location)


def read_open_clip(folder: Path) -> ClipEncoder:
    """Read the encoder of such a folder, in eval mode."""
    weights = from_openai(read_open_clip_weights(folder))
    config = config_from_open_clip(read_json(folder / OPEN_CLIP_CONFIG), weights)
    return make_encoder(ClipEncoder, config, weights, folder)


def config_from_open_clip(values: Mapping[str, Any], weights: Weights) -> ClipConfig:
    """Convert ``open_clip_config.json``; sizes are read off the weights."""
    plain = values.get("model_cfg", values)
    images = values.get("preprocess_cfg") or {}
    vision, text = (plain.get(name) or {} for name in ("vision_cfg", "text_cfg"))
    odd = [
        f"{title}{name}"
        for title, section, supported_names in (
            ("", plain, TOP),
            ("vision ", vision, VISION),
            ("text ", text, TEXT),
        )
        for name in sorted(set(section) - supported_names)
        if section[name]
    ]
    if text.get("pool_type", "argmax") not in ("argmax", "eos"):
        odd.append(f"text pool_type {text['pool_type']!r}")
    if images.get("resize_mode", "shortest") != "shortest":
        odd.append(f"resize_mode {images['resize_mode']!r}")
    if odd:
        raise CheckpointError(
            f"{OPEN_CLIP_CONFIG}: {', '.join(odd)} are not of CLIP's own towers; load the model "
            "by open_clip's name: openclip:NAME/PRETRAINED"
        )
    activation: Activation = "quick_gelu" if plain.get("quick_gelu") else "gelu"
    try:
        sizes = clip_config(weights)
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
            pixel_mean=tuple(images.get("mean", CLIP_PIXEL_MEAN)),
            pixel_std=tuple(images.get("std", CLIP_PIXEL_STD)),
        )
    except (ConfigError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"{OPEN_CLIP_CONFIG}: {error}") from error


def load_clip(name_or_folder: str | Path) -> Pretrained:
    """Load a trained encoder in eval mode, and its tokenizer.

    Args:
        name_or_folder: a folder of transformers (config.json, model.safetensors) or of open_clip
            (open_clip_config.json), an OpenAI ``.pt`` file, a hub id such as
            ``openai/clip-vit-base-patch32``, or OpenAI's name, such as ``ViT-B/32``.
    """
    path = Path(name_or_folder).expanduser()
    if path.is_file() and is_open_clip(path.parent):
        path = path.parent  # weights alone do not determine the activation
    if path.is_file():
        encoder = load_openai_clip(path)
        return Pretrained(encoder, _check_vocabulary(_openai_tokenizer(path), encoder, path))
    folder = path if path.is_dir() else find_hub_folder(str(name_or_folder))
    kind = model_type(folder)
    if kind not in ("clip", METACLIP_2) and is_open_clip(folder):
        encoder = read_open_clip(folder)
        if encoder.config.text.end_token is None:
            tokenizer = _check_vocabulary(clip_tokenizer_for(folder), encoder, folder)
            return Pretrained(encoder, tokenizer)
    else:
        encoder = read_clip_folder(folder)
        if kind != METACLIP_2:
            return Pretrained(encoder, ClipTokenizer.from_folder(folder))
    return Pretrained(encoder, read_xlm_tokenizer(folder, encoder.context_length))


def _check_vocabulary(
    tokenizer: ClipTokenizer, encoder: ClipEncoder, location: Path
) -> ClipTokenizer:
    """Refuse a vocabulary of another size than that of the weights."""
    rows = encoder.config.text.vocabulary_size
    if tokenizer.vocabulary_size != rows:
        raise CheckpointError(
            f"{location}: weights for {rows:,} word pieces, but CLIP's vocabulary has "
            f"{tokenizer.vocabulary_size:,}; give the folder of the model as it is on the hub, "
            "with its tokenizer.json (MetaCLIP 2: facebook/metaclip-2-...)"
        )
    return tokenizer


def read_xlm_tokenizer(folder: Path, context_length: int) -> JsonTokenizer:
    """MetaCLIP 2's tokenizer, XLM-R's: <s>, pieces of a Unigram, </s>, then pads (1)."""
    if not (folder / FILE).is_file():
        raise ModelNotFoundError(f"no {FILE} in {folder}; copy the one of the model there")
    return JsonTokenizer.from_file(folder / FILE, TokenizerSettings(context_length, pad_id=1))


def read_clip_folder(folder: Path) -> ClipEncoder:
    """Read the encoder of a folder in transformers' format, in eval mode."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"{folder} has no config.json; expected a CLIP folder")
    config = config_from_hub(
        read_json(folder / "config.json"),
        read_optional_json(folder / "preprocessor_config.json"),
    )
    return make_encoder(ClipEncoder, config, from_hub(read_weights(folder)), folder)


def clip_tokenizer_for(location: Path) -> ClipTokenizer:
    """Read CLIP's vocabulary, beside the weights or from a package."""
    return _openai_tokenizer(location if location.is_file() else location / "weights")


def _openai_tokenizer(path: Path) -> ClipTokenizer:
    """Read the vocabulary beside a file of OpenAI, which has none, or in a package."""
    looked_in = [path.parent]
    for package in ("clip", "open_clip"):
        # The package is located, not imported.
        spec = importlib.util.find_spec(package)
        looked_in += [
            Path(location) for location in (spec and spec.submodule_search_locations) or ()
        ]
    for folder in looked_in:
        try:
            return ClipTokenizer.from_folder(folder)
        except ModelNotFoundError:
            continue
    locations = ", ".join(str(folder) for folder in looked_in)
    raise ModelNotFoundError(
        f"{path} has weights but no vocabulary; looked in {locations}. Put tokenizer.json or "
        "bpe_simple_vocab_16e6.txt.gz beside it"
    )


def is_clip(location: Path) -> bool:
    """Recognise an OpenAI file, or a folder of CLIP or MetaCLIP 2.

    Also a folder of open_clip with its own towers, or with a ``config.json`` that names no type
    and no timm trunk.
    """
    if location.is_file():
        return not location.name.lower().startswith("pe-core")
    kind = model_type(location)
    if kind in ("clip", "metaclip_2"):
        return True
    return is_open_clip(location) or (kind == "" and not open_clip_trunk(location))


ENCODERS.add(
    "clip",
    EncoderSpec(
        title="CLIP (OpenAI, LAION, MetaCLIP, MetaCLIP 2)",
        config_class=ClipConfig,
        build=ClipEncoder,
        recognises=is_clip,
        load=load_clip,
    ),
)
