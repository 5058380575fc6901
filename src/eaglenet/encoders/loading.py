"""Trained towers of any family, from a folder, a file or a hub id; tokenizers of model folders."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.core.errors import CheckpointError, ModelNotFoundError
from eaglenet.core.types import Tokenizer
from eaglenet.encoders.catalogue import HUB_IDS, ST_PREFIX
from eaglenet.encoders.hub import find_hub_folder
from eaglenet.encoders.openclip import PREFIX, load_openclip
from eaglenet.encoders.registry import ENCODERS, Pretrained
from eaglenet.encoders.tokenizers import ClipTokenizer, JsonTokenizer


def load_pretrained(
    name_or_folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: str | Path | None = None,
) -> Pretrained:
    """A trained encoder in eval mode with its tokenizer, of the family its files say.

    Args:
        name_or_folder: a folder or file as the makers publish it, a hub id, a short name, or
            ``openclip:NAME/PRETRAINED``, or ``st:MODEL``.
        tokenizer: a folder or table to take the vocabulary from, where the model has none.
    """
    name = HUB_IDS.get(str(name_or_folder), str(name_or_folder))
    if name.startswith(PREFIX):
        return load_openclip(name)
    if name.startswith(ST_PREFIX):
        from eaglenet.encoders.sentence_transformer import load_st

        return load_st(name)
    path = Path(name_or_folder).expanduser()
    location = path if path.exists() else find_hub_folder(str(name_or_folder))
    for family in ENCODERS:
        spec = ENCODERS[family]
        if spec.load is not None and spec.recognises(location):
            return spec.load(location, dtype=dtype, tokenizer=tokenizer)
    families = ", ".join(ENCODERS[name].title for name in ENCODERS if ENCODERS[name].load)
    if not (location / "config.json").is_file():
        raise ModelNotFoundError(
            f"{location} has no config.json; expected a folder of a known model ({families})"
        )
    raise CheckpointError(f"{location}: a model of no known family (known: {families})")


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer that was saved in a model folder; None where there is none."""
    if not (folder / "tokenizer.json").is_file():
        return None
    if JsonTokenizer.is_saved_in(folder):
        return JsonTokenizer.load(folder)
    return ClipTokenizer.from_folder(folder)
