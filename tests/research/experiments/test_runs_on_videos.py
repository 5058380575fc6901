"""Training from video files: frames are cached once, broken videos are counted, never hidden."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import ConfigError, DatasetError, ModelNotFoundError, UsageError
from eaglenet.core.types import FrameSpec
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.methods.xpool import XPoolConfig
from eaglenet.models.folder import load
from eaglenet.research.data.demo.dataset import render_world
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.research.experiments.build import check_experiment
from eaglenet.research.experiments.estimate import Preparation
from eaglenet.research.experiments.evaluation import evaluate_model, evaluate_run
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.experiments.publication import find_model, model_card
from eaglenet.research.experiments.runs import Run, train
from eaglenet.research.experiments.stored_data import are_features_stored
from eaglenet.research.recipes import Recipe
from eaglenet.research.training.distributed import World
from eaglenet.video import decoding
from tiny import tiny_experiment

decoded_here = pytest.mark.usefixtures("decoded_here")
"""For all but a first run of training and of evaluation, which start workers as users do."""

TOWERS = ClipConfig(
    dim=8,
    vision=VisionConfig(image_size=16, patch_size=8, width=16, layers=2, heads=2, mlp_width=20),
    text=TextConfig(
        vocabulary_size=690, context_length=24, width=16, layers=2, heads=2, mlp_width=24
    ),
)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of real files with two splits, one file damaged."""
    folder = tmp_path_factory.mktemp("videos")
    split = render_world(folder, "train", 14, size=32)
    render_world(folder, "val", 6, size=32)
    split.videos[3].path.write_bytes(b"this is no video")
    return folder


def experiment_on(root: Path | str, dataset: str = "folder", **training: Any) -> Experiment:
    base = tiny_experiment(root, epochs=1, batch_size=8, **training)
    return dataclasses.replace(
        base,
        method="xpool",
        method_config=XPoolConfig(num_frames=3),
        encoder=EncoderChoice("clip", "demo", TOWERS),
        data=DataChoice(
            dataset, str(root), frames=FrameSpec(num_frames=3, size=16), max_words=24, workers=1
        ),
    )


