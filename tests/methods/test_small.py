"""The packaged model ``small``: its size, that it loads, and that it knows what it sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import eaglenet
from eaglenet.core.errors import CheckpointError
from eaglenet.core.types import Clips
from eaglenet.indexing.model import DEFAULT_MODEL
from eaglenet.methods.base import Method
from eaglenet.models.files import PACKAGED
from eaglenet.search.torch_model import check_method, load_model

MOST_BYTES = 45_000_000


@pytest.fixture(scope="module")
def small() -> Method:
    """The model of the real world that ships with the package."""
    return eaglenet.load("small")


def test_it_is_the_default_and_fits_the_package() -> None:
    assert DEFAULT_MODEL == "small"
    files = [path for path in (PACKAGED / "small").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES


def test_plain_colours_are_named(small: Method) -> None:
    """Far from a test of quality: a model that did not load fails it."""
    size = small.frame_spec.size
    colours = {"red": (200, 20, 20), "green": (30, 160, 40), "blue": (20, 40, 200)}
    pixels = torch.tensor(list(colours.values()), dtype=torch.uint8)
    frames = pixels[:, None, :, None, None].expand(-1, 1, -1, size, size)
    clips = Clips(frames, torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, 1))
    assert small.tokenizer is not None
    with torch.no_grad():
        texts = small.encode_text(small.tokenizer([f"a {name} background" for name in colours]))
        scores = small.score(texts, small.encode_video(clips))
    assert scores.argmax(dim=1).tolist() == [0, 1, 2]


def test_a_model_that_sees_nothing_is_refused(small: Method, tmp_path: Path) -> None:
    encoder = small.encoder
    weight = encoder.vision.projection.weight  # type: ignore[attr-defined]
    weight_before = weight.detach().clone()
    try:
        weight.data.zero_()
        with pytest.raises(CheckpointError, match="same vector"):
            check_method(small, "blind")
    finally:
        weight.data.copy_(weight_before)
    check_method(small, "small")


def test_a_model_whose_words_do_not_fit_its_pictures_is_told_of(
    small: Method, caplog: pytest.LogCaptureFixture
) -> None:
    """As with the tokenizer of another model, or weights that were never trained."""
    weight = small.encoder.text.projection.weight  # type: ignore[attr-defined]
    weight_before = weight.detach().clone()
    try:
        weight.data.neg_()
        with pytest.raises(CheckpointError, match=r"nearer to the other.*install the package"):
            check_method(small, "small")
        check_method(small, "somebody/model")
        assert "nearer to the other" in caplog.text
    finally:
        weight.data.copy_(weight_before)


@pytest.mark.slow
def test_loading_it_does_not_wait_for_the_compiler() -> None:
    """A second and a half of imports that a search has no use for."""
    code = "import eaglenet, sys; eaglenet.load('small'); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_loads_for_indexing() -> None:
    assert load_model("small").name == "clip4clip"
