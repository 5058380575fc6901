"""`eaglenet data check` and `eaglenet data cache`: nothing missing stays hidden."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core import progress
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.progress import ProgressUpdate, show_progress
from eaglenet.core.settings import read_assignments
from eaglenet.research.data.checks import check_dataset
from eaglenet.research.data.demo import dataset
from eaglenet.video import pool
from eaglenet.video.decoding import write_video


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound video of two seconds, as bytes."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_video(path, torch.zeros(6, 3, 32, 32, dtype=torch.uint8), fps=3)
    return path.read_bytes()


@pytest.fixture
def root(tmp_path: Path, files: Any, clip: bytes) -> Path:
    """A complete VATEX: v3 train, v2 and v4 test, v1 validation."""
    files.vatex(tmp_path)
    captions = {f"v{number}": ["one caption", "another"] for number in range(1, 5)}
    files.write_json(tmp_path / "ref_captions.json", captions)
    files.write_lines(tmp_path / "test_list.txt", ["v2", "v4"])
    for number in range(1, 5):
        (tmp_path / f"v{number}.mp4").write_bytes(clip)
    return tmp_path


@pytest.fixture
def probed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Videos are opened in this process, where their content does not matter."""
    with_workers = pool.map_ahead

    def in_this_process(*arguments: Any, **options: Any) -> Any:
        return with_workers(*arguments, **{**options, "workers": 0})

    monkeypatch.setattr(pool, "map_ahead", in_this_process)


probed_in_this_process = pytest.mark.usefixtures("probed_here")


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", *(str(argument) for argument in arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_complete_dataset_is_fine(root: Path) -> None:
    code, output = run("check", "vatex", "--root", root)
    assert code == 0
    lines = output.splitlines()
    assert lines[0] == f"dataset vatex in {root}"
    assert "2 of 2 test videos usable; VATEX (4 texts x 2 videos)" in lines
    verdict = "no problems in 4 videos; no video is in two splits"
    assert lines[-1] == f"{verdict}; frames were not decoded (--decode checks them, too)"
    _, output = run("check", "vatex", "--root", root, "--decode", "--workers", 0)
    assert output.splitlines()[-1] == verdict


@pytest.mark.parametrize("decode", [(), ("--decode", "--workers", 0)])
def test_missing_and_undecodable_videos_are_counted_with_reasons(
    root: Path, decode: tuple[()] | tuple[str, str, int]
) -> None:
    (root / "v2.mp4").unlink()
    (root / "v3.mp4").write_bytes(b"damaged")
    code, output = run("check", "vatex", "--root", root, "--json", *decode)
    assert code == 3
    report = json.loads(output)
    train, _, test = report["splits"]
    assert train["undecodable"][0]["video_id"] == "v3"
    assert train["undecodable"][0]["reason"]
    assert test["missing"] == ["v2"]
    assert test["summary"] == "1 of 2 test videos usable"
    assert report["exit_code"] == 3


@probed_in_this_process
def test_videos_that_cannot_be_used_are_counted_in_words(root: Path) -> None:
    (root / "v2.mp4").unlink()
    (root / "v3.mp4").write_bytes(b"damaged")
    code, output = run("check", "vatex", "--root", root)
    assert code == 3
    assert "1 x no file found, first v2" in output
    verdict = "2 of 4 videos cannot be used; training and evaluation leave them out"
    assert output.splitlines()[-1] == verdict


@probed_in_this_process
def test_a_shared_video_is_an_error(root: Path, files: Any) -> None:
    files.write_lines(root / "train_list.txt", ["v3", "v2"])
    report = check_dataset("vatex", root)
    assert report.overlaps == {"train and test": ("v2",)}
    assert report.exit_code == 1
    assert "train and test share 1 videos, first v2" in run("check", "vatex", "--root", root)[1]


