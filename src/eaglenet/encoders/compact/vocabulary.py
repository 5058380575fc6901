"""A smaller vocabulary: word pieces that nobody who writes the model's language needs go."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tokenizers
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eaglenet.errors import CheckpointError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def is_latin(piece: str) -> bool:
    """Is this a piece of a word in Latin letters, a number or a sign?"""
    return piece in SPECIAL or (piece.isascii() and not piece.startswith("["))


def keep_pieces(
    backend: tokenizers.Tokenizer, keep: Callable[[str], bool] = is_latin
) -> tuple[tokenizers.Tokenizer, Int[Tensor, "kept"]]:
    """The tokenizer with fewer pieces, and the old ids of those that it keeps, in order.

    A word whose pieces are all kept is split as before; another becomes shorter pieces or
    ``[UNK]``.
    """
    plain: dict[str, Any] = json.loads(backend.to_str())
    if plain["model"]["type"] != "WordPiece":
        raise CheckpointError(f"expected word pieces, got {plain['model']['type']}")
    old = sorted(plain["model"]["vocab"].items(), key=lambda entry: int(entry[1]))
    kept = [(piece, number) for piece, number in old if keep(piece)]
    new = {piece: number for number, (piece, _) in enumerate(kept)}
    plain["model"]["vocab"] = new
    plain["truncation"] = plain["padding"] = None
    plain["added_tokens"] = [
        {**token, "id": new[token["content"]]}
        for token in plain["added_tokens"]
        if token["content"] in new
    ]
    _renumber(plain["post_processor"], new)
    smaller = tokenizers.Tokenizer.from_str(json.dumps(plain))
    return smaller, torch.tensor([number for _, number in kept])


def keep_rows(
    embedding: Float[Tensor, "pieces width"], kept: Int[Tensor, "kept"]
) -> Float[Tensor, "kept width"]:
    """The word vectors of a smaller vocabulary."""
    return embedding[kept].clone()


def _renumber(node: Any, new: dict[str, int]) -> None:
    """Ids of special tokens inside a post-processor's description."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("sep", "cls") and isinstance(value, list):
                node[name] = [value[0], new[value[0]]]
            elif name == "special_tokens":
                for token, entry in value.items():
                    entry["ids"] = [new[token]]
            else:
                _renumber(value, new)
    elif isinstance(node, list):
        for value in node:
            _renumber(value, new)
