"""A run becomes a repository of the hub that anyone can load by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.models.folder import load
from eaglenet.research.experiments.publication import model_card, push_model
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
    assert "1 epochs, 16 pairs per batch" in card
    assert "| val | " in card


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


def test_a_dry_run_prints_the_card(run: Path) -> None:
    result = CliRunner().invoke(app, ["push", str(run), "somebody/tiny-head", "--dry-run"])
    assert result.stdout.strip() == model_card(run, "somebody/tiny-head").strip()
