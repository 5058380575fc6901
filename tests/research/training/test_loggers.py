"""Boards beside ``log.jsonl``: one interface, numbers by step, errors before any work."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.research.evaluation.run_records import read_log
from eaglenet.research.experiments.runs import train
from eaglenet.research.training.checkpoint import (
    BOARDS,
    numbers,
    open_boards,
    parse_boards,
)
from tiny import tiny_experiment


class StandIn(ModuleType):
    """A module with wandb's interface that remembers its calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []

    def init(self, **options: Any) -> None:
        self.calls.append(("init", options))

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, values)))

    def finish(self) -> None:
        self.calls.append(("finish", None))


def test_every_board_gets_the_numbers_of_the_log(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = {name: StandIn(name) for name in ("wandb", "trackio")}
    for name, module in hosted.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("TRACKIO_PROJECT", "mine")
    run = tmp_path / "run"
    train(tiny_experiment(features, epochs=1), run, device="cpu", boards=tuple(BOARDS))
    expected = [(event.step, numbers(event)) for event in read_log(run) if numbers(event)]
    for name, module in hosted.items():
        (_, options), *logged, (last, _) = module.calls
        assert options["project"] == ("mine" if name == "trackio" else "eaglenet")
        assert options["config"]["name"] == "tiny"
        assert options["resume"] == "allow"
        assert ("id" in options) == (name == "wandb")
        assert [value for _, value in logged] == expected
        assert last == "finish"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    assert {"step/total", "evaluation/t2v/R@1", "evaluation/v2t/R@10"} <= set(
        board.Tags()["scalars"]
    )


def test_a_board_that_is_missing_or_unknown_stops_a_run_at_once(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install wandb, or leave wandb out"):
        train(tiny_experiment(features), tmp_path / "run", device="cpu", boards=("wandb",))
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="--log mlflow: unknown service; choose from tensorboard"):
        parse_boards("wandb,mlflow")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_the_real_libraries_take_what_they_are_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network: wandb writes to the run folder, trackio to a folder of its own."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip(name)
    (board,) = open_boards((name,), tmp_path, 0, {"name": "tiny", "training": {"epochs": 1}})
    board.add({"step/total": 1.5}, 1)
    board.add({"evaluation/t2v/R@1": 50.0}, 2)
    board.close()
    written = [Path(folder) / file for folder, _, files in os.walk(tmp_path) for file in files]
    assert any(file.stat().st_size for file in written)
