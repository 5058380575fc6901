"""Trained CLIP models: from a folder, a hub id or an OpenAI file, and back into a folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_open_clip import is_open_clip, read_open_clip
from eaglenet.encoders.clip_tokenizer import ClipTokenizer
from eaglenet.encoders.hub_cache import find_hub_folder
from eaglenet.encoders.hub_config import (
    METACLIP_2,
    config_from_hub,
    config_to_hub,
    preprocessor_to_hub,
)
from eaglenet.encoders.json_tokenizer import FILE, JsonTokenizer, TokenizerSettings
from eaglenet.encoders.model_files import (
    fill,
    model_type,
    read_json,
    read_optional_json,
    read_weights,
    write_json,
)
from eaglenet.encoders.openai_archive import load_openai_clip
from eaglenet.encoders.weight_names import from_hub, to_hub
from eaglenet.errors import CheckpointError, ConfigError, ModelNotFoundError
from eaglenet.files import write_tensors
from eaglenet.types import Tokenizer


def load_clip(
    name_or_folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: str | Path | None = None,
) -> tuple[ClipEncoder, Tokenizer]:
    """A trained encoder in eval mode, and the tokenizer that belongs to it.

    Args:
        name_or_folder: a folder of transformers (config.json, model.safetensors) or of open_clip
            (open_clip_config.json), an OpenAI ``.pt`` file, a hub id such as
            ``openai/clip-vit-base-patch32``, or OpenAI's name, such as ``ViT-B/32``.
        tokenizer: a folder or BPE table to take the vocabulary from, where the model has none.
    """
    path = Path(name_or_folder).expanduser()
    if path.is_file() and is_open_clip(path.parent):
        path = path.parent  # its weights alone do not tell which activation they are for
    if path.is_file():
        encoder = load_openai_clip(path, dtype=dtype)
        words = _read_tokenizer(tokenizer) if tokenizer else _openai_tokenizer(path)
        return encoder, _fitting(words, encoder, path)
    folder = path if path.is_dir() else find_hub_folder(str(name_or_folder))
    kind = model_type(folder)
    if kind not in ("clip", METACLIP_2) and is_open_clip(folder):
        encoder = read_open_clip(folder, dtype=dtype)
        if encoder.config.text.end_token is None:
            return encoder, _fitting(clip_tokenizer_for(folder, tokenizer), encoder, folder)
    else:
        encoder = read_clip_folder(folder, dtype=dtype)
        if kind != METACLIP_2:
            return encoder, _read_tokenizer(tokenizer or folder)
    return encoder, read_xlm_tokenizer(Path(tokenizer or folder), encoder.context_length)


def _fitting(tokenizer: ClipTokenizer, encoder: ClipEncoder, location: Path) -> ClipTokenizer:
    """Refuse a vocabulary that is not the one of the weights: every sentence would be nonsense."""
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
    path = folder / FILE if folder.is_dir() else folder
    if not path.is_file():
        raise ModelNotFoundError(f"no {FILE} in {folder}; copy the one of the model there")
    return JsonTokenizer.from_file(path, TokenizerSettings(context_length, pad_id=1))


def save_clip(encoder: ClipEncoder, tokenizer: Tokenizer | None, folder: str | Path) -> None:
    """Write a folder that :func:`load_clip` and transformers' ``CLIPModel`` read."""
    if encoder.config.vision.frame_positions:
        raise ConfigError(
            "CLIP's format has no place for frame positions; keep this tower in a model folder "
            "(eaglenet.save)"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_hub(encoder.state_dict(), encoder.config)
    write_tensors(folder / "model.safetensors", weights)
    write_json(folder / "config.json", config_to_hub(encoder.config))
    write_json(folder / "preprocessor_config.json", preprocessor_to_hub(encoder.config))
    if tokenizer is not None:
        tokenizer.save(folder)


def read_clip_folder(folder: Path, *, dtype: torch.dtype = torch.float32) -> ClipEncoder:
    """The encoder of a folder in the hub's format, in eval mode."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"{folder} has no config.json; expected a CLIP folder")
    config = config_from_hub(
        read_json(folder / "config.json"),
        read_optional_json(folder / "preprocessor_config.json"),
    )
    with torch.device("meta"):
        encoder = ClipEncoder(config)
    return fill(encoder, from_hub(read_weights(folder), config), folder, dtype)


def clip_tokenizer_for(location: Path, tokenizer: str | Path | None) -> ClipTokenizer:
    """CLIP's vocabulary for weights in ``location``: as asked, beside them, or from a package."""
    if tokenizer is not None:
        return _read_tokenizer(tokenizer)
    return _openai_tokenizer(location if location.is_file() else location / "weights")


def _read_tokenizer(source: str | Path) -> ClipTokenizer:
    path = Path(source)
    return ClipTokenizer.from_table(path) if path.is_file() else ClipTokenizer.from_folder(path)


def _openai_tokenizer(path: Path) -> ClipTokenizer:
    """OpenAI's files carry no vocabulary: beside the file, or in a package that has the table."""
    looked_in = [path.parent]
    for package in ("clip", "open_clip"):
        # Found, not imported.
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
        "bpe_simple_vocab_16e6.txt.gz beside it, or pass tokenizer=FOLDER"
    )
