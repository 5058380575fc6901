"""A folder of frames is a dataset like any other."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from frame_folders import COLOURS, jpeg, write_frame_folder
from PIL import Image
from typer.testing import CliRunner

import eaglenet
from eaglenet.cli.main import app
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.types import Clips, FrameSpec, TextFeatures
from eaglenet.research.data.frame_folder import (
    FrameFolder,
    check_frames,
    load_items,
    sample_frames,
)
from eaglenet.research.data.sources import SOURCES, DataChoice, OpenContext, Source
from eaglenet.research.experiments.build import build_method, check_experiment, default_split
from eaglenet.research.experiments.estimate import Preparation
from eaglenet.research.experiments.evaluation import evaluate_model, evaluate_run
from eaglenet.research.experiments.runs import train
from eaglenet.research.recipes import Recipe
from eaglenet.research.training.distributed import World

SMALL = [
    "data.options.towers=demo",
    "data.frames.num_frames=3",
    "encoder.config.text_dim=64",
    "encoder.config.frame_dim=64",
    "encoder.config.dim=64",
    "training.epochs=1",
    "training.batch_size=8",
]
"""`frames/...` on the towers of the demo model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of frames with four items to test on."""
    return write_frame_folder(tmp_path_factory.mktemp("frames") / "colours", test=4)


def opened(folder: Path, split: str, num_frames: int = 3) -> Source:
    model = eaglenet.load("demo")
    data = DataChoice("frames", str(folder), frames=FrameSpec(num_frames=num_frames, size=32))
    return SOURCES["frames"].open(data, split, OpenContext(model, folder))


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [(2, 5, [0, 1]), (5, 5, [0, 1, 2, 3, 4]), (7, 3, [1, 3, 5]), (46, 2, [11, 34]), (4, 1, [2])],
)
def test_frames_are_all_or_the_middles_of_equal_parts(
    count: int, most: int, expected: list[int]
) -> None:
    assert sample_frames(count, most).tolist() == expected


def test_the_splits_are_those_of_the_index_and_padding_is_masked(folder: Path) -> None:
    source = opened(folder, "val")
    assert source.video_ids == [f"validation-{number}" for number in range(5)]
    assert source.protocol.name == "frames of colours, val (10 texts x 5 videos)"
    clips = source.videos(torch.tensor([1, 3, 0]))
    assert isinstance(clips, Clips)
    # Items 1, 3 and 0 have 2, 4 and 1 pictures.
    assert clips.mask.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    green = torch.tensor(COLOURS["green"])
    assert (clips.frames[0, 1, :, 5, 7].int() - green).abs().max() < 4
    assert int(clips.frames[0, 2].max()) == 0
    batch = source.pairs([9, 2])
    assert batch.video_ids.tolist() == [4, 1]


def test_a_split_that_is_not_there_says_which_are(tmp_path: Path) -> None:
    place = write_frame_folder(tmp_path / "two")
    with pytest.raises(DatasetError, match=r"'test'; it has train \(12\), validation \(5\)"):
        load_items(DataChoice("frames", str(place)), "test")
    with pytest.raises(UsageError, match="no split 'dev'"):
        load_items(DataChoice("frames", str(place)), "dev")
    with pytest.raises(UsageError, match="one of people"):
        load_items(DataChoice("frames", str(place), {"captions": "robots"}), "val")


def test_the_test_split_may_lie_elsewhere_and_is_only_taken_when_asked_for(
    folder: Path, tmp_path: Path
) -> None:
    place = write_frame_folder(tmp_path / "two")
    data = DataChoice("frames", str(place), {"test_root": str(folder)})
    assert default_split(data) == "val"
    assert [item.id for item in load_items(data, "test")[2]] == [f"test-{n}" for n in range(4)]


def test_a_check_finds_missing_and_broken_pictures(folder: Path, tmp_path: Path) -> None:
    assert check_frames(folder, decode=True).exit_code == 0
    place = write_frame_folder(tmp_path / "torn")
    shard = place / "frames-0000.tar"
    with tarfile.open(shard) as tar:
        kept = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(shard, "w") as tar:
        for member, content in kept:
            if member.name == "train-3/002.jpg":
                continue
            broken = content[:40] if member.name == "validation-1/000.jpg" else content
            member.size = len(broken)
            tar.addfile(member, io.BytesIO(broken))
    report = check_frames(place, decode=True)
    assert [split.name for split in report.splits] == ["train", "val"]
    assert report.splits[0].missing == ("train-3",)
    assert [problem.video_id for problem in report.splits[1].undecodable] == ["validation-1"]
    assert report.exit_code == 3
    told = CliRunner().invoke(app, ["data", "check", "frames", "--root", str(place), "--json"])
    assert told.exit_code == 3
    assert json.loads(told.stdout)["splits"][0]["missing"] == ["train-3"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train-2/000.jpg", "a frame of train-2 is missing, and another is there twice"),
        ("train-2/007.jpg", "train-2/007.jpg is not one of the 3 frames"),
        ("train-2/one.jpg", "train-2/one.jpg is not one of the 3 frames"),
    ],
)
def test_another_frame_does_not_hide_one_that_is_missing(
    tmp_path: Path, name: str, message: str
) -> None:
    """Memory that was never written would be its pixels."""
    place = write_frame_folder(tmp_path / "frames", train=4, validation=0)
    items = {item.id: item for item in FrameFolder.open(place).items}
    assert items["train-2"].frames == 3

    def rename(member: tarfile.TarInfo, content: bytes) -> bytes:
        if member.name == "train-2/001.jpg":
            member.name = name
        return content

    rewrite_shard(place, rename)
    folder = FrameFolder.open(place)
    with pytest.raises(DatasetError, match=message):
        folder.read_frames(folder.items, 16, threads=1)
    (report,) = check_frames(place).splits
    assert report.missing == ("train-2",)


def test_a_frame_of_too_many_pixels_is_reported_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_frame_folder(tmp_path / "frames", train=4, validation=0)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 32 * 32)

    def replace(member: tarfile.TarInfo, content: bytes) -> bytes:
        return jpeg((0, 0, 0), 64) if member.name == "train-1/000.jpg" else content

    rewrite_shard(place, replace)
    folder = FrameFolder.open(place)
    with pytest.raises(DatasetError, match=r"train-1/000\.jpg cannot be decoded"):
        folder.read_frames(folder.items, 16, threads=1)
    (report,) = check_frames(place, decode=True).splits
    assert [problem.video_id for problem in report.undecodable] == ["train-1"]


def rewrite_shard(place: Path, change: Callable[[tarfile.TarInfo, bytes], bytes]) -> None:
    """Write the only shard again; ``change`` may rename a member and returns its content."""
    (shard,) = place.glob("frames-*.tar")
    with tarfile.open(shard) as tar:
        members = [(member, tar.extractfile(member)) for member in tar]
        pictures = [(member, file.read()) for member, file in members if file is not None]
    with tarfile.open(shard, "w") as tar:
        for member, content in pictures:
            changed = change(member, content)
            member.size = len(changed)
            tar.addfile(member, io.BytesIO(changed))


def test_any_model_is_evaluated_on_it(folder: Path) -> None:
    result = evaluate_model("demo", "frames", folder, split="val")
    assert result.num_texts == 10
    assert result.num_videos == 5


def test_a_head_trains_on_features_that_are_made_once(folder: Path, tmp_path: Path) -> None:
    experiment = Recipe("drl", "frames").build().override([*SMALL, f"data.root={folder}"])
    cache = tmp_path / "run" / "frames"
    preparation = check_experiment(experiment, World(), cache).preparation
    assert preparation.num_videos == 17
    assert preparation.seconds > 0
    run = train(experiment, tmp_path / "run", device="cpu")
    assert check_experiment(experiment, World(), cache).preparation == Preparation()
    assert run.result["metrics"]["t2v"]["queries"] == 10
    (made,) = (tmp_path / "run" / "frames").glob("*/train")
    before = (made / "index.json").stat().st_mtime_ns
    train(experiment.override(["training.seed=1"]), tmp_path / "other", device="cpu")
    again = experiment.override([f"data.cache={tmp_path / 'run' / 'frames'}", "training.seed=2"])
    train(again, tmp_path / "third", device="cpu")
    assert (made / "index.json").stat().st_mtime_ns == before
    assert not (tmp_path / "third" / "frames").exists()
    # The test split was not looked at until somebody asks.
    assert not (made.parent / "test").exists()
    assert evaluate_run(tmp_path / "run", split="test", device="cpu").num_videos == 4


def test_features_are_made_again_for_other_captions_and_other_lengths(tmp_path: Path) -> None:
    """A cache that several runs share must not give one of them the features of another."""
    place = write_frame_folder(tmp_path / "colours")
    settings = [*SMALL, f"data.root={place}", f"data.cache={tmp_path / 'cache'}"]
    experiment = Recipe("drl", "frames").build().override(settings)
    method = build_method(experiment)

    def words(*changes: str) -> int:
        """The longest text, in tokens."""
        data = experiment.override(changes).data
        source = SOURCES["frames"].open(data, "val", OpenContext(method, tmp_path))
        text = source.texts(torch.arange(source.num_texts))
        assert isinstance(text, TextFeatures)
        assert text.words_mask is not None
        return int(text.words_mask.sum(dim=1).max())

    longest = words()
    assert words("data.max_words=3") == 3
    assert words() == longest
    shutil.rmtree(place)
    write_frame_folder(place, validation=7)
    source = SOURCES["frames"].open(experiment.data, "val", OpenContext(method, tmp_path))
    assert source.num_videos == 7


def test_methods_that_read_words_get_those_of_the_towers(folder: Path, tmp_path: Path) -> None:
    experiment = Recipe("drl", "frames").build().override([*SMALL, f"data.root={folder}"])
    method = build_method(experiment)
    source = SOURCES["frames"].open(experiment.data, "val", OpenContext(method, tmp_path))
    model = eaglenet.load("demo")
    text = source.texts(torch.tensor([3, 0]))
    words = model.encoder.encode_text(
        model.tokenize([source.captions[3], source.captions[0]]), words=True
    )
    assert words.words is not None
    assert words.words_mask is not None
    assert isinstance(text, TextFeatures)
    assert text.words is not None
    assert text.words_mask is not None
    given = text.words[0][text.words_mask[0]]
    assert torch.allclose(given, words.words[0][words.words_mask[0]], atol=2e-3, rtol=2e-3)


@pytest.mark.slow
def test_methods_are_compared_on_it_and_the_report_draws_the_table(
    folder: Path, tmp_path: Path
) -> None:
    """Started again, it finds everything done."""
    words = ["compare", "clip4clip", "drl", "--data", "frames", "--seeds", "1"]
    words += ["--root", str(folder), "--output", str(tmp_path / "out"), "--device", "cpu"]
    words += [part for setting in SMALL for part in ("--set", setting)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    table = (tmp_path / "out" / "compare.md").read_text()
    for column in ("t2v R@1", "t2v MnR", "v2t R@10", "train s", "scoring s", "head params"):
        assert f"| {column} |" in table
    for row in ("clip4clip", "drl"):
        assert f"\n| {row} |" in table
        assert row in (tmp_path / "out" / "report" / "report.md").read_text()
    finished = tmp_path / "out" / "clip4clip" / "seed-0" / "result.json"
    before = finished.stat().st_mtime_ns
    assert CliRunner().invoke(app, words).exit_code == 0
    assert finished.stat().st_mtime_ns == before
