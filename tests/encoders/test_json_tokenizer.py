"""Tokenizers of a ``tokenizer.json``: truncated, padded, saved and read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from eaglenet.core.errors import CheckpointError, UsageError
from eaglenet.encoders.tokenizers import JsonTokenizer, TokenizerSettings, read_tokenizer

SENTENCES = ["a red ball", "the green car drives", "two dogs run over a hill", "A RED CAR"]


def word_piece() -> tokenizers.Tokenizer:
    """Return a BERT-like tokenizer with a few words, [CLS] before and [SEP] after."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return backend


@pytest.fixture
def tokenizer() -> JsonTokenizer:
    """Return a tokenizer of word pieces with a short context."""
    return JsonTokenizer(word_piece(), TokenizerSettings(context_length=11))


def test_ids_are_those_of_the_file_itself_and_pads_follow(tokenizer: JsonTokenizer) -> None:
    backend = word_piece()
    tokens = JsonTokenizer(backend, tokenizer.settings)(SENTENCES)
    assert tokens.ids.shape == (len(SENTENCES), 11)
    for row, sentence in enumerate(SENTENCES):
        expected = backend.encode(sentence).ids
        assert tokens.ids[row][tokens.mask[row]].tolist() == expected
        assert not tokens.ids[row][~tokens.mask[row]].any()


def test_long_texts_are_cut_before_the_end_token(tokenizer: JsonTokenizer) -> None:
    tokens = tokenizer(["two dogs run over a hill " * 9], max_length=7)
    assert tokens.ids[0, 0] == 2
    assert tokens.ids[0, -1] == 3
    assert tokens.mask.all()


def test_a_saved_tokenizer_gives_the_same_ids(tokenizer: JsonTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = read_tokenizer(tmp_path)
    assert isinstance(again, JsonTokenizer)
    assert again.settings == tokenizer.settings
    assert torch.equal(again(SENTENCES).ids, tokenizer(SENTENCES).ids)


def test_lengths_that_cannot_be_and_damaged_files_are_named(
    tokenizer: JsonTokenizer, tmp_path: Path
) -> None:
    for width in (1, 12):
        with pytest.raises(UsageError, match=f"max_length {width}.*2 to 11"):
            tokenizer(["a"], max_length=width)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        JsonTokenizer.from_file(tmp_path / "tokenizer.json", TokenizerSettings(5))


def test_lone_surrogates_do_not_stop_it(tokenizer: JsonTokenizer) -> None:
    assert tokenizer(["a \ud800 ball"]).mask[0].sum() >= 4
