"""One model, two runtimes: `small` through numpy and onnxruntime equals `small` through torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import eaglenet
from eaglenet.core.errors import CheckpointError
from eaglenet.methods.base import Method
from eaglenet.models.folder import PACKAGED
from eaglenet.models.light import LightText
from eaglenet.models.light_vision import LightVision, Precision, samples

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
    """The model through torch."""
    return eaglenet.load("small")


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / lengths


def test_texts_have_the_same_vectors(small: Method) -> None:
    with torch.no_grad():
        expected = small.encode_text(TEXTS).sentence.numpy()
    actual = LightText.open(SMALL)(TEXTS)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert cosines(actual, expected).min() > 1 - 1e-6


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("int8", 1e-3)])
def test_frames_have_the_same_vectors(
    small: Method, precision: Precision, tolerance: float
) -> None:
    pytest.importorskip("onnxruntime")
    frames = samples(168)
    with torch.no_grad():
        expected = small.encoder.vision(torch.from_numpy(frames))[:, 0].numpy()  # type: ignore[operator]
    actual = LightVision(SMALL, precision)(frames)
    assert cosines(actual, expected).min() > 1 - tolerance


def test_other_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"encoder": {"kind": "clip"}}')
    with pytest.raises(CheckpointError, match="not a compact model"):
        LightText.open(tmp_path)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from eaglenet.models.light import LightText; "
        f"LightText.open(Path({str(SMALL)!r}))(['a dog']); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr
