"""OpenAI's .pt files: weights are read, and no code runs."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from clip_folder import learn_tokenizer
from eaglenet.core.errors import CheckpointError, ModelNotFoundError
from eaglenet.encoders.clip_files import load_clip, load_openai_clip, read_openai_weights
from eaglenet.encoders.weight_names import clip_config, from_openai
from openai_class import CONTEXT, OpenaiClip, OpenaiShape, save_archive

WORDS = learn_tokenizer(["red ball"])
GRID, PATCH, WIDTH, TEXT_WIDTH, DIM, VOCABULARY = 3, 8, 128, 64, 40, WORDS.vocabulary_size
SHAPE = OpenaiShape(GRID, PATCH, WIDTH, TEXT_WIDTH, DIM, VOCABULARY, 2, 3, mlp=3)


@pytest.fixture(scope="module")
def original() -> OpenaiClip:
    """Return a model of OpenAI's class, with random weights in fp16."""
    torch.manual_seed(3)
    return OpenaiClip(SHAPE).half().eval()


@pytest.fixture(scope="module")
def archive(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the model as an archive like those of OpenAI."""
    return save_archive(original, tmp_path_factory.mktemp("openai") / "ViT-tiny.pt")


def test_every_weight_of_a_script_archive_is_read(original: Any, archive: Path) -> None:
    weights = read_openai_weights(archive)
    expected = {
        name: value
        for name, value in original.state_dict().items()
        if name not in ("input_resolution", "context_length", "vocab_size")
    }
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert torch.equal(value, expected[name])


def test_the_shape_is_read_off_the_weights(archive: Path) -> None:
    config = clip_config(from_openai(read_openai_weights(archive)))
    assert (config.dim, config.vision.image_size, config.vision.patch_size) == (DIM, 24, PATCH)
    assert (config.vision.width, config.vision.heads, config.vision.layers) == (WIDTH, 2, 2)
    assert (config.text.width, config.text.heads, config.text.layers) == (TEXT_WIDTH, 1, 3)
    assert (config.text.vocabulary_size, config.text.context_length) == (VOCABULARY, CONTEXT)
    assert (config.vision.mlp_width, config.text.mlp_width) == (3 * WIDTH, 3 * TEXT_WIDTH)
    assert config.text.end_token is None


def test_the_encoder_has_the_weights_in_full_precision(original: Any, archive: Path) -> None:
    encoder = load_openai_clip(archive)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    assert not encoder.training
    assert torch.equal(encoder.vision.projection.weight, original.visual.proj.T.float())
    qkv_weight = original.transformer.resblocks[2].attn.in_proj_weight
    assert torch.equal(encoder.text.blocks[2].attention.qkv.weight, qkv_weight.float())


def test_a_plain_state_dict_gives_the_same_encoder(
    original: Any, archive: Path, tmp_path: Path
) -> None:
    torch.save(original.state_dict(), tmp_path / "state.pt")
    torch.save({"state_dict": original.state_dict()}, tmp_path / "wrapped.pt")
    expected = load_openai_clip(archive).state_dict()
    for name in ("state.pt", "wrapped.pt"):
        for key, value in load_openai_clip(tmp_path / name).state_dict().items():
            assert torch.equal(value, expected[key])


def test_the_vocabulary_is_taken_from_beside_the_file(archive: Path, tmp_path: Path) -> None:
    WORDS.save(tmp_path)
    copy = tmp_path / archive.name
    copy.write_bytes(archive.read_bytes())
    assert load_clip(copy)[1].vocabulary_size == WORDS.vocabulary_size


def test_a_file_without_any_vocabulary_says_where_it_looked(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"bpe_simple_vocab_16e6\.txt\.gz beside it"):
        load_clip(archive)


class Malicious:
    def __reduce__(self) -> Any:
        return print, ("the archive ran code",)


def rewrite(archive: Path, path: Path, tree: bytes) -> None:
    """Write the archive with another data.pkl."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, tree if name.endswith("/data.pkl") else old.read(name))


def test_an_archive_that_names_a_function_is_refused_and_nothing_runs(
    archive: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "malicious.pt"
    rewrite(archive, path, pickle.dumps({"model": Malicious()}))
    with pytest.raises(CheckpointError, match=r"builtins\.print.*was not run"):
        load_openai_clip(path)
    plain = tmp_path / "plain.pt"
    torch.save({"model": Malicious()}, plain)
    with pytest.raises(CheckpointError, match=r"plain\.pt"):
        load_openai_clip(plain)
    assert "the archive ran code" not in capfd.readouterr().out


def test_damaged_files_are_named(archive: Path, tmp_path: Path) -> None:
    damaged_file = tmp_path / "damaged.pt"
    for tree in (b"", b"garbage", pickle.dumps([1, 2]), pickle.dumps({"a": 1})):
        rewrite(archive, damaged_file, tree)
        with pytest.raises(CheckpointError):
            load_openai_clip(damaged_file)
    damaged_file.write_bytes(b"not a checkpoint at all")
    with pytest.raises(CheckpointError, match=r"damaged\.pt"):
        load_openai_clip(damaged_file)
    damaged_file.write_bytes(archive.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"damaged\.pt"):
        load_openai_clip(damaged_file)
    buffer = io.BytesIO()
    torch.save([1, 2], buffer)
    damaged_file.write_bytes(buffer.getvalue())
    with pytest.raises(CheckpointError, match="names and tensors"):
        load_openai_clip(damaged_file)


def test_weights_of_another_model_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"visual\.class_embedding"):
        from_openai({"layer.weight": torch.zeros(2)})


def test_a_missing_weight_is_named(archive: Path) -> None:
    weights = read_openai_weights(archive)
    del weights["transformer.resblocks.1.mlp.c_fc.weight"]
    with pytest.raises(CheckpointError, match=r"resblocks\.1\.mlp\.c_fc"):
        from_openai(weights)