@pytest.fixture(scope="module")
def trained(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose videos were decoded by workers, as users have it."""
    return train(experiment_on(videos), tmp_path_factory.mktemp("trained") / "run", device="cpu")


def test_a_run_from_video_files_counts_what_it_left_out(trained: Run) -> None:
    run = trained
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["data"]["train"]["videos_found"] == 13
    assert manifest["data"]["train"]["videos_missing"] == 1
    assert "13 of 14 videos" in manifest["data"]["train"]["protocol"]
    assert manifest["data"]["val"]["videos_found"] == 6
    again = evaluate_run(run.folder, split="val", device="cpu")
    assert again.metrics.to_dict()["t2v"] == run.result["metrics"]["t2v"]
    assert (run.folder / "model" / "tokenizer.json").exists()


@decoded_here
def test_videos_of_an_earlier_run_need_no_preparation(videos: Path, tmp_path: Path) -> None:
    """Training with jitter decodes more frames, in a cache of their own."""
    experiment = experiment_on(videos).override(["data.jitter=2"])
    cache = tmp_path / "run" / "frames"
    assert check_experiment(experiment, World(), cache).preparation.num_videos == 20
    train(experiment, tmp_path / "run", device="cpu")
    assert check_experiment(experiment, World(), cache).preparation == Preparation()


@decoded_here
def test_a_split_of_a_few_videos_is_remarked_on(
    videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = experiment_on(videos).override(["training.epochs=2"])
    run = train(experiment, tmp_path / "run", device="cpu")
    assert "val: 6 videos are too few" in caplog.text
    assert "train: 13 videos are" not in caplog.text
    assert "validation split: 6 videos are too few to choose by" in run.result["selection"]
    result = evaluate_run(run.folder, split="val", device="cpu")
    assert "6 videos are too few for recalls to mean much" in result.notes


def test_a_recipe_is_checked_on_own_data_as_the_documentation_says(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [
        "train",
        "eaglenet",
        "--data",
        "demo",
        "--output",
        str(tmp_path / "run"),
        "--dry-run",
    ]
    for setting in ("data.dataset=folder", f"data.root={videos}", "data.options={}"):
        command += ["--set", setting]
    told = CliRunner().invoke(app, [*command, "--set", "training.batch_size=8"])
    assert "nothing was trained" in told.stdout
    assert "val: 6 videos are too few" in told.stdout
    assert " of 14 videos\n" in told.stdout
    assert len(told.stdout.splitlines()) < 10, "a summary, not all settings"
    assert "{" not in told.stdout
    reason = "14 videos cannot fill one batch of 64.*training.batch_size=8"
    with pytest.raises(ConfigError, match=reason):
        CliRunner().invoke(app, command, catch_exceptions=False)
    # Without --dry-run, before anything is decoded.
    monkeypatch.setattr("eaglenet.research.experiments.runs.load_source", None)
    with pytest.raises(ConfigError, match=reason):
        CliRunner().invoke(
            app, [each for each in command if each != "--dry-run"], catch_exceptions=False
        )
    assert not (tmp_path / "run").exists(), "a refused run leaves nothing"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="a run without a model"):
        load(tmp_path / "run")


@pytest.mark.slow
@decoded_here
def test_runs_of_one_comparison_decode_once_and_other_frames_have_their_own_place(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.research.data import frame_cache
    from eaglenet.research.experiments.campaign import Search, Trial, run_campaign

    decoded = []
    decode_into = frame_cache.decode_into

    def counted(journal: Any, due: Any, *rest: Any) -> Any:
        decoded.append(len(due))
        return decode_into(journal, due, *rest)

    monkeypatch.setattr(frame_cache, "decode_into", counted)
    trials = [Trial("a", experiment_on(videos)), Trial("b", experiment_on(videos, lr_head=1e-4))]
    search = Search("training.lr_encoder", ("0", "0.1"))
    run_campaign(trials, [0], tmp_path, split="val", device="cpu", search=search)
    assert sum(decoded) == 14 + 6
    assert not [*tmp_path.glob("*/*/frames"), *tmp_path.glob("search/*/*/frames")]
    other = experiment_on(videos).override(["data.frames.sampling=per_second"])
    run_campaign([Trial("c", other)], [0], tmp_path, split="val", device="cpu")
    assert sum(decoded) == 2 * (14 + 6)
    assert len(list((tmp_path / "frames").iterdir())) == 2


@decoded_here
def test_training_uses_the_frames_that_data_cache_made(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.research.data import frame_cache

    command = ["data", "cache", "folder", "--root", str(videos), "--output", str(tmp_path / "c")]
    command += ["--split", "train", "--split", "val", "--frames", "3", "--size", "16"]
    command += ["--encoding", "jpeg"]
    assert CliRunner().invoke(app, command).exit_code == 3  # one file is damaged
    monkeypatch.setattr(frame_cache, "decode_into", None)
    experiment = experiment_on(videos).override([f"data.cache={tmp_path / 'c'}"])
    run = train(experiment, tmp_path / "run", device="cpu")
    assert run.result["metrics"]
    assert not (run.folder / "frames").exists()


@decoded_here
def test_any_model_is_evaluated_on_any_dataset(
    trained: Run, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    run = str(trained.folder)
    result = evaluate_model(run, "folder", str(videos), split="val", device="cpu")
    assert (result.num_videos, result.num_texts) == (6, 24)
    assert list((tmp_path / "cache").rglob("frames.bin"))
    assert (result.precision, result.notes) == ("fp32", result.notes)
    assert not any("built for" in note for note in result.notes)
    other = evaluate_model(
        run, "folder", str(videos), split="val", device="cpu",
        frames=["sampling=whole_rate", "square_pixels=true"],
        options=EvaluationOptions(precision="fp16"),
    )  # fmt: skip
    assert [note.split("built for: ")[1] for note in other.notes if "built for" in note] == [
        "sampling: 'uniform' -> 'whole_rate'",
        "square_pixels: False -> True",
    ]
    assert other.precision == "fp16"
    with pytest.raises(UsageError, match="known: num_frames, size, sampling"):
        evaluate_model(run, "folder", str(videos), frames=["colour=red"], device="cpu")


@decoded_here
def test_a_run_is_evaluated_on_other_frames_and_says_so(trained: Run) -> None:
    command = ["evaluate", str(trained.folder), "--split", "val", "--json"]
    command += ["--frames", "short=mask"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    notes = json.loads(result.stdout)["notes"]
    assert any("built for: short: 'repeat' -> 'mask'" in note for note in notes)


@decoded_here
def test_a_run_of_fp16_weights_is_evaluated_as_it_was_trained(videos: Path, tmp_path: Path) -> None:
    experiment = experiment_on(videos, precision="fp16_weights", optimizer="bert_adam")
    run = train(experiment, tmp_path / "run", device="cpu")
    assert evaluate_run(run.folder, split="val", device="cpu").precision == "fp16"
    asked = EvaluationOptions(precision="fp32")
    result = evaluate_run(run.folder, split="val", device="cpu", options=asked)
    assert result.precision == "fp32"


@pytest.mark.slow
def test_any_model_is_evaluated_on_videos_that_lie_elsewhere(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    captions = tmp_path / "captions.csv"
    names = [path.stem for path in sorted(videos.rglob("val*.mp4"))]
    captions.write_text("video,caption\n" + "".join(f"{name},a red circle\n" for name in names))
    command = ["evaluate", "demo", "--data", "folder", "--root", str(captions), "--json"]
    command += ["--videos", str(videos), "--set", "fractions=[0,0,1]"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert json.loads(result.stdout)["videos_found"] == len(names) == 6
    with pytest.raises(UsageError, match="need --data"):
        CliRunner().invoke(app, ["evaluate", "x", "--videos", "y"], catch_exceptions=False)


@decoded_here
def test_gradient_checkpointing_and_frozen_towers_run_on_videos(
    videos: Path, tmp_path: Path
) -> None:
    for name, change in (("a", {"checkpointing": True}), ("b", {"freeze": "towers"})):
        run = train(experiment_on(videos, **change), tmp_path / name, device="cpu")
        assert run.result["metrics"]


@decoded_here
def test_an_empty_split_stops_before_training(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError):
        train(experiment_on(videos, select="test"), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "log.jsonl").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.frames.size=24", "24 x 24"),
        ("data.max_words=500", "500"),
    ],
)
def test_frames_that_do_not_fit_the_towers_stop_before_any_decoding(
    videos: Path, tmp_path: Path, setting: str, message: str
) -> None:
    wrong = experiment_on(videos).override([setting])
    with pytest.raises(ConfigError, match=message):
        train(wrong, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "frames").exists()


@decoded_here
def test_a_batch_that_cannot_be_filled_leaves_the_folder_free_for_another(
    videos: Path, tmp_path: Path
) -> None:
    experiment = experiment_on(videos)
    with pytest.raises(ConfigError, match="one batch of 400"):
        train(experiment.override(["training.batch_size=400"]), tmp_path / "run", device="cpu")
    run = train(experiment, tmp_path / "run", device="cpu")
    assert run.result["selected_epoch"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bogus": 3}, "unknown setting 'demo.bogus'"),
        ({"train": "many"}, "demo.train=many: expected a whole number"),
    ],
)
def test_wrong_options_of_the_demo_world_are_named(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    experiment = experiment_on("", "demo")
    data = dataclasses.replace(experiment.data, options=options)
    with pytest.raises(UsageError, match=message):
        train(dataclasses.replace(experiment, data=data), tmp_path / "run", device="cpu")


def test_the_demo_world_trains_without_files(tmp_path: Path) -> None:
    experiment = experiment_on(tmp_path, dataset="demo")
    experiment = experiment.override(["data.options.train=16", "data.options.val=4"])
    run = train(experiment, tmp_path / "run", device="cpu")
    assert "demo world (16 texts x 4 videos)" in run.result["metrics"]["protocol"]


@pytest.mark.slow
@decoded_here
def test_a_head_on_frozen_towers_trains_on_own_videos_and_becomes_a_model(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are computed once for the same videos and captions, and again when these change."""
    decode, decodings = decoding.decode_many, []

    def record(*arguments: Any, **options: Any) -> Any:
        decodings.append(arguments)
        return decode(*arguments, **options)

    monkeypatch.setattr(decoding, "decode_many", record)
    recipe = Recipe("xpool", "folder", "small-frozen").build()
    settings = [f"data.root={videos}", "training.epochs=1", "training.batch_size=8"]
    experiment = recipe.override([*settings, "data.frames.num_frames=2"])
    cache = tmp_path / "run" / "frames"
    check = check_experiment(experiment, World(), cache)
    assert check.preparation.num_videos == 20
    assert check.preparation.seconds > 0
    assert check.cost.startswith("estimate: decoding and encoding 20 videos once in about ")
    assert ", then 7 steps in about " in check.cost
    run = train(experiment, tmp_path / "run", device="cpu")
    assert run.result["metrics"]["t2v"]["R@10"] == 100.0
    assert check_experiment(experiment, World(), cache).preparation == Preparation()
    assert len(list((tmp_path / "run").glob("frames/folder-*/train/index.json"))) == 1
    train(experiment.override(["training.seed=1"]), tmp_path / "other", device="cpu")
    # Those of the run beside it.
    assert not list((tmp_path / "other").glob("frames/folder-*"))
    shorter = experiment.override(["data.max_words=4"])
    assert not are_features_stored(shorter.data, "train", cache)
    shutil.rmtree(cache)
    decodings.clear()
    first = evaluate_run(run.folder, split="val", device="cpu")
    assert decodings
    assert first.preparation_seconds > 0
    preparation = f"preparing the data {first.preparation_seconds:.1f} s"
    assert f"{preparation}, head over stored features: texts " in str(first)
    decodings.clear()
    assert evaluate_run(run.folder, split="val", device="cpu").metrics == first.metrics
    assert not decodings
    assert find_model(run.folder) == run.folder / "whole"
    assert "The method `xpool` over `small`" in model_card(run.folder, "somebody/head")
    whole = load(str(tmp_path / "run"))  # Not RUN/model, which lacks the towers.
    assert whole.name == "xpool"
    assert whole.tokenizer is not None
    clip = next(videos.rglob("val*.mp4"))
    assert whole.similarity(["a red circle"], [clip]).shape == (1, 1)
    # Its frames are read by the towers.
    command = ["report", str(tmp_path / "run"), "-o", str(tmp_path / "report"), "--examples", "1"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "note: No examples" not in result.stderr
    assert (tmp_path / "report" / "examples.png").is_file()


def test_a_split_that_is_missing_is_refused_before_training(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.research.experiments import campaign

    def run_job(*_: Any) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(campaign, "run_job", run_job)
    trials = [campaign.Trial("a", experiment_on(videos))]
    with pytest.raises(UsageError, match="no split 'tst'"):
        campaign.run_campaign(trials, [0], tmp_path, split="tst", device="cpu")


@pytest.mark.parametrize("dataset", ["demo", "features"])
def test_a_split_that_no_such_data_has_is_refused_before_training(dataset: str) -> None:
    from eaglenet.research.experiments.campaign import check_split

    with pytest.raises(UsageError, match=f"{dataset} has no split 'tst'"):
        check_split(DataChoice(dataset=dataset), "tst")
    check_split(DataChoice(dataset=dataset), "val")
