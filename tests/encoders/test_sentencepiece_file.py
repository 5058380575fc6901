"""SigLIP with a SentencePiece file: the tokens equal those of SentencePiece.

``spiece/spiece.model`` was trained by sentencepiece 0.2.2 (a Unigram of 1,100 pieces with a table
of a few replacements); ``spiece/expected.json`` holds sentences and its ids of them after SigLIP's
siglip_normalizer (lower case, no punctuation, single spaces), with the end token.
"""

from __future__ import annotations

import json
import random
import shutil
import string
from pathlib import Path

import pytest
from multilingual_texts import generated_sentences
from test_siglip import oracle, plain_config, save

import eaglenet
from eaglenet.core.errors import CheckpointError
from eaglenet.encoders.hub import VOCABULARIES
from eaglenet.encoders.siglip import SiglipConfig, read_siglip_tokenizer
from eaglenet.encoders.tokenizers import read_sentencepiece, siglip_normalizer
from sampling import slow

PLACE = Path(__file__).parent / "spiece"
PIECES = 1100


def test_tokens_are_those_of_sentencepiece() -> None:
    backend = read_sentencepiece(PLACE / "spiece.model")
    assert backend.get_vocab_size() == PIECES
    expected = json.loads((PLACE / "expected.json").read_text())
    assert len(expected) == 80
    for sentence, ids in expected:
        assert backend.encode(sentence).ids == ids, sentence


def test_a_library_that_is_installed_agrees_on_many_sentences() -> None:
    library = pytest.importorskip("sentencepiece")
    theirs = library.SentencePieceProcessor(model_file=str(PLACE / "spiece.model"))
    ours = read_sentencepiece(PLACE / "spiece.model")
    drop = str.maketrans("", "", string.punctuation)
    for sentence in generated_sentences(2000, seed=8):
        normalised_text = " ".join(sentence.lower().translate(drop).split())
        assert ours.encode(sentence).ids == [*theirs.encode(normalised_text), 1], sentence


def test_texts_are_cleaned_as_siglip_does_on_ten_scripts() -> None:
    """Lower case (with a final sigma), no punctuation, single spaces."""
    drop = str.maketrans("", "", string.punctuation)
    normalizer = siglip_normalizer(b"")
    odd = "\u03a3\u0391\u03a3 \u03a3 \u0391\u03a31 \u0391\u03a3. "
    odd += "\u0391\u03a3'\u0391 \u0391\u0301\u03a3 x\x1cy\x85z"
    for sentence in [odd, *generated_sentences(4000, seed=8)]:
        expected = " ".join(sentence.lower().translate(drop).split())
        assert normalizer.normalize_str(sentence) == expected, sentence


def test_a_folder_with_spiece_model_alone_is_loaded_and_saved(tmp_path: Path) -> None:
    plain = plain_config("b16", vocab_size=PIECES, pad_token_id=1)
    save(oracle(plain), plain, tmp_path / "hub")
    shutil.copy(PLACE / "spiece.model", tmp_path / "hub")
    method = eaglenet.load(tmp_path / "hub")
    sentences = ["A man, two dogs!", "\u4e00\u4e8c", ""]
    tokens = method.tokenize(sentences)
    assert tokens.ids[0, tokens.mask[0]].tolist()[-1] == 1
    eaglenet.save(method, tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    assert eaglenet.load(tmp_path / "model").tokenize(sentences).ids.equal(tokens.ids)


def test_a_hub_is_asked_for_it_where_there_is_no_other() -> None:
    assert VOCABULARIES[:2] == (("tokenizer.json",), ("spiece.model",))


def test_files_of_other_models_are_refused(tmp_path: Path) -> None:
    plain = plain_config("b16", vocab_size=900, pad_token_id=1)
    save(oracle(plain), plain, tmp_path / "hub")
    shutil.copy(PLACE / "spiece.model", tmp_path / "hub")
    with pytest.raises(CheckpointError, match="1100 pieces, the model 900"):
        eaglenet.load(tmp_path / "hub")
    content = (PLACE / "spiece.model").read_bytes()
    path = tmp_path / "spiece.model"
    for wrong in (b"", content[:1000], b"\xff" * 40, content.replace(b"</s>", b"</t>")):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match="not a SentencePiece model of SigLIP"):
            read_siglip_tokenizer(tmp_path, SiglipConfig())


@pytest.mark.parametrize("count", [40, slow(400)])
def test_damaged_files_are_refused_or_read(count: int, tmp_path: Path) -> None:
    content = (PLACE / "spiece.model").read_bytes()
    path = tmp_path / "spiece.model"
    generator = random.Random(1)
    for _ in range(count):
        damaged_content = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            damaged_content[generator.randrange(len(damaged_content))] = generator.randrange(256)
        path.write_bytes(damaged_content)
        try:
            read_sentencepiece(path).encode("a man and a dog")
        except CheckpointError:
            continue
