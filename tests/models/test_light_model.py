"""`small` with numpy and onnxruntime equals `small` with torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import eaglenet
from eaglenet.core.errors import CheckpointError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.models.files import PACKAGED, head_folder
from eaglenet.models.folder import with_head
from eaglenet.models.light_model import LightModel, mean_of_frames, unit
from eaglenet.models.onnx_vision import sample_images
from eaglenet.scoring import score_all
from eaglenet.search.torch_model import model_identity
from sampling import one_in

SMALL = PACKAGED / "small"
TEXTS = [
    "a man drives a red car",
    "A DOG, running -- on the beach!",
    "zwei Kinder spielen im Schnee",
    "日本 ü ñ 😀",
    "word " * 200,
    "x",
]


@pytest.fixture(scope="module")
def small() -> Method:
    """Return the model with torch."""
    return eaglenet.load("small")


@pytest.fixture(scope="module")
def light() -> LightModel:
    return LightModel.open("small")


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    return (unit(first) * unit(second)).sum(axis=-1)


def stored_clips(count: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return features like those of a store: in half precision, with missing frames."""
    generator = np.random.default_rng(1)
    scenes = generator.standard_normal((count, 1, 384))
    frames = 0.4 * (scenes + 0.5 * generator.standard_normal((count, 6, 384)))
    mask = np.arange(6) < generator.integers(1, 7, (count, 1))
    frames[~mask] = 0
    return frames.astype(np.float16).astype(np.float32), mask


def test_texts_have_the_same_vectors(small: Method, light: LightModel) -> None:
    with torch.no_grad():
        expected = small.encode_text(TEXTS).sentence.numpy()
    actual = light.encode_texts(TEXTS)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert cosines(actual, expected).min() > 1 - 1e-6


@pytest.mark.parametrize(("precision", "tolerance"), one_in(2, [("fp32", 1e-6), ("int8", 1e-3)]))
def test_frames_have_the_same_vectors(
    small: Method, light: LightModel, precision: str, tolerance: float
) -> None:
    pytest.importorskip("onnxruntime")
    pixels = sample_images(168)[None]
    mask = np.array([[True, True, False, True]])
    with torch.no_grad():
        clips = eaglenet.Clips(
            torch.from_numpy(pixels), torch.from_numpy(mask), torch.zeros(mask.shape)
        )
        expected = small.encode_video(clips)
    actual = light.encode_frames(pixels, mask, precision)
    assert cosines(actual, expected.frames.numpy())[mask].min() > 1 - tolerance
    assert not actual[~mask].any()
    vectors = mean_of_frames(actual, mask), small.coarse_vectors(expected).numpy()
    assert cosines(*vectors).min() > 1 - tolerance


def test_scores_and_ranking_of_the_head_are_the_same(small: Method, light: LightModel) -> None:
    head = with_head(small, head_folder("small") or Path())
    frames, mask = stored_clips(300)
    texts = light.encode_texts(TEXTS)
    video = VideoFeatures(torch.from_numpy(frames), torch.from_numpy(mask))
    with torch.no_grad():
        features = TextFeatures(torch.from_numpy(texts))
        expected = score_all(head, features, video).numpy()
        expected_frames = head.frame_scores(features, video).numpy()
    actual = light.score(texts, frames, mask)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert np.ptp(light.score(texts, frames, mask) - unit(texts) @ mean_of_frames(frames, mask).T)
    np.testing.assert_array_equal(
        np.argsort(-actual, kind="stable")[:, :100], np.argsort(-expected, kind="stable")[:, :100]
    )
    np.testing.assert_allclose(light.frame_scores(texts, frames, mask), expected_frames, atol=1e-5)


def test_the_hubness_bank_of_the_head_is_the_same(small: Method, light: LightModel) -> None:
    hubness_layer = with_head(small, head_folder("small") or Path()).hubness_layer
    assert hubness_layer is not None
    assert light.bank is not None
    bank, scale = hubness_layer
    np.testing.assert_array_equal(light.bank.vectors, bank.stored_vectors().numpy())
    assert light.bank.weight == bank.weight
    assert light.bank.scale == pytest.approx(float(scale.detach()), rel=1e-6)


def test_both_runtimes_have_one_identity(small: Method, light: LightModel) -> None:
    assert light.identity == model_identity(small)


def test_another_weight_is_another_identity(tmp_path: Path, light: LightModel) -> None:
    shutil.copytree(SMALL, tmp_path / "small")
    content = bytearray((SMALL / "model.safetensors").read_bytes())
    content[-384 * 384 // 2 : -384 * 384 // 2 + 200] = bytes(200)
    (tmp_path / "small" / "model.safetensors").write_bytes(content)
    assert LightModel.open(tmp_path / "small").identity != light.identity


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": {"kind": "clip"}},
        {"method": "xpool"},
        {"eaglenet": 2},
        {"config": {"head": "lstm"}},
    ],
)
def test_other_models_are_left_to_torch(tmp_path: Path, change: dict[str, object]) -> None:
    plain = json.loads((SMALL / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**plain, **change}))
    assert not LightModel.supports(tmp_path)
    with pytest.raises(CheckpointError, match="not a compact model"):
        LightModel.open(tmp_path)


def test_a_head_with_an_interaction_is_left_to_torch(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path / "small")
    assert LightModel.supports(tmp_path / "small")
    path = tmp_path / "small" / "head" / "config.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "config": {**plain["config"], "interaction": True}}))
    assert not LightModel.supports(tmp_path / "small")
    path.write_text("{")
    assert not LightModel.supports(tmp_path / "small")


def test_packaged_models_by_name() -> None:
    assert LightModel.supports("small")
    assert not LightModel.supports("demo")
    assert not LightModel.supports("no/such-model")


def test_damaged_weights_are_an_error(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path / "small")
    (tmp_path / "small" / "model.safetensors").write_bytes(b"\x08" + bytes(100))
    with pytest.raises(CheckpointError, match="cannot be read"):
        LightModel.open(tmp_path / "small")
    shutil.copy(SMALL / "head" / "model.safetensors", tmp_path / "small" / "model.safetensors")
    with pytest.raises(CheckpointError, match="is missing"):
        LightModel.open(tmp_path / "small").encode_texts(["a dog"])


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from eaglenet.models.light_model import LightModel; "
        "LightModel.open('small').encode_texts(['a dog']); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr
