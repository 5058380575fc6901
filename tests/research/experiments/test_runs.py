"""Runs: learn, select, resume bit-identically after a kill, refuse another experiment."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import (
    CheckpointError,
    ConfigError,
    DatasetError,
    NonFiniteError,
    StoppedError,
    UsageError,
)
from eaglenet.core.progress import ProgressUpdate
from eaglenet.methods.base import METHODS
from eaglenet.models.folder import load
from eaglenet.research.data.features import load_feature_folder
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.evaluation.run_records import read_log
from eaglenet.research.experiments.evaluation import evaluate_run, feature_notes
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.runs import Run, find_result, train, with_absolute_paths
from eaglenet.research.training import trainer as stopping
from eaglenet.research.training import trainer as trainer_module
from eaglenet.research.training.checkpoint import list_checkpoints
from processes import kill, start, wait
from sampling import one_in
from tiny import FRAMES, logged_losses, tiny_experiment, write_features


@pytest.fixture(scope="module")
def finished(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run never interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return train(tiny_experiment(features), folder, device="cpu")


def test_a_run_folder_holds_everything(finished: Run) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert names >= {
        "experiment.json",
        "manifest.json",
        "log.jsonl",
        "checkpoints",
        "result.json",
        "model",
    }
    manifest = json.loads((finished.folder / "manifest.json").read_text())
    assert manifest["data"]["train"]["videos_found"] == 30
    assert manifest["data"]["val"]["videos_found"] == 10
    assert "validation" in manifest["selection"]
    assert manifest["versions"]["torch"] == importlib.metadata.version("torch")
    assert len(list((finished.folder / "checkpoints").iterdir())) == 2


def test_training_lowers_the_loss_and_beats_chance(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "RECENT_SECONDS", 3600.0)
    rates = {"lr_head": 1e-2, "lr_encoder": 1e-2}
    experiment = tiny_experiment(features, epochs=20, checkpoint_every=0, eval_every=20, **rates)
    updates: list[ProgressUpdate] = []
    run = train(experiment, tmp_path, device="cpu", progress=updates.append)
    losses = logged_losses(tmp_path)
    assert losses[-1]["total"] < losses[0]["total"]
    assert "scoring pairs" in {update.title for update in updates}, "an evaluation takes long"
    assert run.result["metrics"]["t2v"]["R@1"] > 30  # 10 videos: chance is 10
    # Epochs that are short and not evaluated write no checkpoint.
    assert len(list_checkpoints(tmp_path / "checkpoints")) == 1


def test_coarse_epochs_come_first_train_the_towers_alone_and_are_not_evaluated(
    features: Path, tmp_path: Path
) -> None:
    experiment = tiny_experiment(features, epochs=1, coarse_epochs=2, checkpoint_every=0)
    run = train(experiment, tmp_path, device="cpu")
    steps = [entry for entry in read_log(tmp_path) if entry.event == "step"]
    coarse = ["coarse" in entry.values for entry in steps]
    each = len(steps) // 3
    assert coarse == [True] * 2 * each + [False] * each
    assert "enriched" in steps[-1].values
    assert [record["epoch"] for record in run.result["history"]] == [3]


def test_the_selected_model_scores_as_it_did_in_training(finished: Run) -> None:
    again = evaluate_run(finished.folder, split="val", device="cpu")
    assert again.metrics.to_dict()["t2v"] == finished.result["metrics"]["t2v"]
    assert "validation" in " ".join(again.notes)
    assert "not finished" not in " ".join(again.notes)
    assert load(str(finished.folder)).name == "eaglenet"


def test_a_score_of_an_unfinished_run_says_so(finished: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    (folder / "result.json").unlink()
    notes = " ".join(evaluate_run(folder, split="val", device="cpu").notes)
    assert "training is not finished" in notes


def test_a_run_is_evaluated_on_any_features_folder_of_its_form(
    finished: Run, tmp_path: Path
) -> None:
    other = write_features(tmp_path / "other", videos=13, seed=5)
    result = evaluate_run(finished.folder, features=other, device="cpu")
    assert (result.num_videos, result.num_texts) == (13, 39)


def test_videos_that_a_run_was_trained_or_selected_on_are_counted(
    finished: Run, features: Path, tmp_path: Path
) -> None:
    whole = load_feature_folder(features)
    train_part, held_out = whole.hold_out(10)
    notes = " ".join(evaluate_run(finished.folder, features=features, device="cpu").notes)
    assert "30 of the 40 videos are among those that the run was trained on" in notes
    assert "10 of the 40 videos are among those that the run was selected on" in notes
    experiment = finished.experiment
    five = train_part.select(range(5))
    assert "5 of the 5 videos" in feature_notes(experiment.data, five)[0]
    assert "selected on" in feature_notes(experiment.data, held_out)[0]
    unseen = load_feature_folder(write_features(tmp_path / "unseen", videos=3, seed=7))
    unseen = dataclasses.replace(unseen, video_ids=("x", "y", "z"))
    assert feature_notes(experiment.data, unseen) == []


def test_a_folder_with_a_run_of_another_method_is_refused_briefly(
    finished: Run, features: Path
) -> None:
    tiny = tiny_experiment(features)
    config = METHODS["xpool"].config_class(num_frames=FRAMES)
    other = dataclasses.replace(tiny, method="xpool", method_config=config, name="other")
    with pytest.raises(ConfigError, match=r"differs in method: 'eaglenet' -> 'xpool' \(there"):
        find_result(other, finished.folder)


def test_a_run_with_a_relative_root_is_resumed(
    finished: Run, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions saved it; the same command now names the absolute folder."""
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    plain = json.loads((folder / "experiment.json").read_text())
    plain["data"]["root"] = features.name
    (folder / "experiment.json").write_text(json.dumps(plain))
    monkeypatch.chdir(features.parent)
    assert find_result(finished.experiment, folder) == finished.result
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"it differs in data\.root"):
        find_result(finished.experiment, folder)


