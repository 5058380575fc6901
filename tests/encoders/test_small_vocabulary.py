"""Vocabularies learned from a few words, as the demo world does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eaglenet.core.errors import UsageError
from eaglenet.encoders.tokenizers import ClipTokenizer

SENTENCES = ["a red ball moves left", "the blue square mirrors the redder ball", "it's 7 stars"]


def test_every_word_that_was_seen_is_one_token() -> None:
    tokenizer = ClipTokenizer.from_words(SENTENCES)
    for sentence in SENTENCES[:2]:
        assert tokenizer([sentence]).mask.sum() == len(sentence.split()) + 2
    assert tokenizer.end_id == tokenizer.vocabulary_size - 1
    assert tokenizer.start_id == tokenizer.vocabulary_size - 2


def test_unseen_words_and_any_unicode_still_have_ids_other_than_the_end() -> None:
    tokenizer = ClipTokenizer.from_words(SENTENCES)
    tokens = tokenizer(["zebra caf\u00e9 \U0001f600 \ud800 \x00"], max_length=77)
    assert (tokens.ids == tokenizer.end_id).sum() == 1


def test_the_same_words_give_the_same_vocabulary_and_survive_a_folder(tmp_path: Path) -> None:
    first, second = ClipTokenizer.from_words(SENTENCES), ClipTokenizer.from_words(SENTENCES)
    first.save(tmp_path)
    texts = [*SENTENCES, "unseen words"]
    for other in (second, ClipTokenizer.from_folder(tmp_path)):
        assert torch.equal(first(texts).ids, other(texts).ids)
        assert other.vocabulary_size == first.vocabulary_size


def test_the_size_can_be_limited() -> None:
    assert ClipTokenizer.from_words(SENTENCES, vocabulary_size=520).vocabulary_size == 520
    with pytest.raises(UsageError, match="514"):
        ClipTokenizer.from_words(SENTENCES, vocabulary_size=100)
