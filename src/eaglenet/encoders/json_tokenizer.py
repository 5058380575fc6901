"""Any tokenizer that lies in a ``tokenizer.json``: Unigram, WordPiece or byte-pair encoding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch

from eaglenet.encoders.model_files import read_json, read_optional_json
from eaglenet.errors import CheckpointError, UsageError
from eaglenet.settings import from_plain
from eaglenet.types import Tokens

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
OWN = "eaglenet"
"""Our key in ``tokenizer_config.json``; its presence says whose file it is."""


@dataclass(frozen=True)
class TokenizerSettings:
    """What ``tokenizer.json`` does not say.

    context_length: most tokens of a text, start and end included.
    pad_id: fills the columns after the end.
    """

    context_length: int
    pad_id: int = 0


class JsonTokenizer:
    """Sentences to :class:`Tokens`, with the start and end tokens that the file itself adds."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        self.settings = settings
        # Cut and filled here: the library keeps both as state, which threads would share.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._start, self._end = _frame_of(backend)

    @classmethod
    def from_file(cls, path: Path, settings: TokenizerSettings) -> JsonTokenizer:
        """Read a ``tokenizer.json``."""
        return cls(read_backend(path), settings)

    @staticmethod
    def is_saved_in(folder: Path) -> bool:
        """Was the tokenizer of this folder written by :meth:`save`?"""
        settings = read_optional_json(folder / SETTINGS)
        return settings is not None and OWN in settings

    @classmethod
    def load(cls, folder: Path) -> JsonTokenizer:
        """What :meth:`save` wrote."""
        plain = read_json(folder / SETTINGS)[OWN]
        return cls.from_file(folder / FILE, from_plain(TokenizerSettings, plain))

    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(folder / FILE))
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.settings.context_length,
            "pad_token": self._backend.id_to_token(self.settings.pad_id),
            OWN: asdict(self.settings),
        }
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")

    @property
    def vocabulary_size(self) -> int:
        return int(self._backend.get_vocab_size())

    def __call__(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Ids of ``max_length`` columns (all the tower takes, if not given)."""
        limit = self.settings.context_length
        width = limit if max_length is None else max_length
        added = len(self._start) + len(self._end)
        if not added < width <= limit:
            raise UsageError(f"max_length {width}: this model takes {added + 1} to {limit} tokens")
        if isinstance(texts, str):
            texts = [texts]
        encodings = self._backend.encode_batch_fast(
            [valid_unicode(text) for text in texts], add_special_tokens=False
        )
        rows, lengths = [], []
        for encoding in encodings:
            tokens = [*self._start, *encoding.ids[: width - added], *self._end]
            lengths.append(len(tokens))
            rows.append(tokens + [self.settings.pad_id] * (width - len(tokens)))
        # One tensor of all rows: a tensor a row takes longer than the tokenizer itself.
        ids = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), width)
        mask = torch.arange(width) < torch.tensor(lengths)[:, None]
        return Tokens(ids, mask)


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """The library's own object from a ``tokenizer.json``."""
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path}: not a tokenizer ({error})") from error


def valid_unicode(text: str) -> str:
    """Text that has a UTF-8 form: surrogate pairs are joined, lone ones become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _frame_of(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the file's own template puts before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a").ids
    for place in range(len(whole) - len(plain) + 1):
        if whole[place : place + len(plain)] == plain:
            return whole[:place], whole[place + len(plain) :]
    raise CheckpointError("the tokenizer changes a text when it adds start and end tokens")
