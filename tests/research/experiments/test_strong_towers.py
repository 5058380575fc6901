"""docs/how-to/features.md, end to end: vectors of any model, a folder, heads, test videos."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import ConfigError
from eaglenet.research.recipes import Recipe

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "features.md"
WIDTH, FRAMES = 24, 4


def run(*arguments: Path | str) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def write(folder: Path, num_videos: int, seed: int) -> Path:
    """Vectors as of a strong embedder: one frame of four shows what the sentences say."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    draw = np.random.default_rng(seed)
    frames, sentences, captions = {}, {}, {}
    for number in range(num_videos):
        video = f"video{seed}-{number}"
        meaning = draw.normal(size=WIDTH)
        frames[video] = draw.normal(size=(FRAMES, WIDTH))
        frames[video][draw.integers(FRAMES)] = meaning + 0.3 * draw.normal(size=WIDTH)
        sentences[video] = meaning + 0.3 * draw.normal(size=(2, WIDTH))
        captions[video] = [f"caption {n} of {video}" for n in range(2)]
    names["write_features"](folder, frames, sentences, captions)
    return folder


def test_heads_train_on_the_vectors_of_any_model_and_score_test_videos(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train", 80, 1), write(tmp_path / "test", 40, 2)
    run("data", "check", "features", "--root", train)
    small = ("--set", "data.val_videos=20", "--set", "training.batch_size=32",
             "--set", "data.frames.num_frames=4", "--set", "training.epochs=2")  # fmt: skip
    run("compare", "clip4clip", "xpool", "drl", "--data", "features", "--tower", "shared",
        "--root", train, *small, "--output", tmp_path / "out", "--seeds", "1")  # fmt: skip
    recalls = {}
    for method in ("clip4clip", "xpool", "drl"):
        told = run("evaluate", tmp_path / "out" / method / "seed-0", "--features", test, "--json")
        recalls[method] = json.loads(told)["t2v"]["R@1"]
    # Mean pooling is the embedder's own ranking; chance is 2.5.
    assert recalls["clip4clip"] > 30
    # A head that looks for the frame of the text finds more than the mean of all frames shows.
    assert recalls["drl"] > recalls["clip4clip"]


def test_widths_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "train", 4, 1)
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