@probed_in_this_process
def test_one_file_under_two_names_is_found(tmp_path: Path, files: Any, clip: bytes) -> None:
    (tmp_path / "a.mp4").write_bytes(clip)
    rows = ["video,caption,split", "a.mp4,x,train", "./a.mp4,y,test"]
    path = files.write_lines(tmp_path / "captions.csv", rows)
    report = check_dataset("folder", path, splits=["train", "test"])
    assert report.overlaps == {"train and test": ("./a.mp4",)}


@probed_in_this_process
def test_one_broken_split_does_not_hide_the_others(root: Path) -> None:
    (root / "val_list.txt").write_bytes(b"v1\n\xff")
    report = check_dataset("vatex", root)
    assert [split.name for split in report.splits] == ["train", "test"]
    assert "byte 0xff" in report.broken["val"]
    assert report.exit_code == 1


def test_annotations_that_are_all_broken_are_an_error_with_code_1(root: Path) -> None:
    (root / "ref_captions.json").write_text("{")
    with pytest.raises(DatasetError, match="broken JSON") as caught:
        run("check", "vatex", "--root", root)
    assert caught.value.exit_code == 1
    with pytest.raises(DatasetError, match="does not exist"):
        check_dataset("vatex", root / "nowhere" / "else")


@probed_in_this_process
def test_ids_that_fit_several_files_are_told(root: Path, clip: bytes) -> None:
    (root / "small").mkdir()
    (root / "small" / "v2.webm").write_bytes(clip)
    report = check_dataset("vatex", root, splits=["test"])
    assert report.splits[0].ambiguous == ("v2",)
    assert "1 ids fit several files, first v2" in run("check", "vatex", "--root", root)[1]


@probed_in_this_process
def test_a_video_without_captions_makes_the_check_incomplete(tmp_path: Path, files: Any) -> None:
    report = check_dataset("didemo", files.didemo(tmp_path), splits=["train"])
    assert report.splits[0].left_out[0].reason == "no caption in the annotations"
    assert report.exit_code == 3