def test_a_run_is_evaluated_and_resumed_from_another_folder(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_features(tmp_path / "test", videos=12, first=1000)
    monkeypatch.chdir(tmp_path)
    experiment = tiny_experiment(features, epochs=1).override(["data.options.test_root=test"])
    run = train(experiment, "run", device="cpu")
    assert find_result(experiment, tmp_path / "run") == run.result
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluate_run(tmp_path / "run", device="cpu").num_videos == 12


def test_folders_of_videos_are_saved_as_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"video_folders": ["a", "/b"], "seed": 1}
    data = DataChoice("folder", "root", options=options, cache="frames")
    experiment = dataclasses.replace(tiny_experiment(tmp_path), data=data)
    plain = with_absolute_paths(experiment).data
    assert plain.root == str(tmp_path / "root")
    assert plain.options == {"video_folders": [str(tmp_path / "a"), "/b"], "seed": 1}
    assert plain.cache == str(tmp_path / "frames")


def test_a_checkpoint_of_a_run_is_not_converted(finished: Run, tmp_path: Path) -> None:
    checkpoint = next((finished.folder / "checkpoints").glob("*.pt"))
    for path in (checkpoint, finished.folder):
        done = CliRunner().invoke(app, ["convert", str(path), str(tmp_path / "model")])
        assert f"belongs to the run {finished.folder}, which needs no" in str(done.exception)


def test_a_finished_run_is_not_trained_again(finished: Run, features: Path) -> None:
    again = train(tiny_experiment(features), finished.folder, device="cpu")
    assert again.result == json.loads((finished.folder / "result.json").read_text())


