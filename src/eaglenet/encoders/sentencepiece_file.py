"""SentencePiece's own file (``spiece.model``), read into the tokenizer library.

The file is a protocol buffer (``sentencepiece_model.proto``). Of its fields the pieces, the kind of
model and the table of the normaliser are enough; the splitting itself is the library's, put
together as in the ``tokenizer.json`` that others publish beside such files. By the library it
differs from SentencePiece in a corner: with the table of NMT-NFKC, marks on half-width letters may
get lost.
"""

from __future__ import annotations

import string
import struct
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from eaglenet import foreign
from eaglenet.errors import CheckpointError

FILE = "spiece.model"
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
        fields = _fields(foreign.read_bytes(path, foreign.MAX_VOCABULARY))
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
