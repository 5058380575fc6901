"""A dry run names all that is missing, not the first thing only."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from eaglenet.cli.compare import print_checks
from eaglenet.cli.main import app
from eaglenet.cli.train import summary
from eaglenet.core.errors import DatasetError, EagleNetError, ModelNotFoundError
from eaglenet.core.types import Clips, FrameSpec
from eaglenet.models.folder import load
from eaglenet.research.experiments import estimate
from eaglenet.research.experiments.build import (
    ExperimentCheck,
    SeveralProblemsError,
    check_experiment,
)
from eaglenet.research.experiments.estimate import Estimate, Preparation, encoding_seconds
from eaglenet.research.recipes.recipe import Recipe
from eaglenet.research.training.distributed import World


@pytest.fixture(autouse=True)
def nothing_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without network and without downloads."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def dry_run(data: str, *arguments: str) -> EagleNetError:
    command = ["train", "eaglenet", "--data", data, "--output", "run", "--dry-run", *arguments]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, EagleNetError), result.output
    return result.exception


def test_missing_data_and_a_missing_model_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    fault = dry_run("msrvtt", "--tower", "clip-b32", "--root", str(tmp_path / "empty"))
    assert isinstance(fault, SeveralProblemsError)
    title, captions, model = str(fault).splitlines()
    assert title == "cannot start: 2 problems"
    assert "MSRVTT_data.json not found; looked in" in captions
    assert "clip-vit-base-patch32" in model
    assert "--set encoder.source=FOLDER" in model
    assert "eaglenet models --download openai/clip-vit-base-patch32" in model
    assert "--model small" not in model  # `train` has no such option
    assert "`--tower small` need no download (--data folder" in model


def test_a_missing_folder_of_a_model_is_not_to_be_downloaded(tmp_path: Path) -> None:
    fault = dry_run(
        "msrvtt", "--tower", "clip-b32", "--set", f"encoder.source={tmp_path / 'my models'}"
    )
    assert f"no model '{tmp_path / 'my models'}'" in str(fault)
    assert "--set encoder.source=FOLDER" in str(fault)
    assert "--download" not in str(fault)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [([], "add --root FOLDER"), (["--root", "nosuch"], "/nosuch: no such folder")],
)
def test_a_root_that_is_not_there_does_not_hide_the_model(arguments: list[str], told: str) -> None:
    _, data, model = str(dry_run("folder", *arguments)).splitlines()
    assert told in data
    assert "encoder.source" in model


def test_one_fault_alone_is_one_line(tmp_path: Path) -> None:
    fault = dry_run("demo", "--set", "data.dataset=folder", "--set", "data.options={}")
    assert isinstance(fault, DatasetError)
    assert "\n" not in str(fault)
    model = dry_run("demo", "--set", "encoder.kind=pretrained", "--set", "encoder.source=nosuch")
    assert isinstance(model, ModelNotFoundError)
    assert str(model).endswith("name a folder that contains it: --set encoder.source=FOLDER")


def test_frozen_towers_are_suggested_only_for_others() -> None:
    hints = []
    for tower in ("small", "small-frozen"):
        experiment = Recipe("xpool", "folder", tower).build()
        check = ExperimentCheck(experiment, {"trained": 7}, {}, Estimate(60, 3600.0, None))
        hints.append(any("faster: --tower" in line for line in summary(experiment, check, "cpu")))
    assert hints == [True, False]


def test_the_demo_world_needs_no_preparation() -> None:
    """Runs render it in memory; its options are not those of the loader of its files."""
    settings = ["data.options.train=16", "data.options.val=8", "training.batch_size=8"]
    experiment = Recipe("clip4clip", "demo").build().override(settings)
    assert check_experiment(experiment, World(), Path("nosuch")).preparation == Preparation()


def test_the_encoding_of_different_frames_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Towers encode equal frames of a video once."""
    model = load("demo")
    videos: list[Clips] = []

    def encode(clips: Clips) -> Tensor:
        videos.append(clips)
        return torch.zeros(1)

    monkeypatch.setattr(model, "encode_video", encode)
    monkeypatch.setattr(estimate, "load", lambda *_, **__: model)
    encoding_seconds.__wrapped__("demo", FrameSpec(num_frames=5, size=8), torch.device("cpu"))
    (frames,) = videos[-1].frames
    assert len(frames.flatten(1).unique(dim=0)) == 5


def test_rows_share_only_equal_preparations(capsys: pytest.CaptureFixture[str]) -> None:
    experiment = Recipe("xpool", "folder", "small").build()
    costs = [{"frames, 12": 3600.0}, {"frames, 12": 3600.0}, {"frames, 8": 1800.0}]
    checks: dict[str, ExperimentCheck | str] = {
        str(number): ExperimentCheck(
            experiment, {"trained": 7}, {}, Estimate(60, 3600.0, None), Preparation(20, parts)
        )
        for number, parts in enumerate(costs)
    }
    print_checks(checks, [], seeds=2, as_json=False)
    *rows, total = capsys.readouterr().out.splitlines()
    assert "estimate: decoding 20 videos once in about 30 min, then 60 steps" in rows[2]
    assert total == (
        "all rows with 2 seeds: preparing videos once in about 1.50 h, then training in about "
        "6.00 h, without evaluation; nothing was trained (--dry-run)"
    )
    print_checks(checks, [], seeds=2, as_json=True)
    assert '"seconds": 1800.0' in capsys.readouterr().out