@probed_in_this_process
def test_empty_captions_are_told_once_and_not_per_split(
    tmp_path: Path, files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    files.touch(tmp_path, "a.mp4", "b.mp4")
    (tmp_path / "captions.csv").write_text("video,caption\na.mp4,a dog\nb.mp4,\n")
    report = check_dataset("folder", tmp_path)
    assert caplog.messages == [f"folder: skipped 1 empty caption of '{tmp_path}'"]
    assert [problem.video_id for problem in report.splits[0].left_out] == ["b.mp4"]
    check_dataset("folder", tmp_path)
    assert len(caplog.messages) == 2  # Once per check.


def test_wrong_options_are_refused(root: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown setting 'vatex.trian'"):
        run("check", "vatex", "--root", root, "--set", "trian=7k")
    with pytest.raises(UsageError, match="write it as name=value"):
        run("check", "vatex", "--root", root, "--set", "train")
    assert read_assignments(["train=7k", "hold_out=3", "fractions=[1, 0, 0]"], "train=7k") == {
        "train": "7k",
        "hold_out": 3,
        "fractions": [1, 0, 0],
    }


def test_the_cache_command_tells_the_size_builds_and_reports_skips(
    root: Path, tmp_path: Path
) -> None:
    output = tmp_path / "cache"
    common = ("vatex", "--root", root, "--output", output, "--frames", 3, "--size", 32)
    code, text = run("cache", *common, "--split", "test", "--estimate", "--json")
    assert (code, json.loads(text)[0]["estimated_bytes"]) == (0, 2 * 3 * 3 * 32 * 32)
    assert not output.exists()
    code, text = run("cache", *common, "--split", "test", "--workers", 0)
    assert code == 0
    assert "2 of 2 cached" in text
    (root / "v3.mp4").write_bytes(b"damaged")
    code, text = run("cache", *common, "--workers", 0, "--json")
    assert code == 3
    assert list(json.loads(text)[0]["skipped"]) == ["v3"]
    with pytest.raises(UsageError, match="choose one of raw, jpeg"):
        run("cache", *common, "--encoding", "png")


def test_file_names_that_are_not_utf8_are_told_without_a_crash(tmp_path: Path) -> None:
    name = b"caf\xe9.mp4"
    (tmp_path / os.fsdecode(name)).write_bytes(b"damaged")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("a cup")
    (tmp_path / "b.mp4").write_bytes(b"damaged")
    (tmp_path / "b.txt").write_text("a table")
    code, output = run("check", "folder", "--root", tmp_path, "--split", "train")
    assert code == 3
    assert "caf?.mp4" in output or "first b.mp4" in output
    code, output = run("check", "folder", "--root", tmp_path, "--split", "train", "--json")
    assert code == 3
    assert len(json.loads(output)["splits"][0]["undecodable"]) == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("hold_out=abc", "hold_out=abc: expected a whole number"),
        ("hold_out=1.5", "hold_out: expected a whole number, got 1.5"),
        ('train=["9k"]', "expected '9k' or '7k' or 'full' or none, got"),
        ("test=1kA", "expected '1k-A' or 'full'"),
    ],
)
def test_an_option_of_another_type_is_named(
    tmp_path: Path, files: Any, setting: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run("check", "msrvtt", "--root", files.msrvtt(tmp_path), "--set", setting)


@pytest.mark.parametrize("fractions", ["5", '["a","b","c"]', "0.8,0.1,x"])
def test_fractions_that_are_no_numbers_are_named(root: Path, fractions: str) -> None:
    with pytest.raises(UsageError, match="expected a"):
        run("check", "folder", "--root", root, "--set", f"fractions={fractions}")


def test_frames_that_cannot_be_are_refused_before_a_cache_is_made(
    root: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="num_frames is 0; expected a whole number"):
        run("cache", "vatex", "--root", root, "--output", tmp_path / "cache", "--frames", 0)
    assert not (tmp_path / "cache").exists()


def test_help_names_the_datasets_that_a_command_takes() -> None:
    code, text = run("cache", "--help")
    assert (code, "demo" in text, "features" in text) == (0, True, False)
    code, text = run("check", "--help")
    assert (code, "demo" in text, "features" in text) == (0, True, True)


def test_without_a_terminal_a_long_check_tells_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglenet.core.progress.LINE_SECONDS", 0.0)
    with show_progress(quiet=False) as announce:
        announce("")(ProgressUpdate("opening videos", 3, 2000))
    assert capsys.readouterr().err == "opening videos 3 of 2,000\n"


def test_rendering_of_the_demo_world_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes for all 5,400 videos."""
    activities: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        activities.extend(progress._activities)
        raise DatasetError("stopped")

    monkeypatch.setattr(dataset, "render_world", refuse)
    with pytest.raises(DatasetError, match="stopped"):
        check_dataset("demo", tmp_path, splits=["val"])
    assert activities == ["rendering the val split of the demo world"]


@pytest.mark.parametrize("decode", [True, False])
def test_every_window_of_a_file_is_checked(tmp_path: Path, clip: bytes, decode: bool) -> None:
    (tmp_path / "a.mp4").write_bytes(clip)
    (tmp_path / "b.mp4").write_bytes(clip)
    rows = ["video,caption,start,end", "a.mp4,late,50,60", "a.mp4,early,0,1"]
    rows += ["a.mp4,at the end,2,3", "a.mp4,longer,1,2.5", "b.mp4,all,,"]
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    report = check_dataset("folder", tmp_path, splits=["all"], decode=decode, workers=0)
    problems = {each.video_id: each.reason for each in report.splits[0].undecodable}
    assert list(problems) == ["a.mp4#50-60", "a.mp4#2-3"]
    reason = "the window 50-60 s lies outside the video (0.00-2.00 s)"
    assert problems["a.mp4#50-60"].endswith(reason)
    assert report.splits[0].num_usable == 3
    assert report.exit_code == 3
