"""Folders of SigLIP as they are published: config, weights, tokenizer."""

from __future__ import annotations

import string
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError, ModelNotFoundError
from eaglenet.encoders.registry import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.siglip import (
    PIXEL_HALF,
    SiglipConfig,
    SiglipEncoder,
    SiglipTextConfig,
    SiglipVisionConfig,
)
from eaglenet.encoders.tokenizers import FILE, JsonTokenizer, TokenizerSettings, read_backend
from eaglenet.encoders.weight_names import (
    PATCHES,
    Weights,
    fused_pooling,
    hub_blocks,
    openai_blocks,
    rename,
    take,
    timm_blocks,
    timm_pooling,
    tower_sizes,
)
from eaglenet.encoders.weights import (
    fill,
    model_type,
    open_clip_trunk,
    read_json,
    read_open_clip_weights,
    read_optional_json,
    read_weights,
)

# SigLIP in the layout of timm and open_clip: a timm trunk and open_clip's text tower.

GEMMA_VOCABULARY = 256000
OPEN_CLIP_NAMES = {
    "vision.ln_post": "visual.trunk.norm",
    "text.token_embedding.weight": "text.token_embedding.weight",
    "text.positional_embedding": "text.positional_embedding",
    "text.ln_final": "text.ln_final",
    "text.projection": "text.text_projection",
}


def from_open_clip(weights: Weights) -> dict[str, Tensor]:
    """Weights of open_clip's ``CustomTextCLIP`` by our names."""
    trunk = "visual.trunk"
    ours = rename(weights, OPEN_CLIP_NAMES) | timm_blocks(weights, f"{trunk}.blocks")
    ours |= timm_pooling(weights, f"{trunk}.attn_pool")
    ours |= openai_blocks(weights, "text", "text.transformer")
    ours["vision.positional_embedding"] = take(weights, f"{trunk}.pos_embed")[0]
    return ours | _patches_and_scale(weights, f"{trunk}.patch_embed.proj")


def _patches_and_scale(weights: Weights, patches: str) -> dict[str, Tensor]:
    return {
        PATCHES: take(weights, f"{patches}.weight").flatten(1),
        "vision.patch_embedding.projection.bias": take(weights, f"{patches}.bias"),
        "logit_scale": take(weights, "logit_scale").reshape(()),
        "logit_bias": take(weights, "logit_bias").reshape(()),
    }


def config_from_weights(ours: Weights) -> SiglipConfig:
    """Return the shape of a model, read off its weights."""
    vision, text = tower_sizes(ours)
    for sizes in (vision, text):
        sizes["heads"] = min(sizes["heads"], 16)  # So400m: 72 wide, giant: 96
    pad_token = 0 if text["vocabulary_size"] == GEMMA_VOCABULARY else 1
    return SiglipConfig(SiglipVisionConfig(**vision), SiglipTextConfig(**text, pad_token=pad_token))


# SentencePiece's own file (``spiece.model``), read into the tokenizer library.

SPIECE = "spiece.model"
SPACE = "\u2581"
END = "</s>"
PIECES, TRAINER, NORMALIZER = 1, 2, 3
"""Fields of the file."""
PIECE, SCORE, KIND = 1, 2, 3
"""Of a piece."""
MODEL_KIND, BYTE_FALLBACK, UNKNOWN = 3, 35, 40
"""Of the trainer."""
TABLE, PREFIX = 2, 3
"""Of the normaliser."""
UNIGRAM = 1
CONTROL, USER_DEFINED = 3, 4
"""Kinds of pieces that are never split."""

CASED, IGNORED = r"[\p{Lu}\p{Ll}\p{Lt}]", r"[\p{M}\p{Cf}\p{Lm}\p{Sk}'.:\u00b7\u2018\u2019]"
FINAL_SIGMA = rf"(?<={CASED}|{CASED}{IGNORED}|{CASED}{IGNORED}{IGNORED})\u03a3(?!{IGNORED}*{CASED})"
"""A capital sigma that ends a word: the library lowers letters one by one, where Unicode asks for
another small letter there."""

Value = int | bytes
Fields = dict[int, list[Value]]


