"""docs/how-to/features.md, end to end: vectors of any model, a folder, heads, test videos."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import ConfigError
from eaglenet.research.recipes import Recipe

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "features.md"
WIDTH = 24


def run(*arguments: Path | str) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names that the Python of the page defines; it has written TRAIN and TEST."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(code, names)
    return names


def command_of_the_page(start: str) -> list[str]:
    (command,) = re.findall(rf"^eaglenet ({start} .*)$", PAGE.read_text(), re.MULTILINE)
    return shlex.split(command)


@pytest.mark.usefixtures("page", "blank_figures")
def test_heads_train_on_the_vectors_of_any_model_and_score_test_videos(tmp_path: Path) -> None:
    test = tmp_path / "TEST"
    run("data", "check", "features", "--root", "TRAIN")
    small = ("--set", "training.batch_size=32", "--set", "data.frames.num_frames=4",
             "--set", "training.epochs=2", "--seeds", "1")  # fmt: skip
    run(*command_of_the_page("compare clip4clip xpool drl"), *small)
    run(*command_of_the_page("evaluate OUT/xpool/seed-0"))
    recalls = {}
    for method in ("clip4clip", "xpool", "drl"):
        told = run("evaluate", tmp_path / "OUT" / method / "seed-0", "--features", test, "--json")
        recalls[method] = json.loads(told)["t2v"]["R@1"]
    # Mean pooling is the embedder's own ranking; chance is 1.7.
    assert recalls["clip4clip"] > 30
    # A head that looks for the frame of the text finds more than the mean of all frames shows.
    assert recalls["drl"] > recalls["clip4clip"]


def test_widths_are_those_of_the_folder(tmp_path: Path, page: dict[str, Any]) -> None:
    folder = tmp_path / "train"
    page["write_synthetic"](folder, 4, seed=1)
    at_root = [f"data.root={folder}"]
    for tower, dim in (("adapters", 512), ("shared", WIDTH)):
        experiment = Recipe("eaglenet", "features", tower).build().override(at_root)
        config = experiment.encoder.config
        assert (config.text_dim, config.frame_dim, config.dim) == (WIDTH, WIDTH, dim)
        assert experiment.method_config.dim == dim
    sentences = np.load(folder / "sentence_features.npy")
    np.save(folder / "sentence_features.npy", sentences[:, :9])
    with pytest.raises(ConfigError, match="are 9 wide and frames 24, so they do not share a space"):
        Recipe("xpool", "features", "shared").build().override(at_root)
    (folder / "frame_features.npy").write_bytes(b"no array")
    config = Recipe("xpool", "features").build().override(at_root).encoder.config
    assert config.text_dim == 384  # reading the folder says what is wrong with it
