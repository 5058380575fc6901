"""`eaglenet metrics` on files: numbers, labels and errors that fit on one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import DatasetError, NonFiniteError, UsageError


def run(*arguments: object) -> dict:
    result = CliRunner().invoke(app, ["metrics", *map(str, arguments), "--json"])
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


@pytest.fixture
def square(tmp_path: Path) -> Path:
    """A file of three texts by three videos."""
    path = tmp_path / "square.npy"
    np.save(path, np.array([[0.9, 0.1, 0.2], [0.8, 0.7, 0.1], [0.1, 0.2, 0.3]]))
    return path


def test_a_square_matrix_needs_no_mapping(square: Path) -> None:
    record = run(square)
    assert record["t2v"]["R@1"] == pytest.approx(200 / 3)
    assert record["t2v"]["MnR"] == pytest.approx(4 / 3)
    assert record["v2t"]["R@1"] == pytest.approx(100)
    assert record["Rsum"] == pytest.approx(200 / 3 + 500)


@pytest.mark.parametrize("suffix", ["npy", "json", "txt"])
def test_many_captions_with_a_mapping_in_any_form(tmp_path: Path, suffix: str) -> None:
    scores, mapping = tmp_path / "scores.npy", tmp_path / f"map.{suffix}"
    np.save(scores, np.random.default_rng(0).random((5, 3), dtype=np.float32))
    owners = [0, 1, 1, 2, 2]
    if suffix == "npy":
        np.save(mapping, np.array(owners))
    else:
        text = json.dumps(owners) if suffix == "json" else "\n".join(map(str, owners)) + "\n"
        mapping.write_text(text)
    record = run(scores, "--video-of-text", mapping)
    assert (record["t2v"]["queries"], record["v2t"]["queries"]) == (5, 3)
    assert record["Rsum"] == pytest.approx(record["t2v"]["Rsum"] + record["v2t"]["Rsum"])


def test_the_mapping_that_evaluate_writes_beside_the_scores_is_used(tmp_path: Path) -> None:
    scores, mapping = tmp_path / "sim.npy", tmp_path / "sim.videos.npy"
    np.save(scores, np.random.default_rng(0).random((3, 3)))
    np.save(mapping, np.array([0, 0, 1]))  # Also for a square matrix.
    record = run(scores)
    assert (record["t2v"]["queries"], record["v2t"]["queries"]) == (3, 2)
    assert record["video_of_text"] == str(mapping)
    table = CliRunner().invoke(app, ["metrics", str(scores)]).stdout
    assert "\n1 video has no text: candidates, but not queries\n" in table
    text = CliRunner().invoke(app, ["metrics", str(scores)]).stdout
    assert f"video of each text: {mapping}" in text
    assert "video-to-text: captions of one video are one candidate" in text
    other = tmp_path / "other.json"
    other.write_text("[0, 1, 2]")
    assert run(scores, "--video-of-text", other)["v2t"]["queries"] == 3


def test_post_processing_is_labelled_and_leaves_the_plain_numbers(
    tmp_path: Path, square: Path
) -> None:
    bank = tmp_path / "bank.npy"
    np.save(bank, np.random.default_rng(1).random((7, 3)))
    plain = run(square)
    record = run(square, "--dual-softmax", "--qb-norm", bank)
    assert record["t2v"] == plain["t2v"]
    assert set(record) - set(plain) == {"dual_softmax", "qb_norm"}
    text = CliRunner().invoke(app, ["metrics", str(square), "--dual-softmax"]).stdout
    assert "dual softmax, text-to-video" in text
    assert "are one candidate" not in text  # One caption per video.
    assert "not comparable" in text


def test_wrong_files_are_answered_with_what_was_expected(tmp_path: Path, square: Path) -> None:
    path = tmp_path / "bad.npy"
    np.save(path, np.zeros((2, 3, 4)))
    with pytest.raises(UsageError, match="expected two axes"):
        run(path)
    np.save(path, np.zeros((2, 3)))
    with pytest.raises(UsageError, match="--video-of-text"):
        run(path)
    np.save(path, np.full((3, 3), np.nan))
    with pytest.raises(NonFiniteError, match="9 of 9"):
        run(path)
    path.write_text("not numpy")
    for arguments in ((path,), (square, "--video-of-text", path)):
        with pytest.raises(UsageError, match="cannot be read") as refused:
            run(*arguments)
        assert "pickle" not in str(refused.value)
    with pytest.raises(UsageError, match="is not a file"):
        run(tmp_path / "none.npy")
    mapping = tmp_path / "map.txt"
    mapping.write_text("0 1\n")
    with pytest.raises(UsageError, match="expected 3 whole numbers"):
        run(square, "--video-of-text", mapping)
    mapping.write_text("0 1 3\n")
    with pytest.raises(DatasetError, match="does not exist"):
        run(square, "--video-of-text", mapping)


def test_ties_for_the_model_stand_beside_only_where_they_differ(
    square: Path, tmp_path: Path
) -> None:
    assert "ties_for_the_model" not in run(square)
    path = tmp_path / "twins.npy"
    np.save(path, np.array([[0.9, 0.4], [0.9, 0.4]]))
    record = run(path)
    assert record["v2t"]["R@1"] == 0.0
    assert record["ties_for_the_model"]["v2t"]["R@1"] == 100.0
    shown = CliRunner().invoke(app, ["metrics", str(path)]).stdout
    assert "ties for model, video-to-text" in shown


def test_sinkhorn_is_shown_beside_the_plain_scores(square: Path) -> None:
    record = run(square, "--sinkhorn", square)
    assert set(record["sinkhorn"]) == {"t2v"}
