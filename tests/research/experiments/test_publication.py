"""A run becomes a repository of the hub that anyone can load by its name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.encoders import ENCODERS
from eaglenet.models.folder import load
from eaglenet.research.experiments.publication import ARCHITECTURES, model_card, push_model
from eaglenet.research.experiments.runs import train
from hub_repositories import repository_hub
from tiny import tiny_experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, features: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny_experiment(features, epochs=1), folder, device="cpu")
    return folder


def test_a_run_is_pushed_with_a_card_and_loads_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with repository_hub(tmp_path / "hub", monkeypatch, tmp_path / "cache") as address:
        command = ["push", str(run), "somebody/tiny-head", "--license", "apache-2.0"]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert f"{address}/somebody/tiny-head" in result.stdout
    stored = tmp_path / "hub" / "models" / "somebody" / "tiny-head"
    expected, pushed = load(run).state_dict(), load(stored).state_dict()
    assert set(expected) == set(pushed)
    assert all(torch.equal(expected[name], pushed[name]) for name in expected)
    card = (stored / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: eaglenet\n")
    assert "license: apache-2.0" in card
    assert "hf download somebody/tiny-head --local-dir tiny-head" in card
    assert "1 epoch, 24 pairs per batch" in card
    # A head over stored features cannot index videos.
    assert "eaglenet evaluate ./tiny-head --data features --root FOLDER" in card
    assert "eaglenet index" not in card
    assert "| val | " in card


def test_a_card_cautions_about_few_videos(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "few"
    shutil.copytree(run, folder)
    assert "too few" not in model_card(folder, "a/b")
    result = json.loads((folder / "result.json").read_text())
    result["metrics"]["v2t"]["queries"] = 4
    (folder / "result.json").write_text(json.dumps(result))
    card = model_card(folder, "a/b")
    assert "Note: val: 4 videos are too few for recalls to mean much." in card


def test_what_cannot_be_pushed_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="has no model"):
        model_card(tmp_path, "a/b")
    with pytest.raises(UsageError, match="write OWNER/NAME"):
        push_model(run / "model", "no-owner", "")
    with repository_hub(tmp_path / "hub", monkeypatch, tmp_path / "cache"):
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        with pytest.raises(UsageError, match="hf auth login"):
            push_model(run / "model", "somebody/other", "")
    assert not (tmp_path / "hub").exists()


def test_links_in_a_model_folder_are_not_uploaded(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("key")
    model = shutil.copytree(run / "model", tmp_path / "model")
    with repository_hub(tmp_path / "hub", monkeypatch, tmp_path / "cache"):
        (model / "notes.txt").symlink_to(tmp_path / "secret")
        with pytest.raises(UsageError, match=r"notes\.txt: a link"):
            push_model(model, "somebody/other", "")
        (model / "notes.txt").unlink()
        os.mkfifo(model / "notes.txt")
        with pytest.raises(UsageError, match="cannot be copied"):
            push_model(model, "somebody/other", "")
    assert not (tmp_path / "hub").exists()


def test_a_dry_run_prints_the_card(run: Path) -> None:
    result = CliRunner().invoke(app, ["push", str(run), "somebody/tiny-head", "--dry-run"])
    assert result.stdout.strip() == model_card(run, "somebody/tiny-head").strip()


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32"),
        ("ViT-B/32", "openai/clip-vit-base-patch32"),
        ("best-gpu", "Qwen/Qwen3-VL-Embedding-2B"),
        ("st:owner/model@0123456789abcdef:512", "owner/model"),
        ("small", None),
        ("st:models/mine", None),
    ],
)
def test_the_card_names_the_model_that_was_trained(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, base: str | None
) -> None:
    """``models/mine`` is a folder here, and has the form of a hub id."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    folder = shutil.copytree(run, tmp_path / "run")
    experiment = json.loads((folder / "experiment.json").read_text())
    experiment["encoder"]["source"] = source
    (folder / "experiment.json").write_text(json.dumps(experiment))
    lines = model_card(folder, "somebody/tiny-head").splitlines()
    expected = [f"base_model: {base}"] if base else []
    assert [line for line in lines if line.startswith("base_model")] == expected


