"""The training commands, as a user types them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eaglenet.cli.ablate import paper_numbers
from eaglenet.cli.main import app
from eaglenet.core.errors import EagleNetError
from eaglenet.research.experiments.campaign import CannotRun
from eaglenet.research.experiments.trials import Trial
from eaglenet.research.recipes import TABLES
from tiny import FRAME_DIM, FRAMES, TEXT_DIM, write_features

SMALL = [
    f"encoder.config.text_dim={TEXT_DIM}",
    f"encoder.config.frame_dim={FRAME_DIM}",
    "encoder.config.dim=8",
    "data.val_videos=10",
    f"data.frames.num_frames={FRAMES}",
    "training.epochs=1",
    "training.coarse_epochs=1",
    "training.coarse_batch_size=16",
    "training.batch_size=16",
]
EAGLENET = ["method_config.dim=8", "method_config.num_candidates=2", "method_config.num_frames=5"]


def settings(*groups: list[str]) -> list[str]:
    return [word for group in groups for line in group for word in ("--set", line)]


def invoke(*arguments: Any) -> str:
    """What a command printed; its errors are raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_train_evaluate_and_resume(features: Path, tmp_path: Path) -> None:
    command = [
        "train", "features/eaglenet", "--output", tmp_path / "run", "--device", "cpu", "--json",
        *settings([f"data.root={features}"], SMALL, EAGLENET),
    ]  # fmt: skip
    first = json.loads(invoke(*command))
    assert json.loads(invoke(*command)) == first
    found = json.loads(invoke("evaluate", tmp_path / "run", "--device", "cpu", "--json"))
    assert found["t2v"] == first["metrics"]["t2v"]
    other = write_features(tmp_path / "other", videos=9, seed=4)
    found = json.loads(
        invoke("evaluate", tmp_path / "run", "--features", other, "--device", "cpu", "--json")
    )
    assert found["videos_found"] == 9
    text = invoke("evaluate", tmp_path / "run", "--device", "cpu")
    assert "R@1" in text
    assert "features of" in text
    command.remove("--json")
    assert "nothing was trained" in invoke(*command)


def test_noise_seeds_give_mean_and_spread(features: Path, tmp_path: Path) -> None:
    invoke(
        "train", "features/tmass", "--output", tmp_path / "run", "--device", "cpu", "--json",
        *settings([f"data.root={features}", "method_config.num_frames=5"], SMALL),
    )  # fmt: skip
    found = json.loads(
        invoke("evaluate", tmp_path / "run", "--noise-seeds", 3, "--device", "cpu", "--json")
    )
    assert found["noise"]["seeds"] == [0, 1, 2]
    assert {"mean", "std"} <= set(found["noise"])


def test_recipes_are_listed_and_shown() -> None:
    listed = json.loads(invoke("recipes", "--json"))
    assert "msrvtt-b16" in listed
    shown = invoke("recipes", "show", "msrvtt-b16-released")
    assert shown.startswith("# eaglenet train msrvtt-b16-released --output DIR")
    plain = json.loads(invoke("recipes", "show", "demo", "--set", "training.epochs=9", "--json"))
    assert plain["training"]["epochs"] == 9
    assert "components/frl+eam" in invoke("recipes", "--containing", "components")


def test_recipes_are_an_overview_that_fits_a_screen_and_all_of_them_for_who_asks() -> None:
    listed = json.loads(invoke("recipes", "--json"))
    overview = invoke("recipes").splitlines()
    assert len(overview) < 30
    assert max(map(len, overview)) <= 100
    assert any(line.startswith("folder ") for line in overview)
    assert overview[-2].startswith(f"{len(listed)} recipes")
    assert sum(int(line.split()[1]) for line in overview[:-3]) == len(listed)
    assert all(": " in line for line in overview[:-3])  # each group is said in words
    everything = invoke("recipes", "--all")
    assert all(f"  {name} " in everything for name in listed)


