"""Splits refuse what would become a wrong score later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eaglenet.core.errors import DatasetError, UnknownNameError, UsageError
from eaglenet.research.data.records import (
    DATASETS,
    RetrievalProtocol,
    Split,
    VideoProblem,
    VideoRecord,
    clean_captions,
    hold_out_ids,
    make_split,
    stable_order,
    training_ids,
)

PROTOCOL = RetrievalProtocol("toy")


def small_split(**changes: object) -> Split:
    videos = (
        VideoRecord("a", ("one", "two", "three"), Path("a.mp4")),
        VideoRecord("b", ("four",)),
        VideoRecord("c", ("five", "six"), Path("c.mp4")),
    )
    return make_split("toy", "test", PROTOCOL, videos, **changes)  # type: ignore[arg-type]


def test_texts_are_grouped_by_video_and_know_their_video() -> None:
    split = small_split()
    assert split.texts == ["one", "two", "three", "four", "five", "six"]
    assert torch.equal(split.video_of_text, torch.tensor([0, 0, 0, 1, 2, 2]))
    assert split.video_ids == ["a", "b", "c"]


def test_the_protocol_name_tells_the_sizes() -> None:
    assert small_split().protocol.name == "toy (6 texts x 3 videos)"


def test_a_gallery_with_missing_videos_says_so_in_its_protocol(
    caplog: pytest.LogCaptureFixture,
) -> None:
    present = small_split().select_present()
    assert present.protocol.name == "toy (5 texts x 2 of 3 videos)"
    assert present.left_out == (VideoProblem("b", "no file found"),)
    assert "2 of 3 videos present" in caplog.text


def test_a_complete_split_is_its_own_present_part() -> None:
    split = small_split().only(["a", "c"])
    assert split.select_present() is split


def test_a_split_without_any_file_is_an_error() -> None:
    split = Split("toy", "test", PROTOCOL, (VideoRecord("a", ("one",)),))
    with pytest.raises(DatasetError, match="none of the 1 video files"):
        split.select_present()


def test_left_out_videos_are_logged_with_counts_and_reasons(
    caplog: pytest.LogCaptureFixture,
) -> None:
    split = small_split(left_out=[VideoProblem("d", "no caption"), VideoProblem("e", "no caption")])
    assert "left out 2 videos (no caption), first 'd'" in caplog.text
    assert split.protocol.name == "toy (6 texts x 3 of 5 videos)"


@pytest.mark.parametrize(
    ("videos", "message"),
    [
        ((), "the split is empty"),
        ((VideoRecord("a", ("x",)), VideoRecord("a", ("y",))), "'a'; list each once"),
        ((VideoRecord("a", ()),), "'a' has an empty caption"),
        ((VideoRecord("a", ("x", "  ")),), "'a' has an empty caption"),
        ((VideoRecord("", ("x",)),), "empty id"),
    ],
)
def test_impossible_splits_are_refused(videos: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Split("toy", "train", PROTOCOL, videos)


def test_empty_captions_are_counted_and_long_ones_kept_whole() -> None:
    long = "word " * 2000
    kept, num_empty = clean_captions([" a dog ", "", "\n\t", long], "here")
    assert kept == ("a dog", long.strip())
    assert num_empty == 2


@pytest.mark.parametrize("caption", [None, 7, ["a"], "broken \ud800 text"])
def test_a_caption_that_is_not_text_is_an_error_that_names_the_place(caption: Any) -> None:
    with pytest.raises(DatasetError, match=r"file\.json: line 3"):
        clean_captions([caption], "file.json: line 3")


def test_holding_out_depends_on_each_id_alone() -> None:
    ids = [f"video{index}" for index in range(50)]
    held = hold_out_ids(ids, 7)
    assert len(held) == 7
    assert hold_out_ids(ids[::-1], 7) == held
    assert hold_out_ids(ids, 7, seed=1) != held
    rest = [video_id for video_id in stable_order(ids) if video_id != "video3"]
    assert stable_order([video_id for video_id in ids if video_id != "video3"]) == rest


def test_an_impossible_number_of_held_out_videos_names_its_option() -> None:
    for count in (3, -1):
        message = f"msrvtt: hold_out={count}, but there are 3 videos to train on; expected 0 to 2"
        with pytest.raises(UsageError, match=message):
            training_ids("msrvtt", "val", ["a", "b", "c"], count)
    assert len(training_ids("msrvtt", "val", ["a", "b", "c"], 2)) == 2


@pytest.mark.parametrize("count", [-1, 3, 4])
def test_holding_out_everything_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="expected 0 to 2"):
        hold_out_ids(["a", "b", "c"], count)


def test_an_unknown_dataset_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'msrvtt'"):
        DATASETS["msrvt"]


def test_an_unknown_option_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"unknown setting 'msrvtt.tain'.*known: train, test, hold_out"
    ):
        DATASETS["msrvtt"].load(tmp_path, "test", tain="7k")


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("demo", "folder")])
def test_an_unknown_split_lists_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="known: train, val, test"):
        DATASETS[name].load(tmp_path, "validation")
