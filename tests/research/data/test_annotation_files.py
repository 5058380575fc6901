"""Broken files name themselves and the place in them; videos are found whatever their extension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import DatasetError
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    find_file,
    finder_for,
    read_csv,
    read_json,
    read_json_lines,
    read_list,
    read_text,
    stem_of,
)


def test_bytes_that_are_not_utf8_are_named_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "captions.txt"
    path.write_bytes(b"good\nbad \xff here")
    with pytest.raises(DatasetError, match=r"captions.txt: byte 0xff at position 9 \(line 2\)"):
        read_text(path)


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"\xef\xbb\xbfvideo_id\nvideo1\n")
    assert read_csv(path, ("video_id",)) == [(2, {"video_id": "video1"})]


def test_broken_json_tells_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"a": 1,\n "b": }')
    with pytest.raises(DatasetError, match=r"data.json: broken JSON at line 2, column 7"):
        read_json(path)


def test_broken_json_lines_tell_their_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n\n[1]\n')
    with pytest.raises(DatasetError, match="line 3 is not a JSON object"):
        read_json_lines(path)
    path.write_text('{"a": 1}\n{"a"\n')
    with pytest.raises(DatasetError, match="broken JSON in line 2"):
        read_json_lines(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("video\nx\n", "column 'video_id' is missing"),
        ("", "column 'video_id' is missing"),
        ("video_id,sentence\na,one,two\n", "line 2 does not have the 2 columns"),
        ("video_id,sentence\na\n", "line 2 does not have the 2 columns"),
        ('video_id,sentence\na,"open\n', "broken CSV"),
    ],
)
def test_broken_csv_is_refused_with_a_reason(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "list.csv"
    path.write_text(content)
    with pytest.raises(DatasetError, match=message):
        read_csv(path, ("video_id",))


def test_quoted_captions_may_hold_commas_and_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text('video_id,sentence\na,"one, two\nthree"\n')
    assert read_csv(path)[0][1]["sentence"] == "one, two\nthree"


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_the_header_of_a_csv_file_shows_what_separates_its_columns(
    tmp_path: Path, separator: str, name: str
) -> None:
    path = tmp_path / "list.csv"
    path.write_text(f"video_id{separator}sentence\na{separator}one, two\n")
    assert read_csv(path, ("video_id",)) == [(2, {"video_id": "a", "sentence": "one, two"})]
    path.write_text(f"video_id{separator}sentence\na{separator}one{separator}two\n")
    with pytest.raises(DatasetError, match=f"quote captions that contain {name}"):
        read_csv(path)


def test_names_of_columns_may_be_capitalised(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("Video_ID,Sentence\na,One\n")
    assert read_csv(path, ("video_id",)) == [(2, {"video_id": "a", "sentence": "One"})]
    path.write_text("Video_ID,video_id\na,b\n")
    with pytest.raises(DatasetError, match="'video_id' 2 times"):
        read_csv(path)


@pytest.mark.parametrize(
    ("content", "message"), [("a\nb\na\n", "'a' is listed more than once"), ("\n\n", "is empty")]
)
def test_lists_refuse_duplicates_and_emptiness(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(content)
    with pytest.raises(DatasetError, match=message):
        read_list(path)


def test_a_missing_file_lists_the_places_looked_in(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a.json or b.json not found; looked in .*msvd"):
        find_file(tmp_path, ("a.json", "b.json"), ("msvd",))
    with pytest.raises(DatasetError, match="is not a folder"):
        find_file(tmp_path / "nowhere", ("a.json",))


def test_names_lose_video_extensions_only() -> None:
    names = ["a.mp4", "a.", "a.MOV", "a.b", "a", "a_1.5.webm", ".mp4"]
    assert [stem_of(name) for name in names] == ["a", "a", "a", "a.b", "a", "a_1.5", ".mp4"]


def test_videos_are_found_by_name_stem_and_without_extension(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "deep" / "er", "video1.webm", "x@N1_2.mov", "y@N1.", "z@N1.mp4")
    files.touch(tmp_path, "video1.json", ".video2.mp4", "video3.txt")
    finder = VideoFinder([tmp_path])
    names = ["video1", "x@N1_2.mov", "x@N1_2.avi", "y@N1.", "z@N1.", "video2", "video3"]
    found = [finder.find(name) for name in names]
    assert [path.name if path else None for path in found] == [
        "video1.webm",
        "x@N1_2.mov",
        "x@N1_2.mov",
        "y@N1.",
        "z@N1.mp4",
        None,
        None,
    ]


def test_the_first_folder_wins_and_doubles_are_told(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "b_small", "v.mp4")
    files.touch(tmp_path / "a_large", "v.avi")
    finder = VideoFinder([tmp_path / "b_small", tmp_path])
    assert finder.find("v") == tmp_path / "b_small" / "v.mp4"
    assert list(finder.ambiguous(["v", "w"])) == ["v"]
    assert VideoFinder([tmp_path]).find("v") == tmp_path / "a_large" / "v.avi"


def test_links_to_folders_are_followed_and_loops_are_not(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "disk", "v.mp4")
    root = tmp_path / "root"
    root.mkdir()
    (root / "videos").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "loop").symlink_to(root)
    finder = VideoFinder([root])
    assert finder.find("v") is not None
    assert not finder.ambiguous(["v"])


def test_one_folder_of_videos_may_be_given_without_a_list(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "videos", "a.mp4")
    (tmp_path / "annotations").mkdir()
    finder = finder_for(tmp_path / "annotations", str(tmp_path / "videos"))
    assert finder.find("a") == tmp_path / "videos" / "a.mp4"
