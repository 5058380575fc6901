"""Folders of CLIP in the layout of transformers, written from encoders of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import trainers
from torch import Tensor

from eaglenet.core.files import write_json, write_tensors
from eaglenet.core.types import Tokenizer
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_LOGIT_SCALE, ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.clip_files import LEGACY_END_TOKEN, METACLIP_2
from eaglenet.encoders.tokenizers import END, WORD_END, ClipTokenizer, _byte_alphabet, _pipeline
from eaglenet.encoders.weight_names import HUB_BLOCK_NAMES, HUB_TEXT, HUB_VISION, rename

PATCHES = "vision_model.embeddings.patch_embedding.weight"


def save_clip(encoder: ClipEncoder, tokenizer: Tokenizer | None, folder: str | Path) -> None:
    """Write a folder that ``load_clip`` and transformers' ``CLIPModel`` read."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_hub(encoder.state_dict(), encoder.config)
    write_tensors(folder / "model.safetensors", weights)
    write_json(folder / "config.json", config_to_hub(encoder.config))
    write_json(folder / "preprocessor_config.json", preprocessor_to_hub(encoder.config))
    if tokenizer is not None:
        tokenizer.save(folder)


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


def _section_of(tower: VisionConfig | TextConfig) -> dict[str, Any]:
    return {
        "hidden_size": tower.width,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads,
        "intermediate_size": tower.mlp_width,
        "hidden_act": tower.activation,
        "layer_norm_eps": tower.norm_eps,
    }


def to_hub(weights: Mapping[str, Tensor], config: ClipConfig) -> dict[str, Tensor]:
    """The inverse of ``from_hub``."""
    theirs = rename(
        weights, {b: a for a, b in {**HUB_VISION, **HUB_TEXT, "logit_scale": "logit_scale"}.items()}
    )
    for tower, depth in (("vision", config.vision.layers), ("text", config.text.layers)):
        for index in range(depth):
            layer, block = f"{tower}_model.encoder.layers.{index}", f"{tower}.blocks.{index}"
            names = {f"{layer}.{b}": f"{block}.{a}" for a, b in HUB_BLOCK_NAMES.items()}
            theirs |= rename(weights, names)
            for kind in ("weight", "bias"):
                parts = weights[f"{block}.attention.qkv.{kind}"].chunk(3)
                for letter, part in zip("qkv", parts, strict=True):
                    theirs[f"{layer}.self_attn.{letter}_proj.{kind}"] = part
    side = config.vision.patch_size
    theirs[PATCHES] = weights["vision.patch_embedding.projection.weight"].reshape(-1, 3, side, side)
    return {name: weight.detach().cpu().contiguous() for name, weight in theirs.items()}


def learn_tokenizer(words: Iterable[str]) -> ClipTokenizer:
    """A small vocabulary in which every one of these words is one token."""
    learner = _pipeline({END: 0}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=1_000_000,
        initial_alphabet=_byte_alphabet(),
        end_of_word_suffix=WORD_END,
        show_progress=False,
    )
    learner.train_from_iterator(list(words), trainer)
    merges = [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    return ClipTokenizer.from_merges(merges)
