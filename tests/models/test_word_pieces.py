"""Word pieces in Python equal those of the library `tokenizers`."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers

from eaglenet.core.errors import CheckpointError
from eaglenet.models import word_pieces
from eaglenet.models.files import PACKAGED, Weights
from eaglenet.models.light_model import NumpyText
from eaglenet.models.word_pieces import WordPieces
from sampling import slow

SMALL = PACKAGED / "small"
FILE = SMALL / "tokenizer.json"
CONTEXT = 64
TEXTS = [
    "",
    " \t\n ",
    "A man drives a red car; it's 3.5 km away -- isn't it?",
    "Stra\u00dfenbahn, na\u00efve caf\u00e9, \u0130stanbul, \u039f\u0394\u039f\u03a3",
    "\u7ea2\u8272\u6c7d\u8f66 \u3042\u308a\u304c\u3068\u3046 \U0001f600",
    "[CLS] [SEP] [PAD] [UNK] [cls] [MASK] ##ing [[CLS]]",
    "word " * 200,
    "a" * 100 + " " + "a" * 101,
    "zero\x00width\u200bspace\x0bline\u2028non\u00a0breaking\ufffd\ue000\U000e0100",
]


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    return WordPieces.read(FILE, CONTEXT)


@pytest.fixture(scope="module")
def library() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(FILE))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_have_the_ids_of_the_library(
    pieces: WordPieces, library: tokenizers.Tokenizer, text: str
) -> None:
    library.enable_truncation(CONTEXT)
    encoding = library.encode(text)
    assert pieces.encode(text) == encoding.ids
    word_ids = {number for number in encoding.word_ids if number is not None}
    assert len(pieces.words(text)) == len(word_ids)


@pytest.mark.parametrize("step", [7, slow(1)])
def test_every_character_has_the_ids_of_the_library(
    pieces: WordPieces, library: tokenizers.Tokenizer, step: int
) -> None:
    """Characters of Unicode 3.2, since the library does not know newer categories."""
    earlier = unicodedata.ucd_3_2_0
    characters = [
        character
        for character in map(chr, (*range(0xD800), *range(0xE000, 0x30000)))
        if earlier.category(character) != "Cn"
        and earlier.category(character) == unicodedata.category(character)
    ]
    assert len(characters) > 90_000
    characters = characters[::step]
    library.no_truncation()
    whole = replace(pieces, context_length=10**7)
    text = " x ".join(f"a{character}b" for character in characters)
    assert whole.encode(text) == library.encode(text).ids


def test_every_piece_of_the_vocabulary_has_its_id(pieces: WordPieces) -> None:
    words = [(word, n) for word, n in pieces.vocabulary.items() if word.isalnum()]
    assert len(words) > 10_000
    assert [pieces.words(word) for word, _ in words] == [[[number]] for _, number in words]


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"type": "BPE"}},
        {"normalizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": None},
        {"model": {"vocab": {"[CLS]": 0, "[SEP]": 1, "[UNK]": 10**30}}},
        {"model": {"vocab": {"[CLS]": 0, "[SEP]": 1, "[UNK]": -1}}},
    ],
)
def test_another_tokenizer_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    plain = json.loads(FILE.read_text("utf-8"))
    for name, value in change.items():
        plain[name] = {**plain[name], **value} if isinstance(value, dict) else value
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain), "utf-8")
    (tmp_path / "tokenizer_config.json").write_bytes((SMALL / "tokenizer_config.json").read_bytes())
    with pytest.raises(CheckpointError, match="the tokenizer cannot be read"):
        NumpyText.open(tmp_path, {}, Weights(SMALL / "model.safetensors"))


@pytest.mark.parametrize("length", [-5, 2, 1e999, "many"])
def test_a_context_without_room_is_refused(tmp_path: Path, length: object) -> None:
    (tmp_path / "tokenizer.json").write_bytes(FILE.read_bytes())
    settings = json.dumps({"eaglenet": {"context_length": length}})
    (tmp_path / "tokenizer_config.json").write_text(settings, "utf-8")
    with pytest.raises(CheckpointError, match="the tokenizer cannot be read"):
        NumpyText.open(tmp_path, {}, Weights(SMALL / "model.safetensors"))


@pytest.mark.parametrize("length", [90, 99, 100, 101, 1000])
def test_words_may_end_anywhere_in_a_long_text(
    pieces: WordPieces, library: tokenizers.Tokenizer, length: int
) -> None:
    library.no_truncation()
    whole = replace(pieces, context_length=10**7)
    text = ", ".join("ab" * (length // 2) + "c" * (number % 3) for number in range(50))
    assert whole.encode(text) == library.encode(text).ids


@pytest.mark.parametrize("text", ["\u4e00", "word ", "[", "x,"])
def test_of_a_long_text_only_the_beginning_is_read(pieces: WordPieces, text: str) -> None:
    word_pieces._normalise.cache_clear()
    assert len(pieces.encode(text * 10**6)) == CONTEXT
    info = word_pieces._normalise.cache_info()
    assert info.hits + info.misses == word_pieces.CHUNK
