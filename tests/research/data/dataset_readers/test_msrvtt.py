"""MSR-VTT's lists, its two tests, and a validation set that is not the test set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import ConfigError, DatasetError, UsageError
from eaglenet.research.data import DATASETS

load = DATASETS["msrvtt"].load


@pytest.fixture
def root(tmp_path: Path, files: Any) -> Path:
    """Annotations of MSR-VTT in a folder of their own, as releases have them."""
    return files.msrvtt(tmp_path / "annotations" / "msrvtt").parent.parent


def test_the_1k_a_test_has_one_given_caption_a_video(root: Path) -> None:
    split = load(root, "test")
    assert split.video_ids == ["video9", "video10", "video11"]
    assert split.texts[0] == "test query of video9"
    assert split.protocol.name == "MSR-VTT 1k-A (3 texts x 3 videos)"


def test_the_full_test_has_every_caption(root: Path) -> None:
    split = load(root, "test", test="full")
    assert len(split) == 5
    assert len(split.texts) == 15
    assert split.protocol.name == "MSR-VTT full test (15 texts x 5 videos)"


@pytest.mark.parametrize(("train", "listed"), [("9k", 9), ("7k", 7)])
def test_validation_is_held_out_of_training_and_apart_from_test(
    root: Path, train: str, listed: int
) -> None:
    training = load(root, "train", train=train, hold_out=2)
    validation = load(root, "val", train=train, hold_out=2)
    test = load(root, "test")
    assert (len(training), len(validation)) == (listed - 2, 2)
    assert not set(training.video_ids) & set(validation.video_ids)
    assert not set(validation.video_ids) & set(test.video_ids)
    assert "held out of training (6 texts x 2 videos)" in validation.protocol.name


def test_nothing_held_out_trains_on_the_whole_list_and_has_no_validation(root: Path) -> None:
    assert len(load(root, "train", hold_out=0)) == 9
    with pytest.raises(UsageError, match="hold_out=0 leaves no validation videos"):
        load(root, "val", hold_out=0)


def test_the_full_lists_bring_their_own_validation(root: Path) -> None:
    assert load(root, "val", train="full", test="full").video_ids == ["video5", "video6"]
    assert len(load(root, "train", train="full", test="full")) == 5


def test_training_on_9k_beside_the_full_test_is_refused_as_a_leak(root: Path) -> None:
    with pytest.raises(UsageError, match="1,990 videos of the full test"):
        load(root, "train", train="9k", test="full")


def test_the_full_test_trains_on_7k_unless_told_otherwise(root: Path) -> None:
    assert len(load(root, "train", test="full", hold_out=2)) == 5


def test_unknown_variants_are_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="9k"):
        load(root, "train", train="8k")  # type: ignore[arg-type]


def test_files_are_found_in_the_root_and_in_given_folders(
    root: Path, tmp_path: Path, files: Any
) -> None:
    files.touch(root / "videos" / "all", "video9.mp4")
    files.touch(tmp_path / "elsewhere", "video10.webm")
    split = load(root, "test", video_folders=[tmp_path / "elsewhere"])
    assert [video.path.name if video.path else None for video in split.videos] == [
        "video9.mp4",
        "video10.webm",
        None,
    ]
    assert [video.video_id for video in split.missing] == ["video11"]


def test_a_video_without_captions_is_left_out_and_counted(
    root: Path, files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    files.write_lines(root / "annotations/msrvtt/MSRVTT_test.full.csv", ["video_id", "video1", "w"])
    split = load(root, "test", test="full")
    assert split.protocol.name == "MSR-VTT full test (3 texts x 1 of 2 videos)"
    assert "left out 1 video" in caplog.text


def test_empty_captions_are_skipped_and_counted(
    root: Path, files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    content = {"sentences": [{"video_id": "video7", "caption": text} for text in ("", "a dog")]}
    files.write_json(root / "annotations/msrvtt/MSRVTT_data.json", content)
    assert load(root, "test", test="full").texts == ["a dog"]
    assert "skipped 1 empty caption of" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "a list under 'sentences'"),
        ({"videos": []}, "a list under 'sentences'"),
        ({"sentences": [{"caption": "x"}]}, "sentence 0 needs the keys"),
        ({"sentences": ["x"]}, "sentence 0 needs the keys"),
        ({"sentences": [{"caption": 3, "video_id": "video7"}]}, "sentence 0: a caption is int"),
    ],
)
def test_broken_annotations_name_the_place(
    root: Path, files: Any, content: Any, message: str
) -> None:
    files.write_json(root / "annotations/msrvtt/MSRVTT_data.json", content)
    with pytest.raises(DatasetError, match=message):
        load(root, "test", test="full")


def test_a_duplicate_id_in_a_list_is_an_error(root: Path, files: Any) -> None:
    files.write_lines(root / "annotations/msrvtt/MSRVTT_test.full.csv", ["video_id", "v", "v"])
    with pytest.raises(DatasetError, match="'v' is listed more than once"):
        load(root, "test", test="full")


def test_the_real_annotations_have_the_published_sizes() -> None:
    folder = os.environ.get("EAGLENET_TEST_ANNOTATIONS")
    if not folder:
        pytest.skip("set EAGLENET_TEST_ANNOTATIONS to a folder with the real annotation files")
    sizes = {name: len(load(Path(folder), name)) for name in ("train", "val", "test")}
    assert sizes == {"train": 8500, "val": 500, "test": 1000}
    assert len(load(Path(folder), "train", train="7k", hold_out=0)) == 7010
    assert len(load(Path(folder), "test", test="full").texts) == 59800


@pytest.mark.parametrize("value", [None, 5, ["x"], {"a": 1}])
def test_an_id_that_is_not_text_is_named(tmp_path: Path, files: Any, value: Any) -> None:
    path = files.msrvtt(tmp_path) / "MSRVTT_data.json"
    content = json.loads(path.read_text())
    content["sentences"][0]["video_id"] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DatasetError, match=r"the video is \w+, expected text"):
        load(tmp_path, "val", hold_out=2)
