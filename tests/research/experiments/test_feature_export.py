"""Towers make features once; heads train on the folder, which says how it was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import eaglenet
from eaglenet.cli.main import app
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.encoders.hardware import has_fast_bf16
from eaglenet.research.data.demo.dataset import demo_split, render_clips
from eaglenet.research.data.features import load_feature_folder
from eaglenet.research.data.sources import clip_source
from eaglenet.research.experiments.evaluation import evaluate_run, export_features
from eaglenet.research.experiments.stored_data import tower_precision, write_features


def run(*arguments: Path | str) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of the demo model, written by the command."""
    folder = tmp_path_factory.mktemp("features") / "demo"
    told = run("data", "features", "demo", "demo", "--split", "val", "--set", "val=30",
               "--output", folder, "--json")  # fmt: skip
    assert json.loads(told)["videos_found"] == 30
    return folder


def test_the_folder_holds_what_the_towers_give(folder: Path) -> None:
    model, world = eaglenet.load("demo"), demo_split("val", val=30)
    split = load_feature_folder(folder)
    with torch.no_grad():
        text = model.encode_text(model.tokenizer(world.texts, max_length=32))
        video = model.encode_video(render_clips(world, model.frame_spec))
    assert split.captions == tuple(world.texts)
    assert split.video_ids == tuple(world.video_ids)
    # Kept in float16.
    assert torch.allclose(split.texts.sentence, text.sentence, rtol=1e-3, atol=1e-3)
    assert torch.allclose(split.videos.frames, video.frames, rtol=1e-3, atol=1e-3)
    assert split.metadata["model"] == "demo"
    assert split.protocol.name == "demo world (120 texts x 30 videos)"


def test_frozen_towers_compute_in_bf16_where_it_is_fast(tmp_path: Path) -> None:
    model, world = eaglenet.load("demo"), demo_split("val", val=3)
    clips = render_clips(world, model.frame_spec)
    source = clip_source(world, model.tokenizer(world.texts), lambda rows: clips[rows])
    frames = {}
    for precision in ("fp32", "bf16"):
        output = tmp_path / precision
        about = {"model": "demo", "dataset": "demo", "split": "val"}
        write_features(model, source, output, **about, precision=precision)
        frames[precision] = load_feature_folder(output).videos.frames.float()
    assert not torch.equal(frames["fp32"], frames["bf16"])
    assert torch.cosine_similarity(frames["fp32"], frames["bf16"], dim=-1).min() > 0.999
    is_fast = has_fast_bf16("cpu")
    assert tower_precision(torch.device("cpu")) == ("bf16" if is_fast else "fp32")


def test_a_head_trains_on_it_and_says_where_other_features_came_from(
    folder: Path, tmp_path: Path
) -> None:
    run("train", "clip4clip", "--data", "features", "--output", tmp_path / "run",
        "--set", f"data.root={folder}",
        "--set", "encoder.config.text_dim=64", "--set", "encoder.config.frame_dim=64",
        "--set", "data.val_videos=10", "--set", "training.epochs=1",
        "--set", "training.batch_size=32", "--json")  # fmt: skip
    other = tmp_path / "other"
    export_features("demo", "demo", "", other, split="test", options={"test": 6})
    notes = evaluate_run(tmp_path / "run", features=other).notes
    assert not any("scores will differ" in note for note in notes)
    index = json.loads((other / "index.json").read_text())
    (other / "index.json").write_text(json.dumps({**index, "model": "another"}))
    notes = evaluate_run(tmp_path / "run", features=other).notes
    assert any("model another, those of the training demo" in note for note in notes)


def test_features_are_never_overwritten(folder: Path) -> None:
    with pytest.raises(UsageError, match="not overwritten"):
        export_features("demo", "demo", "", folder)


def test_a_dataset_without_a_folder_is_told_the_option(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="--root FOLDER"):
        export_features("demo", "msrvtt", "", tmp_path / "features")
