"""Word pieces: BERT's lower-cased tokenizer, read from a ``tokenizer.json`` or a word list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors

from eaglenet.errors import CheckpointError, UsageError
from eaglenet.types import Tokens

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
FILE = "tokenizer.json"


class WordPieceTokenizer:
    """Sentences to :class:`Tokens`: ``[CLS]``, word pieces, ``[SEP]``, then zeros."""

    def __init__(self, vocabulary: Mapping[str, int], *, context_length: int) -> None:
        missing = [token for token in (PAD, UNKNOWN, FIRST, LAST) if token not in vocabulary]
        if missing or vocabulary.get(PAD) != 0:
            raise CheckpointError(
                f"a word-piece vocabulary needs {PAD} as number 0 and {UNKNOWN}, {FIRST}, {LAST}; "
                f"missing here: {', '.join(missing) or 'none'}"
            )
        self.context_length = context_length
        self.vocabulary = dict(vocabulary)
        backend = tokenizers.Tokenizer(
            models.WordPiece(vocab=self.vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100)
        )
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.post_processor = processors.BertProcessing(
            (LAST, vocabulary[LAST]), (FIRST, vocabulary[FIRST])
        )
        backend.enable_padding(pad_id=0, pad_token=PAD)
        self._backend = backend

    @property
    def vocabulary_size(self) -> int:
        return len(self.vocabulary)

    def __call__(self, texts: Sequence[str], *, max_length: int | None = None) -> Tokens:
        """Padded to the longest sentence; cut after ``max_length`` tokens, ``[SEP]`` kept."""
        if isinstance(texts, str):
            raise UsageError("a tokenizer takes a list of sentences, got one string")
        limit = min(max_length or self.context_length, self.context_length)
        if limit < 3:
            raise UsageError(f"max_length {limit} leaves no room for a word; give 3 or more")
        self._backend.enable_truncation(limit)
        # Padded and cut by the library: half a million captions take seconds instead of a minute.
        rows = [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts))]
        ids = torch.tensor(rows, dtype=torch.long) if rows else torch.zeros(0, 0, dtype=torch.long)
        return Tokens(ids, ids != 0)

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``."""
        self._backend.save(str(folder / FILE))

    @classmethod
    def from_folder(cls, folder: Path, *, context_length: int) -> WordPieceTokenizer:
        """Read a ``tokenizer.json`` whose model is WordPiece."""
        path = folder / FILE
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain exceptions of many texts
            raise CheckpointError(f"{path}: not a tokenizer that can be read ({error})") from error
        if not isinstance(backend.model, models.WordPiece):
            raise CheckpointError(f"{path}: expected word pieces, got {type(backend.model).__name__}")
        return cls(backend.get_vocab(with_added_tokens=True), context_length=context_length)