def test_a_dry_run_counts_the_data_and_trains_nothing(features: Path, tmp_path: Path) -> None:
    text = invoke(
        "train", "features/xpool", "--output", tmp_path / "run", "--dry-run", "--json",
        *settings([f"data.root={features}", "method_config.num_frames=5"], SMALL),
    )  # fmt: skip
    found = json.loads(text)
    assert found["data"]["train"]["videos_found"] == 30
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "training.batch_size=4000"], "90 captions cannot fill one batch of 4000"),
        (["--set", "training.coarse_batch_size=5000"], "fill one batch of 5000"),
        (["--device", "cuda:99"], "GPU 99 was requested"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(
    features: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    command = ["train", "features/xpool", "--output", tmp_path / "run", "--dry-run"]
    command += settings([f"data.root={features}", "method_config.num_frames=5"], SMALL)
    with pytest.raises(EagleNetError, match=message):
        invoke(*command, *arguments)


def test_an_experiment_file_can_be_trained(features: Path, tmp_path: Path) -> None:
    saved = invoke(
        "recipes", "show", "features/xpool", "--json",
        *settings([f"data.root={features}", "method_config.num_frames=5"], SMALL),
    )  # fmt: skip
    (tmp_path / "mine.json").write_text(saved)
    invoke("train", tmp_path / "mine.json", "--output", tmp_path / "run", "--device", "cpu")
    assert (tmp_path / "run" / "result.json").exists()


def test_compare_gives_one_table_and_says_what_cannot_run(features: Path, tmp_path: Path) -> None:
    found = json.loads(
        invoke(
            "compare", "clip4clip,xpool", "xpool", "--dataset", "features", "--root", features,
            "--seeds", 2, "--output", tmp_path, "--device", "cpu", "--json",
            *settings(SMALL, ["method_config.num_frames=5"]),
        )
    )  # fmt: skip
    assert [row["label"] for row in found["rows"]] == ["clip4clip", "xpool"]
    row = found["rows"][1]
    assert row["seeds"] == [0, 1]
    assert row["parameters"]["head"] > 0
    assert row["score_seconds"] > 0
    assert {"R@1", "R@5"} <= set(row["mean"]["t2v"])
    report = (tmp_path / "compare.md").read_text()
    assert "Recall against test time" in report
    assert "chosen on the validation split" in report
    assert row["budget"] == {"pairs": 2 * 5 * 16, "batch": 16, "frames": 5, "words": 32}
    assert "All rows had the same budget." in report


def test_a_comparison_names_earlier_runs_that_its_table_leaves_out(
    features: Path, tmp_path: Path
) -> None:
    command = ["compare", "--dataset", "features", "--root", features, "--seeds", 1]
    command += ["--output", tmp_path, "--device", "cpu"]
    command += settings(SMALL, ["method_config.num_frames=5"])
    assert "not in this table" not in invoke(*command, "clip4clip", "xpool")
    for _ in range(2):
        assert "not in this table: clip4clip;" in invoke(*command, "xpool")
    assert "not in this table: clip4clip;" in (tmp_path / "compare.md").read_text()


@pytest.mark.parametrize(
    "command", [["compare", "xpool", "--dataset"], ["ablate", "coefficient", "--world"]]
)
def test_a_wrong_root_is_told_before_weights_are_looked_for(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*arguments: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("eaglenet.encoders.loading.load_pretrained", loaded)
    with pytest.raises(EagleNetError, match="--root /nothere: no such folder"):
        invoke(*command, "msrvtt-b16", "--root", "/nothere", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_that_cannot_run_gets_a_row_that_says_why(features: Path, tmp_path: Path) -> None:
    from eaglenet.research.experiments.campaign import (
        campaign_table,
        reasons,
        run_campaign,
        write_report,
    )
    from eaglenet.research.experiments.trials import Trial
    from eaglenet.research.recipes.stored_features import feature_experiment

    trial = Trial("ts2net", feature_experiment("ts2net"))
    rows = run_campaign([trial], [0], tmp_path, split="val", device="cpu")
    assert "frozen features" in rows[0].cannot_run
    assert campaign_table(rows)[1][0] == ["ts2net", "cannot run"]
    assert "frozen features" in reasons(rows)[0]
    write_report(tmp_path / "new", "compare", "title", rows)
    assert "frozen features" in (tmp_path / "new" / "compare.md").read_text()


def test_ablate_prints_ours_beside_the_papers_numbers(features: Path, tmp_path: Path) -> None:
    text = invoke(
        "ablate", "coefficient", "--world", "features", "--root", features, "--output", tmp_path,
        "--device", "cpu", *settings(SMALL, EAGLENET),
    )  # fmt: skip
    assert "paper" in text
    rows = json.loads((tmp_path / "ablate.json").read_text())["rows"]
    assert [row["label"] for row in rows] == ["0.1", "0.5", "1.0"]
    assert rows[2]["paper"]["MSR-VTT"]["R@1"] == 51.0
    assert "(ours)" in (tmp_path / "ablate.md").read_text()


@pytest.mark.parametrize("world", ["msrvtt-b16-released", "didemo-b16-released"])
@pytest.mark.parametrize("table", ["components", "energy", "pooling", "graph", "edges"])
def test_ablate_takes_the_worlds_of_released_settings(
    table: str, world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Trial] = []

    def noted(trials: list[Trial], *arguments: Any, **options: Any) -> list[CannotRun]:
        asked.extend(trials)
        return [CannotRun(trial.label, "not trained here") for trial in trials]

    monkeypatch.setattr("eaglenet.research.experiments.campaign.run_campaign", noted)
    invoke("ablate", table, "--world", world, "--root", tmp_path, "--output", tmp_path / "out")
    assert [trial.label for trial in asked] == [row.label for row in TABLES[table]]
    for trial in asked:
        assert trial.experiment.name.startswith(f"{world}/{table}/")
        assert trial.experiment.training.select == "test"
    dataset = {"msrvtt": "MSR-VTT", "didemo": "DiDeMo"}[world.partition("-")[0]]
    assert dataset in paper_numbers(table, asked[0].label, world)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "msrvtt-b61", "--output", "x"], "did you mean"),
        (["ablate", "colour", "--output", "x"], "unknown table"),
        (["ablate", "energy", "--world", "moon", "--output", "x"], "known: demo, features"),
        (["compare", "nonsense", "--output", "x"], "unknown method"),
        (["compare", ",", "--output", "x"], "no method to compare on demo: none given"),
        (["compare", "xpool", "--dataset", "moon", "--output", "x"], "choose one of demo, didemo"),
        (
            ["compare", "xpool-original", "--dataset", "didemo-b16", "--output", "x"],
            "original given",
        ),
        (["evaluate", "x", "--features", "f", "--split", "test"], "leave out --split"),
        (["evaluate", "x", "--root", "f"], "--root belongs to --dataset"),
        (["evaluate", "nowhere"], "no such run folder.*--dataset"),
        (["recipes", "--containing", "moon"], "none of the .* recipes has 'moon'"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(EagleNetError, match=message):
        invoke(*arguments)


def test_a_folder_that_cannot_be_made_is_one_line_and_no_traceback(
    features: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    command = [sys.executable, "-c", "from eaglenet.cli.main import main; main()"]
    command += ["train", "features/clip4clip", "--output", str(tmp_path / "file" / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert "a folder is needed there" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_terminated_process_saves_its_step_and_says_how_to_go_on(
    features: Path, tmp_path: Path
) -> None:
    log = tmp_path / "run" / "log.jsonl"
    command = [sys.executable, "-c", "from eaglenet.cli.main import main; main()"]
    command += ["train", "features/clip4clip", "--output", str(tmp_path / "run")]
    command += ["--device", "cpu", *settings([f"data.root={features}"], SMALL)]
    command += settings(["method_config.num_frames=5", "training.epochs=100000"])
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (log.exists() and '"event": "step"' in log.read_text()):
        time.sleep(0.05)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "run the same command again to continue" in told
    assert "error:" not in told
    last = json.loads(log.read_text().splitlines()[-1])["step"]
    assert (tmp_path / "run" / "checkpoints" / f"step-{last:09d}.pt").exists()


def test_scores_of_a_run_can_be_written_and_post_processed(features: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    invoke(
        "train", "features/clip4clip", "--output", run, "--device", "cpu",
        *settings([f"data.root={features}", "method_config.num_frames=5"], SMALL),
    )  # fmt: skip
    file = tmp_path / "sim.npy"
    record = json.loads(invoke("evaluate", run, "--device", "cpu", "--scores", file, "--json"))
    metrics = json.loads(
        invoke(
            "metrics", file, "--video-of-text", tmp_path / "sim.videos.npy", "--dual-softmax",
            "--json",
        )
    )  # fmt: skip
    assert metrics["t2v"] == record["t2v"]
    assert metrics["v2t"] == record["v2t"]
    assert "dual_softmax" in metrics
    with pytest.raises(EagleNetError, match=r"ends in \.npy"):
        invoke("evaluate", run, "--device", "cpu", "--scores", tmp_path / "sim.csv")


def test_a_train_command_without_a_terminal_says_where_it_is(
    features: Path, tmp_path: Path
) -> None:
    command = ["train", "features/xpool", "--output", str(tmp_path / "run"), "--device", "cpu"]
    command += settings([f"data.root={features}"], SMALL, ["method_config.num_frames=5"])
    told = CliRunner().invoke(app, command).stderr.splitlines()
    assert told == ["features/xpool: step 0 of 10", told[1]]
    assert "epoch 2: t2v R@1" in told[1]


def test_a_table_wider_than_the_terminal_keeps_its_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.cli.options import print_table

    monkeypatch.setenv("COLUMNS", "40")
    print_table("title", ["", *["t2v R@1"] * 6], [["components/frl+sigmoid", *["13.2 +- 0.2"] * 6]])
    row = capsys.readouterr().out.splitlines()[-2].strip()
    assert row.split("components/frl+sigmoid")[1].split("   ")[1:] == ["13.2 +- 0.2"] * 6


def test_budgets_that_differ_are_named() -> None:
    from eaglenet.research.experiments.campaign import CannotRun, RunBudget, TrialRow, budget_lines

    def row(**changes: Any) -> Any:
        budget = RunBudget(**{"pairs": 80, "batch": 8, "frames": 12, "words": 32, **changes})
        none = dict.fromkeys(field.name for field in dataclasses.fields(TrialRow))
        return TrialRow(**{**none, "budget": budget})

    assert budget_lines([row(), row()]) == ["All rows had the same budget."]
    told = budget_lines([row(), row(pairs=60, words=50), CannotRun("a", "why")])
    assert told[0].startswith("Budgets differ in pairs and words (")
    assert budget_lines([CannotRun("a", "why")]) == []


def test_a_split_that_the_run_knows_is_said_beside_its_score(
    features: Path, tmp_path: Path
) -> None:
    invoke(
        "train", "features/xpool", "--output", tmp_path / "run", "--device", "cpu",
        *settings([f"data.root={features}"], SMALL, ["method_config.num_frames=5"]),
    )  # fmt: skip
    command = ["evaluate", tmp_path / "run", "--device", "cpu"]
    assert "the run was trained on this split" in invoke(*command, "--split", "train")
    assert "this split chose the epoch" in invoke(*command)
