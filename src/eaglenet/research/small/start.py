"""Initial weights of ``small``: DINOv2 ViT-S/14 and MiniLM, as published for transformers.

Also reduces the vocabulary to Latin tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import tokenizers
import torch
from jaxtyping import Int
from torch import Tensor

from eaglenet.core.errors import CheckpointError
from eaglenet.encoders.compact import CompactEncoder, resize_positions

WEIGHTS = "model.safetensors"
VISION_NAMES = {
    "attention.out": "attention.output.dense",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
TEXT_NAMES = {
    "attention.out": "attention.output.dense",
    "ln_1": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "ln_2": "output.LayerNorm",
}
"""Names in the published files, by our names."""


def start_from(encoder: CompactEncoder, vision: Path, text: Path) -> None:
    """Copy the weights of two folders into the towers, except for projections."""
    _fill_vision(encoder, _read(vision))
    _fill_text(encoder, _read(text))


def _read(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS if folder.is_dir() else folder
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist; expected a folder with {WEIGHTS} in the format of transformers"
        )
    weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    return {name: value.float() for name, value in weights.items() if value.is_floating_point()}


def _fill_vision(encoder: CompactEncoder, weights: Mapping[str, Tensor]) -> None:
    tower, config = encoder.vision, encoder.config.vision
    positions = resize_positions(weights["embeddings.position_embeddings"][0], config.grid)
    bias = weights["embeddings.patch_embeddings.projection.bias"]
    positions[1:] += bias
    values = {
        "class_embedding": weights["embeddings.cls_token"].flatten(),
        "positional_embedding": positions,
        "patch_embedding.projection.weight": weights[
            "embeddings.patch_embeddings.projection.weight"
        ].flatten(1),
        "norm.weight": weights["layernorm.weight"],
        "norm.bias": weights["layernorm.bias"],
        "projection.weight": tower.projection.weight,
    }
    for number in range(config.layers):
        source, target = f"encoder.layer.{number}.", f"blocks.{number}."
        values |= _block(weights, source, target, "attention.attention", VISION_NAMES)
        values[f"{target}scale_1"] = weights[f"{source}layer_scale1.lambda1"]
        values[f"{target}scale_2"] = weights[f"{source}layer_scale2.lambda1"]
    tower.load_state_dict(values)


def _fill_text(encoder: CompactEncoder, weights: Mapping[str, Tensor]) -> None:
    tower, config = encoder.text, encoder.config.text
    positions = weights["embeddings.position_embeddings.weight"][: config.context_length]
    values = {
        "embedding.weight": weights["embeddings.word_embeddings.weight"],
        # All tokens have the first token type, so its vector is added to the positions.
        "positional_embedding": positions + weights["embeddings.token_type_embeddings.weight"][0],
        "norm.weight": weights["embeddings.LayerNorm.weight"],
        "norm.bias": weights["embeddings.LayerNorm.bias"],
        "projection.weight": tower.projection.weight,
    }
    for number in range(config.layers):
        source, target = f"encoder.layer.{number}.", f"blocks.{number}."
        values |= _block(weights, source, target, "attention.self", TEXT_NAMES)
    tower.load_state_dict(values)


def _block(
    weights: Mapping[str, Tensor],
    source: str,
    target: str,
    attention: str,
    names: Mapping[str, str],
) -> dict[str, Tensor]:
    """Rename the weights of a block, and concatenate queries, keys and values."""
    values = {}
    for kind in ("weight", "bias"):
        projections = [
            weights[f"{source}{attention}.{name}.{kind}"] for name in ("query", "key", "value")
        ]
        values[f"{target}attention.qkv.{kind}"] = torch.cat(projections)
        for our_name, published_name in names.items():
            values[f"{target}{our_name}.{kind}"] = weights[f"{source}{published_name}.{kind}"]
    return values


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def keep_latin_pieces(
    backend: tokenizers.Tokenizer,
) -> tuple[tokenizers.Tokenizer, Int[Tensor, "pieces"]]:
    """Reduce the vocabulary to ASCII; return the tokenizer and the old ids of its tokens.

    Words without removed tokens are split as before; others into shorter tokens or ``[UNK]``.
    """
    plain: dict[str, Any] = json.loads(backend.to_str())
    if plain["model"]["type"] != "WordPiece":
        raise CheckpointError(f"expected word pieces, got {plain['model']['type']}")
    old_ids = sorted(plain["model"]["vocab"].items(), key=lambda entry: int(entry[1]))
    remaining_ids = [
        (token, number)
        for token, number in old_ids
        if token in SPECIAL or (token.isascii() and not token.startswith("["))
    ]
    new_ids = {token: number for number, (token, _) in enumerate(remaining_ids)}
    plain["model"]["vocab"] = new_ids
    plain["truncation"] = plain["padding"] = None
    plain["added_tokens"] = [
        {**token, "id": new_ids[token["content"]]}
        for token in plain["added_tokens"]
        if token["content"] in new_ids
    ]
    _renumber(plain["post_processor"], new_ids)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
    return tokenizer, torch.tensor([number for _, number in remaining_ids])


def _renumber(node: Any, new_ids: dict[str, int]) -> None:
    """Replace the ids of special tokens in a post-processor."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("sep", "cls") and isinstance(value, list):
                node[name] = [value[0], new_ids[value[0]]]
            elif name == "special_tokens":
                for token, entry in value.items():
                    entry["ids"] = [new_ids[token]]
            else:
                _renumber(value, new_ids)
    elif isinstance(node, list):
        for value in node:
            _renumber(value, new_ids)
