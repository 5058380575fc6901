"""The training commands, as a user types them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eaglenet.cli.compare import paper_numbers
from eaglenet.cli.main import app, main
from eaglenet.core import registry
from eaglenet.core.errors import EagleNetError
from eaglenet.methods import METHODS
from eaglenet.research.experiments.campaign import CannotRun, Trial
from eaglenet.research.recipes import TABLES, Recipe
from processes import is_running, start_printing, wait
from sampling import one_in
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
EAGLENET = ["method_config.dim=8", "method_config.num_candidates=2"]
PLAIN = [line for line in SMALL if "coarse" not in line]


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
        "train", "eaglenet", "--data", "features", "--output", tmp_path / "run", "--device", "cpu",
        "--json",
        *settings([f"data.root={features}"], SMALL, EAGLENET),
    ]  # fmt: skip
    first = json.loads(invoke(*command))
    assert json.loads(invoke(*command)) == first
    evaluate = ["evaluate", tmp_path / "run", "--device", "cpu", "--split", "val"]
    found = json.loads(invoke(*evaluate, "--json"))
    assert found["t2v"] == first["metrics"]["t2v"]
    assert found["split"] == "val"
    other = write_features(tmp_path / "other", videos=9, seed=4)
    found = json.loads(
        invoke("evaluate", tmp_path / "run", "--features", other, "--device", "cpu", "--json")
    )
    assert found["videos_found"] == 9
    text = invoke(*evaluate)
    assert "R@1" in text
    assert "features of" in text
    command.remove("--json")
    printed = invoke(*command)
    assert "nothing was trained" in printed
    assert "t2v on val [" in printed
    assert "--features TEST_FOLDER" in printed


def test_evaluate_never_takes_validation_for_test(features: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    invoke(
        "train", "xpool", "--data", "features", "--output", run, "--device", "cpu", "--json",
        *settings([f"data.root={features}"], SMALL),
    )  # fmt: skip
    evaluate = ["evaluate", run, "--device", "cpu"]
    with pytest.raises(EagleNetError, match=r"no test split; .*--features FOLDER"):
        invoke(*evaluate)
    with pytest.raises(EagleNetError, match="names the test split, but val would be scored"):
        invoke(*evaluate, "--split", "val", "--output", run / "evaluation-test.json")
    invoke(
        "train", "xpool", "--data", "features", "--output", tmp_path / "other", "--device", "cpu",
        *settings([f"data.root={features}", f"data.options.test_root={features}"], SMALL),
    )  # fmt: skip
    with pytest.raises(EagleNetError, match=r"10 of the 40 videos .* chose the epoch"):
        invoke("evaluate", tmp_path / "other", "--device", "cpu")
    unseen = write_features(tmp_path / "unseen", videos=6, seed=4, first=100)
    invoke(
        "train", "xpool", "--data", "features", "--output", tmp_path / "third", "--device", "cpu",
        *settings([f"data.root={features}", f"data.options.test_root={unseen}"], SMALL),
    )  # fmt: skip
    record = json.loads(invoke("evaluate", tmp_path / "third", "--device", "cpu", "--json"))
    assert (record["split"], record["videos_found"]) == ("test", 6)
    # The report of the run shows what was evaluated.
    assert json.loads((tmp_path / "third" / "evaluation-test.json").read_text()) == record


def test_expert_rows_ask_for_the_test_videos(tmp_path: Path) -> None:
    with pytest.raises(EagleNetError, match=r"--set data\.options\.test_root=FOLDER"):
        invoke("train", "table1/ce", "--root", tmp_path, "--output", tmp_path / "run")


def test_a_finished_run_trains_on_with_more_epochs(features: Path, tmp_path: Path) -> None:
    command = [
        "train", "clip4clip", "--data", "features", "--output", tmp_path / "run", "--device", "cpu",
        "--json", *settings([f"data.root={features}"], PLAIN),
    ]  # fmt: skip
    first = json.loads(invoke(*command))
    invoke("evaluate", tmp_path / "run", "--split", "val", "--device", "cpu",
           "--output", tmp_path / "run" / "evaluation-val.json")  # fmt: skip
    more = json.loads(invoke(*command, "--set", "training.epochs=3"))
    assert [record["epoch"] for record in more["history"]] == [1, 2, 3]
    assert more["history"][0] == first["history"][0]
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["training"]["epochs"] == 3
    # Results of the shorter run are kept apart, so that nothing old passes for new.
    archive = tmp_path / "run" / "epochs-1"
    assert {path.name for path in archive.iterdir()} == {"result.json", "evaluation-val.json"}
    with pytest.raises(EagleNetError, match=r"training\.epochs: 3 -> 1"):
        invoke(*command)


PLUGIN = """
from eaglenet.methods import METHODS
from dataclasses import replace
METHODS.add("mine", replace(METHODS["clip4clip"], paper="mine"))
"""


def test_a_run_remembers_the_modules_it_needs(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_of_a_test.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Child processes of later tests would import it again.
    monkeypatch.setattr(registry, "_imported_modules", [])

    def forget() -> None:
        """As in a new process: neither the module nor its method is known."""
        sys.modules.pop("plugin_of_a_test", None)
        METHODS._entries.pop("mine", None)

    evaluate = ["evaluate", "run", "--split", "val", "--device", "cpu"]
    try:
        shown = invoke(
            "train", "mine", "--data", "features", "--output", "run", "--device", "cpu",
            "--import", "plugin_of_a_test", *settings([f"data.root={features}"], PLAIN),
        )  # fmt: skip
        advice = "eaglenet evaluate run --features TEST_FOLDER --import plugin_of_a_test"
        assert advice in shown
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
        assert manifest["imports"] == ["plugin_of_a_test"]
        forget()
        message = "run was trained with --import plugin_of_a_test; add it to the command"
        with pytest.raises(EagleNetError, match=message) as refused:
            invoke(*evaluate)
        assert refused.value.exit_code == 2
        invoke(*evaluate, "--import", "plugin_of_a_test")
    finally:
        forget()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("method_config.num_frames=2", "set data.frames.num_frames instead"),
        ("method=xpool", "eaglenet train METHOD"),
        ("training.rate_decay=0.5", "no effect: it needs training.schedule=epochs"),
        ("training.coarse_batch_size=8", "no effect: training.coarse_epochs is 0"),
        ("data.max_words=8", "no effect: stored features"),
        ("encoder.source=small", "no effect: stored features"),
    ],
)
def test_settings_without_effect_are_refused(setting: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(EagleNetError, match=message):
        invoke("train", "clip4clip", "--data", "features", "--output", tmp_path / "run",
               "--set", setting)  # fmt: skip


def test_the_frames_of_a_method_follow_the_data() -> None:
    shown = json.loads(invoke("recipes", "xpool", "--json", "--set", "data.frames.num_frames=2"))
    assert shown["method_config"]["num_frames"] == shown["data"]["frames"]["num_frames"] == 2


def test_noise_seeds_give_mean_and_spread(features: Path, tmp_path: Path) -> None:
    invoke(
        "train", "tmass", "--data", "features", "--output", tmp_path / "run", "--device", "cpu",
        "--json",
        *settings([f"data.root={features}"], SMALL),
    )  # fmt: skip
    found = json.loads(
        invoke(
            "evaluate",
            tmp_path / "run",
            "--split",
            "val",
            "--noise-seeds",
            3,
            "--device",
            "cpu",
            "--json",
        )
    )
    assert found["noise"]["seeds"] == [0, 1, 2]
    assert {"mean", "std"} <= set(found["noise"])


def test_recipes_list_the_axes_and_show_one() -> None:
    axes = json.loads(invoke("recipes", "--json"))
    assert axes["methods"]["xpool"].startswith("X-Pool")
    assert "(approximate)" in axes["methods"]["rap"]
    assert axes["data"]["msrvtt"]["towers"]["clip-b16"] == ["paper", "released", "original"]
    assert axes["variants"]["eaglenet"]["edges"] == ["no-frl", "no-f2f", "full"]
    listed = invoke("recipes").splitlines()
    (folder,) = [line for line in listed if line.startswith("  folder ")]
    assert folder.endswith("clip-b32, any pretrained, small, small-frozen")
    assert not any("any pretrained, pe-l14" in line for line in listed)
    assert len(listed) < 60
    assert max(map(len, listed)) <= 130
    shown = invoke("recipes", "eaglenet", "--data", "msrvtt", "--protocol", "released")
    assert shown.startswith(
        "eaglenet train eaglenet --data msrvtt --tower clip-b16 --protocol released"
    )
    assert "  training.lr_encoder: 1e-06 -> 1e-07" in shown.splitlines()
    assert "  method_config.edge_weights: 'raw' -> 'activated'" in shown.splitlines()
    plain = json.loads(invoke("recipes", "eaglenet", "--set", "training.epochs=9", "--json"))
    assert plain["training"]["epochs"] == 9
    rows = json.loads(invoke("recipes", "table9", "--json"))
    assert rows["table9/msrvtt/no-f2f"].endswith("--variant edges=no-f2f")
    assert "approximate" in invoke("recipes", "table1/rap-b32")
    assert "(approximate, from abstracts: hit, rap, shenet, supportset, tfvl, tvmm)" in listed[2]
    table = invoke("recipes", "table1").splitlines()
    marked = {line.split()[0] for line in table if " (approximate) " in line}
    assert marked == {
        f"table1/{name}"
        for name in ("hit", "supportset", "tvmm", "rap-b32", "rap-b16", "tfvl-b32", "tfvl-b16",
                     "shenet-b32")
    }  # fmt: skip


def test_a_row_of_the_paper_takes_other_axes() -> None:
    shown = invoke("recipes", "table1/xpool-b16", "--protocol", "released")
    assert shown.startswith(
        "eaglenet train xpool --data msrvtt --tower clip-b16 --protocol released"
    )


def test_a_dry_run_counts_the_data_and_trains_nothing(features: Path, tmp_path: Path) -> None:
    text = invoke(
        "train", "xpool", "--data", "features", "--output", tmp_path / "run", "--dry-run", "--json",
        *settings([f"data.root={features}"], SMALL),
    )  # fmt: skip
    found = json.loads(text)
    assert found["data"]["train"]["videos_found"] == 30
    assert found["estimate"]["num_steps"] == 10
    assert found["estimate"]["seconds"] > 0
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_the_default_data_is_possible(tmp_path: Path) -> None:
    """The demo world is rendered, so no file of it is decoded."""
    output = tmp_path / "run"
    command = ["train", "xpool", "--output", str(output), "--dry-run", "--device", "cpu"]
    small = settings(['data.options={"train": 32, "val": 16}', "training.batch_size=8"])
    result = CliRunner().invoke(app, [*command, *small], catch_exceptions=False)
    assert "train: 128 texts of 32 videos" in result.stdout
    assert f"checking xpool on demo (xpool/demo); the run would be written to {output}" in (
        result.stderr
    )
    assert not output.exists()


def test_training_begins_with_what_is_trained_on_what(features: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    command = [
        "train", "xpool", "--data", "features", "--root", str(features), "--output", str(output),
        "--device", "cpu",
    ]  # fmt: skip
    what = f"xpool on features in {features} (xpool/features); writing to {output}"
    for verb, epochs in (("training", 1), ("continuing to train", 2)):
        small = settings(SMALL, [f"training.epochs={epochs}"])
        result = CliRunner().invoke(app, [*command, *small], catch_exceptions=False)
        assert f"{verb} {what}" in result.stderr.splitlines()
    result = CliRunner().invoke(app, [*command, *small], catch_exceptions=False)
    assert "already finished" in result.stdout
    assert what not in result.stderr


def test_a_run_is_evaluated_from_another_folder(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(features.parent)
    invoke(
        "train", "xpool", "--data", "features", "--root", features.name, "--device", "cpu",
        "--output", tmp_path / "run", *settings(SMALL),
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found = json.loads(invoke("evaluate", "run", "--split", "val", "--device", "cpu", "--json"))
    assert found["videos_found"] == 10


@pytest.mark.parametrize("command", [["compare", "xpool", "ts2net"], ["ablate", "coefficient"]])
def test_a_campaign_can_be_checked_without_training(
    command: list[str], features: Path, tmp_path: Path
) -> None:
    extra = EAGLENET if command[0] == "ablate" else []
    printed = invoke(
        *command, "--data", "features", "--root", features, "--output", tmp_path / "out",
        "--dry-run", "--device", "cpu", *settings(SMALL, extra),
    )  # fmt: skip
    assert "estimate: 10 steps" in printed
    assert "nothing was trained" in printed
    if command[0] == "compare":
        assert "ts2net: ts2net works inside an image tower" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "training.batch_size=4000"], "90 captions cannot fill one batch of 4000"),
        (["--set", "training.coarse_batch_size=5000"], "--set training.coarse_batch_size=64"),
        (["--device", "cuda:99"], "GPU 99 was requested"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(
    features: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    command = ["train", "xpool", "--data", "features", "--output", tmp_path / "run", "--dry-run"]
    command += settings([f"data.root={features}"], SMALL)
    with pytest.raises(EagleNetError, match=message):
        invoke(*command, *arguments)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "holiday.mp4").touch()
    with pytest.raises(EagleNetError, match="is not empty and not a run"):
        invoke(*command)


def test_an_experiment_file_can_be_trained(features: Path, tmp_path: Path) -> None:
    saved = invoke(
        "recipes", "xpool", "--data", "features", "--json",
        *settings([f"data.root={features}"], SMALL),
    )  # fmt: skip
    (tmp_path / "mine.json").write_text(saved)
    invoke("train", tmp_path / "mine.json", "--output", tmp_path / "run", "--device", "cpu")
    assert (tmp_path / "run" / "result.json").exists()


def test_compare_gives_one_table_and_says_what_cannot_run(features: Path, tmp_path: Path) -> None:
    found = json.loads(
        invoke(
            "compare", "clip4clip", "xpool", "xpool", "ts2net", "--data", "features",
            "--root", features, "--seeds", 2, "--output", tmp_path, "--device", "cpu", "--json",
            *settings(SMALL),
        )
    )  # fmt: skip
    assert [row["label"] for row in found["rows"]] == ["clip4clip", "xpool", "ts2net"]
    assert "works inside an image tower" in found["rows"][2]["cannot_run"]
    row = found["rows"][1]
    assert row["seeds"] == [0, 1]
    assert row["parameters"]["head"] > 0
    assert row["score_seconds"] > 0
    assert {"R@1", "R@5"} <= set(row["mean"]["t2v"])
    report = (tmp_path / "compare.md").read_text()
    assert "| test s | scoring s |" in report
    assert "; the only epoch that was evaluated, on the validation split." in report
    assert row["budget"] == {"pairs": 2 * 5 * 16, "batch": 16, "frames": 5, "words": 32}
    assert "All rows had the same budget." in report


@pytest.mark.slow
def test_a_comparison_names_earlier_runs_that_its_table_leaves_out(
    features: Path, tmp_path: Path
) -> None:
    command = ["compare", "--data", "features", "--root", features, "--seeds", 1]
    command += ["--output", tmp_path, "--device", "cpu"]
    command += settings(SMALL)
    assert "not in this table" not in invoke(*command, "clip4clip", "xpool")
    for _ in range(2):
        assert "not in this table: clip4clip;" in invoke(*command, "xpool")
    assert "not in this table: clip4clip;" in (tmp_path / "compare.md").read_text()


@pytest.mark.parametrize(
    "command", [["compare", "xpool", "--data"], ["ablate", "coefficient", "--data"]]
)
def test_a_wrong_root_is_told_before_weights_are_looked_for(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*arguments: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("eaglenet.models.folder.load_pretrained", loaded)
    with pytest.raises(EagleNetError, match="--root /nothere: no such folder"):
        invoke(*command, "msrvtt", "--root", "/nothere", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_that_cannot_run_gets_a_row_that_says_why(features: Path, tmp_path: Path) -> None:
    from eaglenet.research.experiments.campaign import (
        Trial,
        campaign_table,
        cannot_run_lines,
        run_campaign,
        write_report,
    )

    ts2net = Recipe("ts2net", "demo").build()
    stored = Recipe("xpool", "features").build().encoder
    trial = Trial("ts2net", dataclasses.replace(ts2net, encoder=stored))
    rows = run_campaign([trial], [0], tmp_path, split="val", device="cpu")
    assert "frozen features" in rows[0].cannot_run
    assert campaign_table(rows)[1][0] == ["ts2net", "cannot run"]
    assert "frozen features" in cannot_run_lines(rows)[0]
    write_report(tmp_path / "new", "compare", "title", rows, split="val")
    assert "frozen features" in (tmp_path / "new" / "compare.md").read_text()


@pytest.mark.slow
def test_ablate_prints_ours_beside_the_papers_numbers(features: Path, tmp_path: Path) -> None:
    text = invoke(
        "ablate", "coefficient", "--data", "features", "--root", features, "--output", tmp_path,
        "--device", "cpu", *settings(SMALL, EAGLENET),
    )  # fmt: skip
    assert "paper" in text
    rows = json.loads((tmp_path / "ablate.json").read_text())["rows"]
    assert [row["label"] for row in rows] == ["0.1", "0.5", "1.0"]
    assert rows[2]["paper"]["MSR-VTT"]["R@1"] == 51.0
    assert "(ours)" in (tmp_path / "ablate.md").read_text()


@pytest.mark.parametrize("data", ["msrvtt", "didemo"])
@pytest.mark.parametrize("table", one_in(3, ["components", "energy", "pooling", "graph", "edges"]))
def test_ablate_takes_released_settings(
    table: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Trial] = []

    def record(trials: list[Trial], *arguments: Any, **options: Any) -> list[CannotRun]:
        trained.extend(trials)
        return [CannotRun(trial.label, "not trained here") for trial in trials]

    monkeypatch.setattr("eaglenet.research.experiments.campaign.run_campaign", record)
    invoke("ablate", table, "--data", data, "--protocol", "released", "--root", tmp_path,
           "--output", tmp_path / "out")  # fmt: skip
    assert [trial.label for trial in trained] == list(TABLES[table])
    for trial in trained:
        assert trial.experiment.name.startswith(f"eaglenet/{data}/clip-b16/released/{table}=")
        assert trial.experiment.training.select == "test"
    dataset = {"msrvtt": "MSR-VTT", "didemo": "DiDeMo"}[data]
    assert dataset in paper_numbers(table, trained[0].label, data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "eaglenett", "--output", "x"], "did you mean 'eaglenet'"),
        (["train", "table1/xpol-b16", "--output", "x"], "did you mean"),
        (["ablate", "colour", "--output", "x"], "unknown table"),
        (["ablate", "energy", "--data", "moon", "--output", "x"], "choose one of demo, folder"),
        (["compare", "nonsense", "--output", "x"], "unknown method"),
        (["compare", "xpool", "--data", "moon", "--output", "x"], "choose one of demo, folder"),
        (
            ["compare", "xpool:protocol=original", "--data", "didemo", "--output", "x"],
            "no method to compare on didemo: .*published no settings",
        ),
        (["evaluate", "x", "--features", "f", "--split", "test"], "leave out --split"),
        (["evaluate", "x", "--root", "f"], "--root needs --data"),
        (["evaluate", "nowhere"], "no such run folder.*--data"),
        (["recipes", "moon"], "unknown method 'moon'"),
        (["train", "x.json", "--data", "demo", "--output", "x"], "change it with --set"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(EagleNetError, match=message):
        invoke(*arguments)


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    output = str(tmp_path / "file" / "run")
    words = ["eaglenet", "train", "clip4clip", "--data", "demo", "--output", output]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a folder" in line


def test_a_terminated_process_saves_its_step_and_says_how_to_go_on(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "run" / "log.jsonl"
    command = ["train", "clip4clip", "--data", "features", "--output", str(tmp_path / "run")]
    command += ["--device", "cpu", *settings([f"data.root={features}"], SMALL)]
    command += settings(["training.epochs=100000"])
    monkeypatch.setattr(sys, "argv", ["eaglenet", *command])
    process, output = start_printing(main)
    while is_running(process) and not (log.exists() and '"event": "step"' in log.read_text()):
        time.sleep(0.05)
    os.kill(process, signal.SIGTERM)
    with output:
        told = output.read()
    assert wait(process) == 143
    assert "run the same command again to continue" in told
    assert "error:" not in told
    last = json.loads(log.read_text().splitlines()[-1])["step"]
    assert (tmp_path / "run" / "checkpoints" / f"step-{last:09d}.pt").exists()


def test_scores_of_a_run_can_be_written_and_post_processed(features: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    invoke(
        "train", "clip4clip", "--data", "features", "--output", run, "--device", "cpu",
        *settings([f"data.root={features}"], SMALL),
    )  # fmt: skip
    file = tmp_path / "sim.npy"
    evaluate = ["evaluate", run, "--split", "val", "--device", "cpu", "--scores"]
    record = json.loads(invoke(*evaluate, file, "--json"))
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
        invoke(*evaluate, tmp_path / "sim.csv")


def test_a_train_command_without_a_terminal_says_where_it_is(
    features: Path, tmp_path: Path
) -> None:
    command = [
        "train",
        "xpool",
        "--data",
        "features",
        "--output",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    ]
    command += settings([f"data.root={features}"], SMALL)
    told = CliRunner().invoke(app, command).stderr.splitlines()
    assert told[0].startswith("training xpool on features in ")
    assert told[1:] == ["xpool/features: step 0 of 10", told[2]]
    assert "epoch 2: t2v R@1" in told[2]


def test_a_table_wider_than_the_terminal_keeps_its_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.cli.options import print_table

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table("title", ["", *["t2v R@1"] * 6], [["components/frl+sigmoid", *["13.2 +- 0.2"] * 6]])
    row = capsys.readouterr().out.splitlines()[-2].strip()
    assert row.split("components/frl+sigmoid")[1].split("   ")[1:] == ["13.2 +- 0.2"] * 6


def test_a_piped_table_has_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    from eaglenet.cli.options import print_table

    print_table("[a] in b", ["split", "left out"], [["train", "7"], ["val", "1,234,567"]])
    assert capsys.readouterr().out.splitlines() == [
        "[a] in b",
        "split   left out",
        "train          7",
        "val    1,234,567",
    ]


def test_a_piped_table_has_rows_that_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    from eaglenet.cli.options import print_table

    print_table("title", ["", "R@1", "R@5"], [["xpool", "40.0", "70.0"], ["ts2net", "cannot run"]])
    assert capsys.readouterr().out.splitlines() == [
        "title",
        "               R@1   R@5",
        "xpool         40.0  70.0",
        "ts2net  cannot run",
    ]


def test_budgets_that_differ_are_named() -> None:
    from eaglenet.research.experiments.campaign import (
        CannotRun,
        TrialRow,
        budget_lines,
        size_lines,
    )

    def row(**changes: Any) -> Any:
        budget = {"pairs": 80, "batch": 8, "frames": 12, "words": 32, **changes}
        none = dict.fromkeys(field.name for field in dataclasses.fields(TrialRow))
        mean = {"v2t": {"queries": float(changes.get("frames", 12))}}
        return TrialRow(**{**none, "budget": budget, "mean": mean})

    assert budget_lines([row(), row()]) == ["All rows had the same budget."]
    told = budget_lines([row(), row(pairs=60, words=50), CannotRun("a", "why")])
    assert told[0].startswith("Budgets differ in pairs and words (")
    assert budget_lines([CannotRun("a", "why")]) == []
    assert size_lines([row(), CannotRun("a", "why")]) == size_lines([]) == []
    assert size_lines([row(), row(frames=1)]) == ["1 video is too few for recalls to mean much"]


def test_a_split_that_the_run_knows_is_said_beside_its_score(
    features: Path, tmp_path: Path
) -> None:
    invoke(
        "train", "xpool", "--data", "features", "--output", tmp_path / "run", "--device", "cpu",
        *settings([f"data.root={features}"], SMALL, ["training.epochs=2", "training.eval_every=1"]),
    )  # fmt: skip
    command = ["evaluate", tmp_path / "run", "--device", "cpu"]
    assert "the run was trained on this split" in invoke(*command, "--split", "train")
    assert "this split chose the epoch" in invoke(*command, "--split", "val")
