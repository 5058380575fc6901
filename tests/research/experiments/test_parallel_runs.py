"""A campaign in several processes: the same rows, failures told, a search for every method."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.core.process import Child, start_child
from eaglenet.methods import METHODS
from eaglenet.research.evaluation.differences import read_ranks
from eaglenet.research.evaluation.report import write_report
from eaglenet.research.experiments import campaign as campaign_module
from eaglenet.research.experiments.campaign import (
    CannotRun,
    Job,
    Search,
    SeedRun,
    Trial,
    TrialRow,
    campaign_table,
    run_campaign,
    search_setting,
)
from eaglenet.research.recipes.comparison import time_scoring
from tiny import tiny_experiment


def trial(features: Path, label: str = "tiny", **training: object) -> Trial:
    """EagleNet without its costly parts, one epoch."""
    experiment = tiny_experiment(features, **{"epochs": 1, **training})
    config = METHODS["clip4clip"].config_class(num_frames=experiment.data.frames.num_frames)
    return Trial(label, dataclasses.replace(experiment, method="clip4clip", method_config=config))


def test_a_search_takes_two_values_or_more() -> None:
    assert Search.parse("training.lr_head=1e-4, 3e-4") == Search(
        "training.lr_head", ("1e-4", "3e-4")
    )
    with pytest.raises(UsageError, match="two or more values"):
        Search.parse("training.lr_head=1e-4")


def test_every_method_searches_its_own_value_and_keeps_the_best_run(
    features: Path, tmp_path: Path
) -> None:
    trials = [trial(features), trial(features, "other", batch_size=8)]
    search = Search("training.lr_encoder", ("0", "0.1"))
    rows = run_campaign(trials, [0, 1], tmp_path, split="val", device="cpu", search=search)
    table = json.loads((tmp_path / "search.json").read_text())["val t2v R@1"]
    for row in rows:
        assert isinstance(row, TrialRow)
        assert row.seeds == (0, 1)
        best = max(table[row.label], key=lambda value: table[row.label][value])
        kept = json.loads((tmp_path / row.label / "seed-1" / "experiment.json").read_text())
        assert kept["training"]["lr_encoder"] == float(best)
        first = json.loads((tmp_path / row.label / "seed-0" / "result.json").read_text())
        assert first["metrics"]["t2v"]["R@1"] == table[row.label][best]


def test_a_search_never_looks_at_the_test_split(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that select their epoch on the test split have its scores in their results."""
    recalls = {"0.1": (10.0, 90.0), "0.2": (20.0, 80.0)}

    def finish(jobs: list[Job], *_: object) -> dict[Path, SeedRun]:
        outcomes = {}
        for job in jobs:
            validation, test = recalls[str(job.experiment.training.lr_head)]
            job.output.mkdir(parents=True)
            (job.output / "result.json").write_text(str(test))
            record = {"metrics": {"t2v": {"R@1": test}}}
            outcomes[job.output] = SeedRun(0, {"t2v": {"R@1": validation}}, record)
        return outcomes

    monkeypatch.setattr(campaign_module, "run_jobs", finish)
    (tuned,) = search_setting(
        [trial(features)],
        Search("training.lr_head", ("0.1", "0.2")),
        0,
        tmp_path,
        device="cpu",
        jobs=1,
        announce=lambda title: None,
    )
    assert tuned.experiment.training.lr_head == 0.2
    assert (tmp_path / "tiny" / "seed-0" / "result.json").read_text() == "80.0"
    table = json.loads((tmp_path / "search.json").read_text())["val t2v R@1"]
    assert table == {"tiny": {"0.1": 10.0, "0.2": 20.0}}


@pytest.mark.usefixtures("blank_figures")
def test_rows_have_ranks_differences_and_seconds(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [trial(features), trial(features, "still", lr_encoder=0.0)]
    rows = run_campaign(trials, [0], tmp_path, split="val", device="cpu")
    assert len(read_ranks(tmp_path / "tiny" / "seed-0" / "ranks-val.npz")["t2v"]) == 30
    timed = time_scoring(rows, tmp_path, 70, split="val", device="cpu")
    assert "70 x 70 s" in campaign_table(timed)[0]
    assert isinstance(timed[0], TrialRow)
    assert timed[0].pair_seconds["70"] > 0
    two_seeds = dataclasses.replace(timed[0], seeds=(0, 1))
    header, (cells,) = campaign_table([two_seeds])
    row = dict(zip(header, cells, strict=True))
    for name in ("t2v MdR", "v2t MdR", "Rsum"):  # With their spread, as in the report.
        assert row[name].endswith(" +- 0.0")
    # Finished runs are read, without a process for each.
    monkeypatch.setattr(campaign_module, "start_child", None)
    assert run_campaign(trials, [0], tmp_path, split="val", device="cpu", jobs=2) == rows
    changed = [trial(features, epochs=2)]
    with pytest.raises(TypeError, match="not callable"):
        run_campaign(changed, [0], tmp_path, split="val", device="cpu", jobs=2)
    # The folder of another experiment gives no result, nor that of a run with fewer epochs.
    monkeypatch.setattr(campaign_module, "_run_in_processes", lambda jobs, *_: list(jobs))
    for settings, reason in (
        ({"lr_encoder": 0.5}, "lr_encoder"),
        ({"epochs": 2}, "without a message"),
    ):
        failed = [trial(features, **settings), trials[1]]
        row, finished = run_campaign(failed, [0], tmp_path, split="val", device="cpu", jobs=2)
        assert isinstance(row, CannotRun)
        assert reason in row.cannot_run
        assert finished == rows[1]
    written = write_report([tmp_path], tmp_path / "report")
    text = written.markdown.read_text()
    assert "Differences on the validation split" in text
    assert text.count("paired bootstrap") == 1
    assert text.count("R@1 minus that of") == 1  # The other way round says the same.


def test_an_interrupted_campaign_leaves_no_run_behind(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = []

    def start(*arguments: Any) -> Child:
        children.append(start_child(*arguments))
        return children[-1]

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign_module, "start_child", start)
    monkeypatch.setattr(campaign_module, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_campaign([trial(features)], [0, 1], tmp_path, split="val", device="cpu", jobs=2)
    assert [child.process.is_alive() for child in children] == [False, False]


@pytest.mark.slow
def test_processes_give_the_same_rows_and_a_failed_run_stops_nobody(
    features: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = trial(features)
    bad = trial(features, "bad")
    missing = dataclasses.replace(bad.experiment.data, root=str(tmp_path / "nothing"))
    bad = Trial("bad", dataclasses.replace(bad.experiment, data=missing))
    rows = run_campaign([bad, good], [0, 1], tmp_path / "two", split="val", device="cpu", jobs=2)
    assert isinstance(rows[0], CannotRun)
    assert rows[0].cannot_run.startswith("every run failed: --root ")
    assert "no such folder" in rows[0].cannot_run
    assert "trying again" in caplog.text
    alone = run_campaign([good], [0, 1], tmp_path / "one", split="val", device="cpu")
    assert isinstance(rows[1], TrialRow)
    assert isinstance(alone[0], TrialRow)
    assert rows[1].mean == alone[0].mean