def read_sentencepiece(path: Path) -> Backend:
    """The tokenizer of SigLIP that lies in a ``spiece.model``: cleaned text, then its pieces."""
    try:
        fields = _fields(untrusted.read_bytes(path, untrusted.MAX_VOCABULARY))
        pieces = [_fields(_bytes(piece)) for piece in fields.get(PIECES, [])]
        trainer, normalizer = (_message(fields, name) for name in (TRAINER, NORMALIZER))
        kind = _number(trainer, MODEL_KIND, UNIGRAM)
        if kind != UNIGRAM or not _number(normalizer, PREFIX, 1):
            raise ValueError(
                f"a model of kind {kind}; SigLIP's are Unigrams that begin with a space"
            )
        vocabulary = [
            (_bytes(piece[PIECE][0]).decode(), struct.unpack("<f", _bytes(piece[SCORE][0]))[0])
            for piece in pieces
        ]
        backend = Backend(
            models.Unigram(
                vocabulary,
                unk_id=_number(trainer, UNKNOWN, 0),
                byte_fallback=bool(_number(trainer, BYTE_FALLBACK, 0)),
            )
        )
        backend.add_tokens(
            [
                AddedToken(name, normalized=False, special=_number(piece, KIND, 1) == CONTROL)
                for (name, _), piece in zip(vocabulary, pieces, strict=True)
                if _number(piece, KIND, 1) in (CONTROL, USER_DEFINED)
            ]
        )
        table = normalizer.get(TABLE, [b""])[0]
        backend.normalizer = cleaning(_bytes(table))
        end = backend.token_to_id(END)
        if end is None:
            raise ValueError(f"it has no {END}")
    except Exception as error:  # of a damaged file; the library raises plain Exception
        raise CheckpointError(f"{path}: not a SentencePiece model of SigLIP ({error})") from error
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, end)]
    )
    return backend


