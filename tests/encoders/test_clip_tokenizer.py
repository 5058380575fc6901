"""CLIP's ids, compared with transformers' tokenizer on the same vocabulary."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multilingual_texts import generated_sentences

from eaglenet.core.errors import CheckpointError, ModelNotFoundError, UsageError
from eaglenet.encoders.tokenizers import ClipTokenizer
from sampling import slow

# Located, not imported, since only its table is needed.
SPEC = importlib.util.find_spec("open_clip")
TABLE = SPEC and Path(SPEC.submodule_search_locations[0]) / "bpe_simple_vocab_16e6.txt.gz"
pytestmark = pytest.mark.skipif(not TABLE, reason="no BPE table: open_clip_torch is not installed")

ALPHABETS = {
    "ascii": [chr(code) for code in range(32, 127)],
    "latin": [chr(code) for code in range(0xA0, 0x250)],
    "emoji": [chr(code) for code in range(0x1F300, 0x1F650)] + ["\u200d", "\ufe0f", "\U0001f1e6"],
    "scripts": [chr(code) for code in (*range(0x370, 0x590), *range(0x3040, 0x30FF))],
    "spaces": list(" \t\n\r\u00a0\u2003\u3000\u200b\x0b\x0c\x1c\x85a1'"),
    "combining": ["e", "a", "\u0301", "\u0308", "\u0323", "\u212b", "\ufb01", "\u0130"],
    "controls": [chr(code) for code in range(32)] + ["\x7f", "\ufffd", "\ufeff", "\uffff", "a"],
}
WORDS = [
    *("A", "man's", "DOG", "isn't", "they'll", "we've", "I'm", "he'd", "42", "2024", "don't-stop"),
    *("e-mail", "(hello)", "caf\u00e9", "hello!!!", "...", "#1", "50%", "$5.00", "</w>"),
    *("<|startoftext|>", "<|endoftext|>", "<|ENDOFTEXT|>", "supercalifragilisticexpialidocious"),
    *("\u4f60\u597d", "\u0645\u0631\u062d\u0628\u0627", "\U0001f600"),
]


@pytest.fixture(scope="module")
def tokenizer() -> ClipTokenizer:
    """Return a tokenizer with CLIP's table."""
    return ClipTokenizer.from_table(TABLE)


@pytest.fixture(scope="module")
def oracle(tokenizer: ClipTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return transformers' tokenizer, read from vocab.json and merges.txt."""
    from transformers import CLIPTokenizer

    folder = tmp_path_factory.mktemp("vocabulary")
    write_vocabulary(tokenizer, folder)
    return CLIPTokenizer.from_pretrained(folder)


def write_vocabulary(tokenizer: ClipTokenizer, folder: Path) -> None:
    tokenizer.save(folder)
    model = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def assert_same_ids(
    tokenizer: ClipTokenizer, oracle: Any, texts: list[str], max_length: int
) -> None:
    ours = tokenizer(texts, max_length)
    theirs = oracle(texts, truncation=True, max_length=max_length)["input_ids"]
    for row, expected in enumerate(theirs):
        ids = ours.ids[row].tolist()
        assert ids[: len(expected)] == expected, ascii(texts[row])
        assert set(ids[len(expected) :]) <= {0}
        assert ours.mask[row].sum() == len(expected)
        assert ours.mask[row, : len(expected)].all()


def generated_texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        kind = draw.choice([*ALPHABETS, "words", "mixed"])
        length = draw.randint(0, 60)
        if kind == "words":
            texts.append(" ".join(draw.choices(WORDS, k=length // 3)))
        elif kind == "mixed":
            letters = [letter for alphabet in ALPHABETS.values() for letter in alphabet] + WORDS
            texts.append("".join(draw.choices(letters, k=length)))
        else:
            texts.append("".join(draw.choices(ALPHABETS[kind], k=length)))
    return texts


@pytest.mark.parametrize("max_length", [32, 64, 77])
def test_ids_equal_the_oracle_on_thousands_of_generated_texts(
    tokenizer: ClipTokenizer, oracle: Any, max_length: int
) -> None:
    assert_same_ids(tokenizer, oracle, generated_texts(1000, seed=max_length), max_length)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), min_size=1))
def test_ids_equal_the_oracle_on_any_unicode(tokenizer: Any, oracle: Any, texts: Any) -> None:
    assert_same_ids(tokenizer, oracle, texts, 32)


@pytest.mark.parametrize("count", [1000, slow(10_000)])
def test_ids_equal_the_oracle_on_ten_scripts_at_the_length_of_pe_core(
    count: int, tokenizer: ClipTokenizer, oracle: Any
) -> None:
    assert_same_ids(tokenizer, oracle, generated_sentences(count, seed=3), 32)


def test_known_ids_of_the_original_tokenizer(tokenizer: ClipTokenizer) -> None:
    tokens = tokenizer(["a photo of a cat", "Hello,   WORLD!", ""], max_length=8)
    assert tokens.ids.tolist() == [
        [49406, 320, 1125, 539, 320, 2368, 49407, 0],
        [49406, 3306, 267, 1002, 256, 49407, 0, 0],
        [49406, 49407, 0, 0, 0, 0, 0, 0],
    ]
    assert tokens.mask.sum(dim=1).tolist() == [7, 6, 2]
    assert tokenizer.vocabulary_size == 49408


def test_truncation_keeps_the_end_token(tokenizer: ClipTokenizer) -> None:
    for length in (2, 3, 32, 77):
        tokens = tokenizer(["word " * 100, "x" * 10_000], max_length=length)
        assert tokens.ids[:, 0].tolist() == [49406, 49406]
        assert tokens.ids[:, -1].tolist() == [49407, 49407]
        assert tokens.mask.all()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(alphabet=st.characters(categories=["Cs", "L", "So"])))