def test_another_experiment_in_the_same_folder_is_refused(finished: Run, features: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.seed: 0 -> 4"):
        train(tiny_experiment(features, seed=4), finished.folder, device="cpu")


def test_a_folder_with_other_things_in_it_is_refused(features: Path, tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("")
    with pytest.raises(ConfigError, match="not empty and not a run"):
        train(tiny_experiment(features), tmp_path, device="cpu")


def test_one_process_at_a_time_trains_in_a_folder_and_a_killed_one_leaves_it_free(
    finished: Run, features: Path, tmp_path: Path
) -> None:
    experiment = tiny_experiment(features)
    reached = tmp_path / "reached"

    def train_and_wait() -> None:
        def wait_forever(*arguments: Any) -> None:
            reached.touch()
            time.sleep(600)

        trainer_module.write_checkpoint = wait_forever
        train(experiment, tmp_path / "run", device="cpu")

    child = start(train_and_wait)
    while not reached.exists():
        time.sleep(0.01)
    with pytest.raises(UsageError, match=rf"is being trained by .*process {child} on .*--output"):
        train(experiment, tmp_path / "run", device="cpu")
    kill(child)
    wait(child)
    train(experiment, tmp_path / "run", device="cpu")
    assert logged_losses(tmp_path / "run") == logged_losses(finished.folder)


def _kill_a_few_times(experiment: Experiment, folder: Path, moment: Any, *, longest: float) -> int:
    """Start the run and kill it after a random time, up to three times; how often it worked."""
    kills = 0
    while kills < 3:
        child = start(lambda: train(experiment, folder, device="cpu") and None)
        deadline = time.monotonic() + moment.uniform(longest / 16, longest)
        while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        try:
            kill(child)
            kills += wait(child) == -9
        except (ProcessLookupError, ChildProcessError):
            return kills
    return kills


@pytest.mark.parametrize("seed", one_in(2, [0, 1]))
def test_killed_at_random_moments_and_resumed_the_losses_are_bit_identical(
    finished: Run, features: Path, tmp_path: Path, seed: int
) -> None:
    experiment = tiny_experiment(features)
    moment = random.Random(seed)
    for attempt in range(8):
        # A fast machine may end the run before the first kill: then sooner, in a fresh folder.
        folder = tmp_path / f"run{attempt}"
        if _kill_a_few_times(experiment, folder, moment, longest=0.8 / 2**attempt):
            break
    else:
        pytest.fail("the run always ended before it could be killed")
    run = train(experiment, folder, device="cpu")
    assert logged_losses(folder) == logged_losses(finished.folder)
    assert run.result["history"] == finished.result["history"]
    expected = load(str(finished.folder)).state_dict()
    for name, value in load(str(run.folder)).state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0, msg=name)


def _killed_and_resumed(experiment: Experiment, folder: Path, victim: str, call: int) -> Run:
    """A run that died at the n-th call of a function of the trainer, and was started again."""

    def killed_run() -> None:
        original = getattr(trainer_module, victim)
        calls = []

        def killer(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == call:
                kill(os.getpid())
            return original(*arguments, **options)

        setattr(trainer_module, victim, killer)
        train(experiment, folder, device="cpu")

    assert wait(start(killed_run)) == -9
    return train(experiment, folder, device="cpu")


@pytest.mark.parametrize("call", one_in(2, [2, 4]))
def test_killed_in_its_coarse_epochs_or_after_a_run_resumes_bit_identically(
    features: Path, tmp_path: Path, call: int
) -> None:
    experiment = tiny_experiment(features, epochs=1, coarse_epochs=2, coarse_batch_size=30)
    whole = train(experiment, tmp_path / "whole", device="cpu")
    run = _killed_and_resumed(experiment, tmp_path / "run", "write_checkpoint", call)
    steps = logged_losses(run.folder)
    assert steps == logged_losses(whole.folder)
    # 90 captions: three batches of 30 in a coarse epoch, three of 24 in the last one.
    assert ["coarse" in step for step in steps] == [True] * 6 + [False] * 3
    assert run.result["history"] == whole.result["history"]


@pytest.mark.parametrize(
    ("victim", "call"), [("write_checkpoint", 3), ("save_model", 1), ("evaluate_source", 2)]
)
def test_killed_inside_a_critical_call_the_run_resumes_bit_identically(
    finished: Run, features: Path, tmp_path: Path, victim: str, call: int
) -> None:
    experiment = tiny_experiment(features)
    run = _killed_and_resumed(experiment, tmp_path / "run", victim, call)
    assert logged_losses(tmp_path / "run") == logged_losses(finished.folder)
    assert run.result["history"] == finished.result["history"]
    evaluations = [entry for entry in read_log(run.folder) if entry.event == "evaluation"]
    assert [entry.values["epoch"] for entry in evaluations] == [1, 2, 3]
    assert run.result["pairs"] == finished.result["pairs"]


@pytest.mark.parametrize(
    ("victim", "call", "steps"), [("training_losses", 2, 2), ("evaluate_source", 1, 3)]
)
def test_a_run_asked_to_stop_saves_its_step_and_resumes_bit_identically(
    finished: Run,
    features: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: str,
    call: int,
    steps: int,
) -> None:
    experiment = tiny_experiment(features, checkpoint_every=0)
    original = getattr(trainer_module, victim)
    calls = []

    def signalled(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # as torchrun does, right after the first
        return original(*arguments, **options)

    monkeypatch.setattr(trainer_module, victim, signalled)
    with pytest.raises(StoppedError, match=rf"SIGINT after step {steps} of 9.*same command"):
        train(experiment, tmp_path, device="cpu")
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == [
        f"step-{steps:09d}.pt"
    ]
    run = train(experiment, tmp_path, device="cpu")
    assert logged_losses(tmp_path) == logged_losses(finished.folder)
    assert run.result["history"] == finished.result["history"]


def test_a_checkpoint_does_not_wait_for_the_end_of_a_long_epoch(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    write = trainer_module.write_checkpoint

    def record(folder: Path, step: int, state: dict[str, Any]) -> None:
        steps.append(step)
        write(folder, step, state)

    monkeypatch.setattr(trainer_module, "write_checkpoint", record)
    monkeypatch.setattr(trainer_module, "CHECKPOINT_SECONDS", 0.0)
    train(tiny_experiment(features, epochs=1, checkpoint_every=0), tmp_path, device="cpu")
    assert steps[:2] == [1, 2]  # an epoch has three steps
    assert trainer_module.CHECKPOINT_SECONDS < 600


def test_a_second_signal_later_ends_a_run_at_once(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(stopping, "SAME_SIGNAL_SECONDS", 0.01)
    monkeypatch.setattr(trainer_module, "training_losses", impatient)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_experiment(features), tmp_path, device="cpu")


def test_seconds_of_a_resumed_run_are_those_of_all_its_attempts(
    features: Path, tmp_path: Path
) -> None:
    experiment = tiny_experiment(features)

    def slow_and_killed() -> None:
        write, clock = trainer_module.write_checkpoint, time.perf_counter
        calls = []

        def slow(*arguments: Any) -> None:
            calls.append(1)
            time.perf_counter = lambda: clock() + 1000.0
            if len(calls) == 3:
                kill(os.getpid())
            write(*arguments)

        trainer_module.write_checkpoint = slow
        train(experiment, tmp_path, device="cpu")

    assert wait(start(slow_and_killed)) == -9
    run = train(experiment, tmp_path, device="cpu")
    assert run.result["seconds"] >= 1000.0
    # 90 captions: three batches of 24 an epoch.
    assert run.result["pairs"] == 3 * 3 * 24


def test_seconds_of_an_epoch_are_those_of_its_steps_without_evaluations(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table 6 of the paper counts an epoch of training; choosing the epoch is no part of it."""
    plain, clock = trainer_module.evaluate_source, time.perf_counter
    hours = itertools.count(1)

    def slow(*arguments: Any, **options: Any) -> Any:
        passed = 3600.0 * next(hours)
        monkeypatch.setattr(time, "perf_counter", lambda: clock() + passed)
        return plain(*arguments, **options)

    monkeypatch.setattr(trainer_module, "evaluate_source", slow)
    result = train(tiny_experiment(features, epochs=3), tmp_path, device="cpu").result
    assert result["seconds"] > 3 * 3600.0
    assert 0 < result["epoch_seconds"] < (result["seconds"] - 3 * 3600.0) / 3 + 0.01


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_term(
    features: Path, tmp_path: Path
) -> None:
    experiment = tiny_experiment(features, lr_head=1e30, clip_norm=0.0, epochs=20)
    with pytest.raises(NonFiniteError, match="became NaN or infinite at step"):
        train(experiment, tmp_path, device="cpu")


def test_selecting_on_test_is_possible_by_name_and_is_said(features: Path, tmp_path: Path) -> None:
    other = write_features(tmp_path / "test", videos=7, seed=3)
    experiment = tiny_experiment(features, select="test", epochs=1).override(
        [f"data.options.test_root={other}"]
    )
    run = train(experiment, tmp_path / "run", device="cpu")
    only = "the only epoch that was evaluated, on the TEST split"
    assert run.result["selection"] == only
    assert only in evaluate_run(run.folder, features=other, device="cpu").notes
    run = train(experiment.override(["training.epochs=2"]), tmp_path / "run", device="cpu")
    assert "the epoch was chosen on the TEST split" in run.result["selection"]
    assert "TEST" in json.loads((run.folder / "manifest.json").read_text())["selection"]
    assert "7 videos" in run.result["metrics"]["protocol"]


def test_patience_ends_a_run_that_no_longer_improves(features: Path, tmp_path: Path) -> None:
    experiment = tiny_experiment(features, lr_head=0.0, lr_encoder=0.0, epochs=9, patience=2)
    run = train(experiment, tmp_path, device="cpu")
    assert len(run.result["history"]) == 3
    assert run.result["selected_epoch"] == 1


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (["data.root=/nowhere"], DatasetError, "no such folder"),
        (["data.root="], DatasetError, "--data features needs a folder"),
        (["training.coarse_epochs=-1"], ConfigError, "coarse_epochs is -1"),
        (["training.batch_size=4000"], ConfigError, "4000"),
        (["encoder.config.text_dim=10"], ConfigError, "the features are 9 wide"),
        (["data.frames.num_frames=3"], ConfigError, r"--set data\.frames\.num_frames=5"),
        (["data.val_videos=40"], UsageError, "hold out"),
        (["training.select=test"], UsageError, "test_root"),
        (["data.dataset=demo"], ConfigError, "reads stored features"),
        (["data.options.bogus=1"], ConfigError, "no such option .known: test_root"),
        (["training.lr_head=NaN"], ConfigError, "lr_head is nan"),
        (["training.clip_norm=Infinity"], ConfigError, "clip_norm is inf"),
        (["training.seed=99999999999999999999"], ConfigError, "seed is 99999999999999999999"),
        (["training.checkpoint_every=-1"], ConfigError, "checkpoint_every is -1"),
        (["encoder.kind=pretrained", "data.root=/nowhere"], DatasetError, "no such folder"),
    ],
)
def test_bad_input_stops_before_training(
    features: Path, tmp_path: Path, settings: list[str], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        train(tiny_experiment(features).override(settings), tmp_path / "run", device="cpu")
    assert not [path.name for path in tmp_path.glob("run/[!.]*")]


def test_a_run_that_never_began_may_be_started_with_other_settings(
    features: Path, tmp_path: Path
) -> None:
    wrong = tiny_experiment(features, epochs=1).override(["data.root=/nowhere"])
    with pytest.raises(DatasetError, match="no such folder"):
        train(wrong, tmp_path / "run", device="cpu")
    run = train(tiny_experiment(features, epochs=1), tmp_path / "run", device="cpu")
    saved = json.loads((run.folder / "experiment.json").read_text())
    assert saved["data"]["root"] == str(features)


@pytest.mark.parametrize(("device", "message"), [("tpu", "unknown"), ("cuda:99", "GPU 99")])
def test_a_device_that_is_not_there_is_named(
    features: Path, tmp_path: Path, device: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        train(tiny_experiment(features), tmp_path / "run", device=device)


def test_a_split_that_features_do_not_have_is_refused(finished: Run) -> None:
    with pytest.raises(UsageError, match="features has no split 'bogus'"):
        evaluate_run(finished.folder, split="bogus", device="cpu")


def test_a_folder_that_is_no_run_cannot_be_evaluated(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run folder"):
        evaluate_run(tmp_path)


def test_ctrl_c_is_answered_during_an_operation_that_takes_long() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 2)
        stopping.SAME_SIGNAL_SECONDS, stopping.STOP_SECONDS = 0.01, 0.1
        with stopping.StopRequest():
            os.write(2, b"ready\n")
            # One call that no signal handler interrupts, as a backward pass.
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**8)
        os._exit(0)
    os.close(writer)
    with open(reader) as lines:
        assert lines.readline() == "ready\n"
        os.kill(child, signal.SIGINT)
        assert lines.readline().startswith("finishing and saving this step; Ctrl-C again")
        time.sleep(0.05)
        os.kill(child, signal.SIGINT)
        assert lines.readline() == "stopped during a step; the last checkpoint is intact\n"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
