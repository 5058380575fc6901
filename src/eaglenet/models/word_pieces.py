"""BERT's tokenizer (WordPiece) from a ``tokenizer.json``.

The library ``tokenizers`` gives the same ids (``tests/models/test_word_pieces.py``), but requires
huggingface_hub; together they take a tenth of an installation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from eaglenet.core import untrusted

CONTINUATION = "##"
"""Prefix of a piece that does not begin a word."""
START, END, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
SPECIAL = re.compile(r"(\[(?:PAD|UNK|CLS|SEP)\])")
REMOVED_CATEGORIES = ("Cc", "Cf", "Co", "Cs")
"""Unicode categories of characters that are removed; unassigned characters stay."""
MAX_WORD = 100
"""Maximum characters of a word; longer words are unknown."""
CHUNK = 1000
"""Characters normalised at a time, since most of a long text exceeds the context."""
MAX_ID = 2**31
# fmt: off
HAN = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)
# fmt: on


@dataclass(frozen=True)
class WordPieces:
    """Converts texts to at most ``context_length`` token ids, with the start and end tokens."""

    vocabulary: Mapping[str, int]
    context_length: int

    @classmethod
    def read(cls, path: Path, context_length: int) -> WordPieces:
        """Read a ``tokenizer.json``; raise ``ValueError``, ``KeyError``, ``TypeError`` for others.

        >>> WordPieces({"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "car": 3, "##s": 4}, 64).encode("Cars")
        [0, 3, 4, 1]
        """
        plain = untrusted.read_object(path)
        model, normalizer = plain["model"], plain["normalizer"]
        supported_values = [
            (model["type"], "WordPiece"),
            (model["continuing_subword_prefix"], CONTINUATION),
            (model["max_input_chars_per_word"], MAX_WORD),
            (normalizer["type"], "BertNormalizer"),
            (normalizer["lowercase"], True),
            (plain["pre_tokenizer"]["type"], "BertPreTokenizer"),
        ]
        for value, only in supported_values:
            if value != only:
                raise ValueError(f"{value!r:.60} where {only!r} is supported")
        if context_length < 3:
            raise ValueError(f"a context of {context_length} tokens has no room for a text")
        vocabulary = model["vocab"]
        if set(map(type, vocabulary.values())) != {int}:
            raise ValueError("ids must be whole numbers")
        if min(vocabulary.values()) < 0 or max(vocabulary.values()) >= MAX_ID:
            raise ValueError(f"ids must be 0 to {MAX_ID - 1}")
        for token in (START, END, UNKNOWN):
            if token not in vocabulary:
                raise ValueError(f"no {token}")
        return cls(vocabulary, context_length)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the start and end tokens."""
        ids = [number for pieces in self.words(text) for number in pieces]
        return [self.vocabulary[START], *ids, self.vocabulary[END]]

    def words(self, text: str) -> list[list[int]]:
        """Return the ids of each word and punctuation mark, as many as fit into the context."""
        words: list[list[int]] = []
        num_left = self.context_length - 2
        for word in self._normalised_words(text):
            if num_left <= 0:
                break
            words.append(self._pieces(word)[:num_left])
            num_left -= len(words[-1])
        return words

    def _normalised_words(self, text: str) -> Iterator[str]:
        for part in SPECIAL.split(text):
            if part in self.vocabulary and SPECIAL.fullmatch(part):
                yield part
                continue
            rest = ""
            for start in range(0, len(part), CHUNK):
                chunk = "".join(map(_normalise, part[start : start + CHUNK]))
                *words, rest = f"{rest}{chunk}".split(" ")
                yield from filter(None, words)
                # Longer words are unknown.
                rest = rest[: MAX_WORD + 1]
            if rest:
                yield rest

    def _pieces(self, word: str) -> list[int]:
        """Return the longest pieces from the left; the word is unknown if one is missing."""
        if word in self.vocabulary:
            return [self.vocabulary[word]]
        pieces: list[int] = []
        start = 0 if len(word) <= MAX_WORD else len(word) + 1
        while start < len(word):
            prefix = CONTINUATION if start else ""
            for end in range(len(word), start, -1):
                number = self.vocabulary.get(prefix + word[start:end])
                if number is not None:
                    pieces.append(number)
                    start = end
                    break
            else:
                start = len(word) + 1
        return pieces if start == len(word) else [self.vocabulary[UNKNOWN]]


@lru_cache(maxsize=20_000)
def _normalise(character: str) -> str:
    """Remove case and accents; add spaces around characters that are separate words."""
    if character in "\t\n\r":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in REMOVED_CATEGORIES:
        return ""
    if character.isspace():
        return " "
    base = "".join(
        f" {mark} " if _is_punctuation(mark) else mark.lower()
        for mark in unicodedata.normalize("NFD", character)
        if unicodedata.category(mark) != "Mn"
    )
    is_han = any(low <= ord(character) <= high for low, high in HAN)
    return f" {base} " if is_han else base


def _is_punctuation(character: str) -> bool:
    """Return whether a character is punctuation or an ASCII symbol."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")