def test_broken_unicode_gives_ids_and_no_crash(tokenizer: Any, text: Any) -> None:
    tokens = tokenizer([text])
    assert tokens.ids.shape == (1, 32)
    end = int(tokens.mask.sum()) - 1
    assert tokens.ids[0, end] == 49407


def test_lone_surrogates_count_as_the_replacement_character_and_pairs_are_joined(
    tokenizer: ClipTokenizer,
) -> None:
    invalid_tokens = tokenizer(["a \ud800 b", "\udfff", "\ud83d\ude00"])
    valid_tokens = tokenizer(["a \ufffd b", "\ufffd", "\U0001f600"])
    assert torch.equal(invalid_tokens.ids, valid_tokens.ids)


def test_an_empty_list_and_a_single_string_work(tokenizer: ClipTokenizer) -> None:
    assert tokenizer([]).ids.shape == (0, 32)
    assert torch.equal(tokenizer("a cat").ids, tokenizer(["a cat"]).ids)


@pytest.mark.parametrize("max_length", [0, 1, 78])
def test_lengths_the_model_cannot_take_are_refused(
    tokenizer: ClipTokenizer, max_length: int
) -> None:
    with pytest.raises(UsageError, match="2 to 77"):
        tokenizer(["a cat"], max_length=max_length)


def test_every_kind_of_folder_gives_the_same_ids(
    tokenizer: ClipTokenizer, oracle: Any, tmp_path: Path
) -> None:
    texts = generated_texts(200, seed=1)
    expected = tokenizer(texts).ids
    tokenizer.save(tmp_path / "json")
    write_vocabulary(tokenizer, tmp_path / "lists")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / TABLE.name).write_bytes(TABLE.read_bytes())
    oracle.save_pretrained(tmp_path / "transformers")
    for name in ("json", "lists", "table", "transformers"):
        assert torch.equal(ClipTokenizer.from_folder(tmp_path / name)(texts).ids, expected)


def test_transformers_reads_the_folder_we_save(tokenizer: ClipTokenizer, tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    tokenizer.save(tmp_path)
    assert_same_ids(tokenizer, CLIPTokenizer.from_pretrained(tmp_path), generated_texts(200, 2), 32)


def test_a_folder_without_a_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        ClipTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(CheckpointError, match="WordPiece"):
        ClipTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(CheckpointError, match="startoftext"):
        ClipTokenizer.from_folder(tmp_path)


@torch.no_grad()
def test_a_long_query_is_cut_at_the_limit_of_the_tower(tokenizer: ClipTokenizer) -> None:
    """Not at the words of the datasets, unless the method reads words or was trained so."""
    from eaglenet.encoders.clip import ClipEncoder
    from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
    from eaglenet.methods import METHODS
    from eaglenet.methods.base import EvaluationHabits

    vision = VisionConfig(32, 16, 16, 1, 2, 24)
    texts = ["w " * 20, "w " * 50, "w " * 100]

    def widths(context_length: int, method: str = "clip4clip", max_words: int | None = None) -> Any:
        text = TextConfig(49408, context_length, 24, 1, 3, 32)
        spec = METHODS[method]
        encoder = ClipEncoder(ClipConfig(dim=8, vision=vision, text=text)).eval()
        built = spec.build(spec.config_class(), encoder).eval()
        built.tokenizer = tokenizer
        built.habits = EvaluationHabits(max_words)
        assert built.encode_text(texts).sentence.isfinite().all()
        return built.tokenize(texts[:1]).ids.shape[1], *built.tokenize(texts).mask.sum(1).tolist()

    assert widths(77) == (32, 22, 52, 77)
    assert widths(40) == (32, 22, 40, 40)
    assert widths(77, max_words=64) == (32, 22, 52, 64)
    assert widths(77, "wordframe") == (32, 22, 32, 32)