def test_the_card_of_a_model_without_its_run_names_no_internal_kind(
    run: Path, tmp_path: Path
) -> None:
    assert model_card(run / "model", "a/b") == model_card(run, "a/b")
    alone = shutil.copytree(run / "model", tmp_path / "alone")
    config = json.loads((alone / "config.json").read_text())
    for kind in ENCODERS:
        config["encoder"]["kind"] = kind
        (alone / "config.json").write_text(json.dumps(config))
        assert f"over {ARCHITECTURES[kind]}, for" in model_card(alone, "a/b")


def test_the_card_of_an_unfinished_run_says_so_with_the_notes_of_its_scores(
    run: Path, tmp_path: Path
) -> None:
    assert "not finished" not in model_card(run, "somebody/tiny-head")
    folder = shutil.copytree(run, tmp_path / "run")
    scores = json.loads((folder / "result.json").read_text())["metrics"]
    (folder / "result.json").unlink()
    record = scores | {"split": "test", "notes": ["5 videos are too few"]}
    (folder / "evaluation-test.json").write_text(json.dumps(record))
    card = model_card(folder, "somebody/tiny-head")
    assert "\nTraining was not finished.\n" in card
    assert "\nNote: 5 videos are too few.\n" in card


def test_the_card_of_an_approximate_method_says_so(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    assert "approximate" not in model_card(folder, "somebody/tiny-head")
    config = json.loads((folder / "model" / "config.json").read_text())
    (folder / "model" / "config.json").write_text(json.dumps({**config, "method": "tvmm"}))
    assert "approximate" in model_card(folder, "somebody/tiny-head")


@pytest.mark.parametrize("refused", ["/lfs/", "/commit/"])
def test_a_push_that_fails_half_way_is_repeated(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Nothing is visible in the repository before the last request; the second push completes."""
    stored = tmp_path / "hub" / "models" / "somebody" / "tiny-head"
    with repository_hub(tmp_path / "hub", monkeypatch, tmp_path / "cache", refused=refused):
        with pytest.raises(UsageError, match="push again"):
            push_model(run / "model", "somebody/tiny-head", "a card")
        assert list(stored.iterdir()) == []
        push_model(run / "model", "somebody/tiny-head", "a card")
    assert (stored / "README.md").read_text() == "a card"
    assert load(stored).state_dict().keys() == load(run).state_dict().keys()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("evaluation.json", "[", r"evaluation\.json: cannot be read as JSON"),
        ("evaluation.json", '{"t2v": {"R@1": 1.0}}', r"evaluation\.json: has no .*R@5"),
        ("evaluation.json", '{"t2v": {"R@1": "x", "R@5": 1, "R@10": 1}}', r"evaluation\.json: "),
        (
            "experiment.json",
            '{"training": {"epochs": 1}}',
            r"experiment\.json: has no .*lr_encoder",
        ),
        ("experiment.json", '{"training": 3}', r"experiment\.json: "),
        (
            "experiment.json",
            '{"training": {"lr_encoder": 1' + 400 * "0" + ', "lr_head": 1}}',
            r"experiment\.json: int too large",
        ),
        ("experiment.json", '{"encoder": ["a"]}', r"experiment\.json: "),
        ("model/config.json", '{"encoder": "clip"}', r"config\.json: 'str' object"),
        ("model/config.json", '{"frame_spec": [12]}', r"config\.json: 'list' object"),
    ],
)
def test_a_card_is_not_made_from_damaged_files(
    run: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        model_card(folder, "somebody/tiny-head")


def test_values_of_files_add_no_lines_to_a_card(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    config = json.loads((folder / "model" / "config.json").read_text())
    config["method"] = "x\n---\nlicense: mit\x1b[31m\u202e"
    (folder / "model" / "config.json").write_text(json.dumps(config))
    card = model_card(folder, "somebody/tiny-head", "apache-2.0")
    assert [line for line in card.splitlines() if line.startswith("license:")] == [
        "license: apache-2.0"
    ]
    assert all(char.isprintable() or char == "\n" for char in card)