def cleaning(table: bytes) -> normalizers.Normalizer:
    """Small letters, no punctuation, single spaces, as SigLIP saw texts; then the file's table."""
    punctuation = "[" + "".join("\\" + letter for letter in string.punctuation) + "]"
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(FINAL_SIGMA), "\u03c2"),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(punctuation), ""),
        normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),
        normalizers.Strip(),
    ]
    if table:
        steps += [
            normalizers.Precompiled(table),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    return normalizers.Sequence(steps)


def _message(fields: Fields, number: int) -> Fields:
    return _fields(_bytes(fields.get(number, [b""])[0]))


def _number(fields: Fields, number: int, default: int) -> int:
    value = fields.get(number, [default])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text should be")
    return value


def _fields(content: bytes) -> Fields:
    """The fields of a message by their numbers, each as often as it is there."""
    found: Fields = {}
    for number, value in _read(content):
        found.setdefault(number, []).append(value)
    return found


def _read(content: bytes) -> Iterator[tuple[int, Value]]:
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(content, place)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, place = _varint(content, place)
        if size is None or place + size > len(content):
            raise ValueError("it is cut short or no protocol buffer")
        yield key >> 3, content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(content):
            break
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("it is cut short or no protocol buffer")


# transformers leaves values out that equal its defaults, so these are part of the format.
TOWER_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
TEXT_DEFAULTS = {"vocab_size": 32000, "max_position_embeddings": 64, "pad_token_id": 1}
VISION_DEFAULTS = {"image_size": 224, "patch_size": 16, "num_channels": 3}
NAMES = {
    "vision.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "vision.ln_post": "vision_model.post_layernorm",
    "text.token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "text.positional_embedding": "text_model.embeddings.position_embedding.weight",
    "text.ln_final": "text_model.final_layer_norm",
    "text.projection": "text_model.head",
}


def read_siglip_folder(folder: Path, *, dtype: torch.dtype = torch.float32) -> SiglipEncoder:
    """Read a folder in transformers' or open_clip's layout; returns an encoder in eval mode."""
    if open_clip_trunk(folder):
        ours = from_open_clip(read_open_clip_weights(folder))
        config = config_from_weights(ours)
    else:
        config = config_from_hub(
            read_json(folder / "config.json"),
            read_optional_json(folder / "preprocessor_config.json"),
        )
        ours = from_hub(read_weights(folder))
    with torch.device("meta"):
        encoder = SiglipEncoder(config)
    return fill(encoder, ours, folder, dtype)


def config_from_hub(
    values: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
) -> SiglipConfig:
    """Our config from ``config.json`` and, where there is one, ``preprocessor_config.json``."""
    if values.get("model_type") == "siglip2":
        raise CheckpointError(
            "this is a SigLIP 2 of variable resolution (NaFlex), which is not supported; choose a "
            "fixed-resolution one, such as google/siglip2-base-patch16-224"
        )
    text = TOWER_DEFAULTS | TEXT_DEFAULTS | _section(values, "text_config")
    vision = TOWER_DEFAULTS | VISION_DEFAULTS | _section(values, "vision_config")
    projection = text.get("projection_size") or text["hidden_size"]
    if projection != vision["hidden_size"]:
        raise CheckpointError(
            f"config.json: texts are projected to {projection}, images are "
            f"{vision['hidden_size']} wide; expected one width"
        )
    if vision["num_channels"] != 3 or vision.get("vision_use_head") is False:
        raise CheckpointError("config.json: expected an image tower of 3 channels with its head")
    preprocessor = preprocessor or {}
    return SiglipConfig(
        vision=SiglipVisionConfig(
            image_size=vision["image_size"], patch_size=vision["patch_size"], **_tower(vision)
        ),
        text=SiglipTextConfig(
            vocabulary_size=text["vocab_size"],
            context_length=text["max_position_embeddings"],
            pad_token=text["pad_token_id"],
            **_tower(text),
        ),
        pixel_mean=tuple(preprocessor.get("image_mean", PIXEL_HALF)),
        pixel_std=tuple(preprocessor.get("image_std", PIXEL_HALF)),
    )


def from_hub(weights: Weights) -> dict[str, Tensor]:
    """Return weights of transformers' ``SiglipModel`` by our names."""
    return {
        **rename(weights, NAMES),
        **hub_blocks(weights, "vision"),
        **hub_blocks(weights, "text"),
        **fused_pooling(weights, "vision_model.head", "attention", ("mlp.fc1", "mlp.fc2")),
        **_patches_and_scale(weights, "vision_model.embeddings.patch_embedding"),
    }


def read_siglip_tokenizer(folder: Path, config: SiglipConfig) -> JsonTokenizer:
    """SigLIP's own (its file cleans the text) or SigLIP 2's, Gemma's over lower-cased text.

    SigLIP's may also lie in SentencePiece's own file.
    """
    path = folder / FILE if folder.is_dir() else folder
    text = config.text
    spiece = path.with_name(SPIECE)
    if not path.is_file() and spiece.is_file():
        backend = read_sentencepiece(spiece)
        if backend.get_vocab_size() > text.vocabulary_size:
            raise CheckpointError(
                f"{spiece} has {backend.get_vocab_size()} pieces, the model {text.vocabulary_size}"
                "; they belong to different models"
            )
        return JsonTokenizer(backend, TokenizerSettings(text.context_length, text.pad_token))
    if not path.is_file():
        raise ModelNotFoundError(
            f"no {FILE} and no {SPIECE} in {folder}: put the one that was published with the model "
            "there (SigLIP 2: tokenizer.json), or pass tokenizer=FOLDER"
        )
    backend = read_backend(path)
    settings = read_optional_json(path.parent / "tokenizer_config.json") or {}
    model = read_json(path).get("model", {})
    if model.get("type") == "BPE":  # Gemma's; SigLIP's own is a Unigram
        lower_cased(backend)
    framed(backend, settings)
    return JsonTokenizer(backend, TokenizerSettings(text.context_length, text.pad_token))


def lower_cased(backend: Backend) -> None:
    """Lower-case before all else: SigLIP 2 saw no capitals, and Gemma's file keeps them."""
    own = backend.normalizer
    lower = normalizers.Lowercase()
    backend.normalizer = lower if own is None else normalizers.Sequence([lower, own])


def framed(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Start and end tokens as ``tokenizer_config.json`` says; it wins over ``tokenizer.json``."""
    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return
    before = str(settings.get("bos_token")) if settings.get("add_bos_token") else ""
    after = str(settings.get("eos_token")) if settings.get("add_eos_token") else ""
    special = [(name, backend.token_to_id(name)) for name in (before, after) if name]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(part for part in (before, "$A", after) if part), special_tokens=special
    )


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in (values.get(name) or {}).items() if value is not None}


def _tower(values: Mapping[str, Any]) -> dict[str, Any]:
    if values["hidden_act"] not in ("gelu_pytorch_tanh", "gelu"):
        raise CheckpointError(f"config.json: unknown activation {values['hidden_act']!r}")
    return {
        "width": values["hidden_size"],
        "layers": values["num_hidden_layers"],
        "heads": values["num_attention_heads"],
        "mlp_width": values["intermediate_size"],
        "activation": "gelu" if values["hidden_act"] == "gelu" else "gelu_tanh",
        "norm_eps": values["layer_norm_eps"],
    }


# SigLIP's entry in the table of towers: which files are of one, and how they are read.


def is_siglip(location: Path) -> bool:
    """Of transformers, fixed-resolution models say ``siglip``, both versions, NaFlex ``siglip2``;
    of open_clip, the trunk says it."""
    return model_type(location) in ("siglip", "siglip2") or "siglip" in open_clip_trunk(location)


def _load(location: Path, *, dtype: torch.dtype, tokenizer: str | Path | None) -> Pretrained:
    encoder = read_siglip_folder(location, dtype=dtype)
    source = Path(tokenizer) if tokenizer is not None else location
    return Pretrained(encoder, read_siglip_tokenizer(source, encoder.config))


ENCODERS.add(
    "siglip",
    EncoderSpec(
        name="siglip",
        title="SigLIP and SigLIP 2 of fixed resolution",
        config_class=SiglipConfig,
        build=SiglipEncoder,
        recognises=is_siglip,
        load=_load,
    ),
)
