"""People's own data: CSV, JSON lines, sidecar texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data.checks import check_dataset
from eaglenet.research.data.own_folder import load


def write_jsonl(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_csv_joins_the_lines_of_a_video(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "clips", "a.mp4")
    path = tmp_path / "captions.csv"
    path.write_text('path,caption\nclips/a.mp4,"one, two"\nb.mp4,three\nclips/a.mp4,four\n')
    split = load(tmp_path, "all")
    assert split.video_ids == ["clips/a.mp4", "b.mp4"]
    assert split.texts == ["one, two", "four", "three"]
    assert [video.path for video in split.videos] == [tmp_path / "clips" / "a.mp4", None]


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "captions.csv"
    path.write_text("video,caption,caption,,\na.mp4,one,two,,\n")
    with pytest.raises(DatasetError, match="the header has 'caption' 2 times"):
        load(path, "all")
    path.write_text("video,caption,,\na.mp4,one,,\n")  # As spreadsheets write it.
    assert load(path, "all").texts == ["one"]


def test_json_lines_take_lists_windows_and_splits(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "data.jsonl",
        {"video": "a.mp4", "captions": ["one", "two"], "start": 1, "end": 2.5, "split": "train"},
        {"video": "a.mp4", "caption": "later", "start": 3, "end": 4, "split": "train"},
        {"video": "b.mp4", "caption": "three", "split": "test"},
    )
    train = load(path, "train")
    assert train.video_ids == ["a.mp4#1-2.5", "a.mp4#3-4"]
    assert train.videos[0].window == (1.0, 2.5)
    assert load(path, "test").texts == ["three"]
    with pytest.raises(DatasetError, match="folder val: the split is empty"):
        load(path, "val")


def test_a_folder_of_videos_reads_the_texts_beside_them(
    tmp_path: Path, files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    files.touch(tmp_path / "sub", "a.mp4", "b.webm")
    files.touch(tmp_path, "c.mkv")
    (tmp_path / "sub" / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "c.txt").write_text("three")
    split = load(tmp_path, "all")
    assert split.texts == ["three", "one", "two"]
    assert split.left_out[0].video_id == "sub/b.webm"
    assert "left out 1 video (no caption)" in caplog.text


@pytest.mark.parametrize("captions", ["a.txt", "CAPTIONS.CSV"])
def test_hidden_files_beside_the_data_are_not_read(
    tmp_path: Path, files: Any, captions: str
) -> None:
    """macOS writes a binary ``._NAME`` beside each file on disks of other systems."""
    files.touch(tmp_path, "a.mp4")
    (tmp_path / captions).write_text("one" if captions == "a.txt" else "video,caption\na.mp4,one\n")
    for name in ("a.mp4", "a.txt", "captions.csv"):
        (tmp_path / f"._{name}").write_bytes(b"\x00\x05\x16\x07\xff")
    split = load(tmp_path, "all")
    assert (split.video_ids, split.texts, split.left_out) == (["a.mp4"], ["one"], ())


def test_linked_folders_of_videos_are_read(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "disk", "a.mp4")
    (tmp_path / "disk" / "a.txt").write_text("one")
    (tmp_path / "disk" / "loop").symlink_to(tmp_path / "disk")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "videos").symlink_to(tmp_path / "disk")
    assert load(tmp_path / "root", "all").video_ids == ["videos/a.mp4"]


def test_videos_are_shared_out_the_same_way_every_time(tmp_path: Path) -> None:
    rows = [{"video": f"v{index}.mp4", "caption": "x"} for index in range(20)]
    path = write_jsonl(tmp_path / "data.jsonl", *rows)
    parts = [load(path, name).video_ids for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [14, 4, 2]  # A fifth chooses the epoch.
    assert len(load(path, "val", fractions=(0.8, 0.05, 0.15)).video_ids) == 1
    assert len({video_id for part in parts for video_id in part}) == 20
    write_jsonl(path, *rows[::-1])
    assert set(load(path, "test").video_ids) == set(parts[2])


def test_windows_of_one_file_never_part(tmp_path: Path) -> None:
    rows = [
        {"video": f"v{index}.mp4", "caption": "x", "start": start, "end": start + 1}
        for index in range(10)
        for start in range(3)
    ]
    path = write_jsonl(tmp_path / "data.jsonl", *rows)
    test = load(path, "test")
    assert len(test) == 3
    assert len({video_id.partition("#")[0] for video_id in test.video_ids}) == 1
    write_jsonl(path, *rows[:6])
    with pytest.raises(DatasetError, match="2 videos are too few for test"):
        load(path, "test")


def test_names_with_a_number_sign_are_files_of_their_own(tmp_path: Path) -> None:
    names = [f"Episode #{index}.mp4" for index in range(20)]
    path = write_jsonl(tmp_path / "data.jsonl", *({"video": n, "caption": "x"} for n in names))
    assert [len(load(path, name)) for name in ("train", "val", "test")] == [14, 4, 2]
    windows = [{"start": start, "end": start + 1} for start in range(3)]
    rows = [{"video": name, "caption": "x", **window} for name in names for window in windows]
    test = load(write_jsonl(path, *rows), "test")
    assert len(test) == 6
    assert len({video_id.rpartition("#")[0] for video_id in test.video_ids}) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"caption": "x"}, "line 1: no video; expected a column .* and there is .caption."),
        ({"name": "a.mp4", "title": "x"}, "no video and no caption; .* 'name', 'title'"),
        ({"video": 5, "caption": "x"}, "line 1: the video is int, expected text"),
        ({"video": "\ud800", "caption": "x"}, "line 1: the video .* has a lone surrogate"),
        ({"video": "a.mp4"}, "line 1: no caption"),
        ({"video": "a.mp4", "caption": 5}, "line 1: a caption is int"),
        ({"video": "a.mp4", "caption": "x", "start": "now"}, "must be seconds"),
        ({"video": "a.mp4", "caption": "x", "start": 3, "end": 2}, "0 <= start < end"),
        ({"video": "a.mp4", "caption": "x", "split": "dev"}, "split 'dev' is unknown"),
        ({"video": "a.mp4", "caption": "  "}, "the split is empty; 1 were left out"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write_jsonl(tmp_path / "data.jsonl", row)
    with pytest.raises(DatasetError, match=message):
        load(path, "all")


def test_a_video_in_two_splits_or_half_named_splits_are_errors(tmp_path: Path) -> None:
    first = {"video": "a.mp4", "caption": "x", "split": "train"}
    path = write_jsonl(tmp_path / "data.jsonl", first, {**first, "split": "test"})
    with pytest.raises(DatasetError, match="is in split 'train' and 'test'"):
        load(path, "train")
    write_jsonl(path, first, {"video": "b.mp4", "caption": "y"})
    with pytest.raises(DatasetError, match=r"'b.mp4' has no split"):
        load(path, "train")


def test_wrong_roots_say_what_is_expected(tmp_path: Path, files: Any) -> None:
    with pytest.raises(DatasetError, match="does not exist"):
        load(tmp_path / "nowhere", "all")
    with pytest.raises(DatasetError, match="no video files"):
        load(tmp_path, "all")
    files.write_lines(tmp_path / "a.csv", ["video,caption"])
    files.write_lines(tmp_path / "b.csv", ["video,caption"])
    with pytest.raises(DatasetError, match=r"several captions files \(a.csv, b.csv\)"):
        load(tmp_path, "all")
    with pytest.raises(DatasetError, match=r"a\.csv is empty; write one line per caption"):
        load(tmp_path / "a.csv", "all")
    with pytest.raises(DatasetError) as error:
        check_dataset("folder", tmp_path / "a.csv")
    assert str(error.value).count("is empty") == 1, "once, not per split"


def test_too_few_videos_to_share_out_say_so(tmp_path: Path) -> None:
    path = tmp_path / "captions.csv"
    path.write_text("video,caption\none.mp4,a man\ntwo.mp4,a dog\n")
    assert len(load(path, "train").videos) == 2
    reason = r"captions\.csv' has a split, and 2 videos are too few for val.*column split"
    with pytest.raises(DatasetError, match=reason):
        load(path, "val")


def test_impossible_fractions_are_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "data.jsonl", {"video": "a.mp4", "caption": "x"})
    with pytest.raises(UsageError, match="three numbers that sum to 1"):
        load(path, "train", fractions=(0.5, 0.1))


def test_a_caption_of_ten_thousand_characters_is_kept_whole(tmp_path: Path) -> None:
    long = "x" * 10_000
    path = write_jsonl(tmp_path / "data.jsonl", {"video": "a.mp4", "caption": long})
    assert load(path, "all").texts == [long]


def test_a_missing_file_is_never_another_one_of_the_same_name(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "a", "clip.mp4")
    files.touch(tmp_path / "moved", "lost.mp4", "one.mp4")
    rows = [
        {"video": name, "caption": "x"}
        for name in ("a/clip.mp4", "b/clip.mp4", "old/lost.mp4", "c/one.mp4", "d/one.mp4")
    ]
    split = load(write_jsonl(tmp_path / "data.jsonl", *rows), "all")
    found = {video.video_id: video.path for video in split.videos}
    assert found == {
        "a/clip.mp4": tmp_path / "a" / "clip.mp4",
        "b/clip.mp4": None,
        "old/lost.mp4": tmp_path / "moved" / "lost.mp4",
        "c/one.mp4": None,
        "d/one.mp4": None,
    }


def test_a_video_without_captions_is_counted_in_the_split_it_names(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "data.jsonl",
        {"video": "a.mp4", "caption": "x", "split": "train"},
        {"video": "b.mp4", "caption": "y", "split": "val"},
        {"video": "c.mp4", "caption": "", "split": "val"},
    )
    assert [entry.video_id for entry in load(path, "val").left_out] == ["c.mp4"]
    assert load(path, "val").protocol.name.endswith("(1 text x 1 of 2 videos)")
    assert load(path, "train").left_out == ()


def test_a_name_too_long_for_any_file_is_a_missing_video(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "data.jsonl", {"video": "a" * 5000, "caption": "x"})
    assert len(load(path, "all").missing) == 1


def test_a_text_whose_video_is_gone_counts_as_a_missing_video(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path, "a.mp4")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "gone.txt").write_text("two")
    (tmp_path / "README.txt").write_text("about these videos")
    split = load(tmp_path, "all")
    assert [video.video_id for video in split.missing] == ["sub/gone"]
    assert split.select_present().protocol.name.endswith("(1 text x 1 of 2 videos)")


def test_images_and_videos_stand_in_one_batch(tmp_path: Path) -> None:
    import torch
    from PIL import Image

    from eaglenet.core.types import FrameSpec
    from eaglenet.research.data.frame_cache import FrameCache
    from small_videos import colour_video

    colour_video(tmp_path / "a.mp4", ["red"], 1)
    Image.new("RGB", (40, 24), (0, 255, 0)).save(tmp_path / "b.png")
    lines = "video,caption,split\na.mp4,red,train\nb.png,green,train\n"
    (tmp_path / "captions.csv").write_text(lines)
    split = load(tmp_path, "train")
    frames = FrameCache.build(split, FrameSpec(num_frames=3, size=32), tmp_path / "cache", 1)
    clips = frames.clips(torch.tensor([0, 1]))
    assert clips.mask.all()
    reds, greens = clips.frames[:, :, 0, 5, 5], clips.frames[:, :, 1, 5, 5]
    assert (reds > 200).tolist() == [[True] * 3, [False] * 3]
    assert (greens > 200).tolist() == [[False] * 3, [True] * 3]
