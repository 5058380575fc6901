"""Candidate files: which are indexed, which are reported, links, and tags."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from index_cases import SPLITTING, found, run, stored_files

from eaglenet.core.errors import UsageError
from eaglenet.indexing.files import find_videos, read_tags
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from small_videos import colour_video, sound_file
from synthetic_store import BagMethod


def test_finds_videos_by_content_and_skips_the_store(videos: Path, tmp_path: Path) -> None:

    (videos / "no_suffix").write_bytes((videos / "second.mkv").read_bytes())
    (videos / ".hidden.mp4").write_bytes(b"x")
    (videos / "store").mkdir()
    (videos / "store" / "inside.mp4").write_bytes(b"x")
    os.mkfifo(videos / "pipe.mp4")
    os.symlink(videos, videos / "loop")
    names = [
        Path(file.path).name for file in find_videos([videos, videos], skip_folder=videos / "store")
    ]
    assert names == ["broken.mp4", "first.mp4", "long.mp4", "no_suffix", "second.mkv"]


def test_counts_other_files_and_inspects_them_once(
    videos: Path, bag: BagMethod, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = sound_file(videos / "memo.m4a")
    (videos / "notes.TXT").write_text("x")
    (videos / "first.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    for name in ("._first.mp4", ".DS_Store", ".trash/old.mp4"):
        (videos / name).parent.mkdir(exist_ok=True)
        (videos / name).write_bytes(b"x")
    caplog.set_level("INFO")
    report = run(videos, bag)
    assert report.other_files == {".txt": 2, ".m4a": 1}
    assert report.hidden == 2  # The folder, and the file that would be a video.
    assert [Path(problem.path).name for problem in report.problems] == ["broken.mp4"]
    assert f"neither a video nor an image: {sound}" in caplog.messages
    monkeypatch.setattr("eaglenet.indexing.inspection.inspect", None)
    again = run(videos, bag)
    assert again.other_files == report.other_files
    assert [problem.is_known for problem in again.problems] == [True]


def test_reports_a_broken_link(videos: Path, bag: BagMethod) -> None:
    (videos / "link.mp4").symlink_to(videos / "gone.mp4")
    reasons = {Path(problem.path).name: problem.reason for problem in run(videos, bag).problems}
    assert "broken link to" in reasons["link.mp4"]
    # It is named again, but a run with nothing to encode loads no model.
    again = index_videos(
        [videos], videos.parent / "store", options=IndexOptions(splitting=SPLITTING)
    )
    assert "link.mp4" in {Path(problem.path).name for problem in again.problems}


def test_a_broken_link_is_reported_also_if_links_are_followed(videos: Path) -> None:
    (videos / "link.mp4").symlink_to(videos / "gone.mp4")
    files = find_videos([videos], skip_folder=videos / "store", follow_links=True)
    problems = {Path(file.path).name: file.problem for file in files if file.problem}
    assert list(problems) == ["link.mp4"]
    assert problems["link.mp4"].startswith("a broken link to")


def test_a_file_that_cannot_be_inspected_is_reported(
    videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as all files of a folder that may be listed but not entered."""
    read_status = os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if Path(path).name == "first.mp4":
            raise PermissionError(13, "Permission denied", str(path))
        return read_status(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    # As of Python 3.14, which takes such a file for one that is missing.
    monkeypatch.setattr(Path, "is_file", lambda path: os.path.isfile(path))
    monkeypatch.setattr(Path, "is_symlink", lambda path: os.path.islink(path))
    files = find_videos([videos], skip_folder=videos / "store")
    problems = {Path(file.path).name: file.problem for file in files if file.problem}
    assert problems == {"first.mp4": "Permission denied"}


def test_reports_a_name_that_is_not_utf8(videos: Path, bag: BagMethod) -> None:
    name = os.path.join(os.fsencode(videos), b"bad\xff.mp4")
    shutil.copy(os.fsencode(videos / "second.mkv"), name)
    report = run(videos, bag)
    assert "UTF-8" in {p.path: p.reason for p in report.problems}[os.fsdecode(name)]
    assert report.indexed == 3


def test_unreadable_folder_is_reported_and_its_files_stay(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    (videos / "locked").mkdir()
    (videos / "second.mkv").rename(videos / "locked" / "second.mkv")
    run(videos, bag)
    expected = found(videos, bag)
    locked = str(videos / "locked")
    real_stat, real_scandir = os.stat, os.scandir

    def stat(path: object, **options: object) -> os.stat_result:
        if str(path).startswith(locked + "/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, **options)

    def scandir(path: str) -> object:
        if str(path) == locked:
            raise PermissionError(13, "Permission denied", locked)
        return real_scandir(path)

    # Modes do not stop the superuser, as whom tests may run.
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "scandir", scandir)
    report = run(videos, bag, drop_missing=True)
    assert (report.dropped, report.unchanged) == (0, 2)
    reasons = {Path(problem.path).name: problem.reason for problem in report.problems}
    assert "cannot read the folder (Permission denied)" in reasons["locked"]
    assert found(videos, bag) == expected


def stored_names(videos: Path) -> set[str]:
    return {Path(row.path).name for row in stored_files(videos) if row.status == "done"}


def subtitle_lines(videos: Path, bag: BagMethod, query: str) -> int:
    return len(Engine.open(videos.parent / "store", bag).search(query, modalities="speech"))


def test_links_out_of_the_indexed_folder_are_reported_and_not_read(
    videos: Path, bag: BagMethod, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither videos nor subtitles: others may be able to write links into the folder."""
    outside = tmp_path_factory.mktemp("outside")
    colour_video(outside / "private.mkv", ["blue", "red"])
    (outside / "private.srt").write_text("1\n00:00:01,0 --> 00:00:02,0\nmy secret walrus\n")
    (videos / "leak.mkv").symlink_to(outside / "private.mkv")
    (videos / "no_suffix").symlink_to(outside / "private.mkv")
    (videos / "first.srt").symlink_to(outside / "private.srt")
    (videos / "inside.mkv").symlink_to(videos / "second.mkv")
    (videos / "all").symlink_to(outside)
    report = run(videos, bag)
    reasons = {Path(problem.path).name: problem.reason for problem in report.problems}
    assert "--follow-links" in reasons["leak.mkv"]
    assert "a link to a folder outside" in reasons["all"]
    assert "--follow-links" in reasons["first.srt"]
    assert "no_suffix" not in reasons
    assert stored_names(videos) == {
        "first.mp4",
        "inside.mkv",
        "long.mp4",
        "second.mkv",
    }
    assert subtitle_lines(videos, bag, "walrus") == 0
    report = run(videos, bag, follow_links=True)
    assert not [problem for problem in report.problems if "link" in problem.reason]
    assert {"leak.mkv", "private.mkv", "no_suffix"} <= stored_names(videos)
    assert subtitle_lines(videos, bag, "walrus") > 0
    # Without the option, files behind such links are missing from now on.
    report = run(videos, bag, drop_missing=True)
    assert report.dropped == 3
    assert subtitle_lines(videos, bag, "walrus") == 0


def test_follows_links_that_are_named(videos: Path, bag: BagMethod, tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(videos)
    (tmp_path / "one.mp4").symlink_to(videos / "first.mp4")
    files = find_videos([tmp_path / "folder", tmp_path / "one.mp4"], skip_folder=tmp_path / "s")
    assert {Path(file.path).name for file in files if not file.problem} == {
        "broken.mp4",
        "first.mp4",
        "long.mp4",
        "one.mp4",
        "second.mkv",
    }


def test_linked_folders_are_entered_once_and_loops_end(videos: Path, tmp_path: Path) -> None:
    (videos / "sub").mkdir()
    shutil.copy(videos / "first.mp4", videos / "sub" / "deep.mp4")
    (videos / "again").symlink_to(videos / "sub")
    (videos / "sub" / "up").symlink_to(videos)
    for follow_links in (False, True):
        files = find_videos(
            [videos],
            skip_folder=tmp_path / "s",
            follow_links=follow_links,
        )
        deep = [file.path for file in files if file.path.endswith("deep.mp4")]
        assert deep == [str(videos / "sub" / "deep.mp4")]
    both = find_videos([videos, videos / "sub"], skip_folder=tmp_path / "s")
    assert [file.path for file in both if file.problem] == [], "links among the indexed folders"


def test_tags_come_from_a_table_and_can_change(videos: Path, bag: BagMethod) -> None:
    table = videos / "tags.csv"
    table.write_text("path,tags\nfirst.mp4,home; pets\nsecond.mkv,work\n")
    store = videos.parent / "store"
    options = IndexOptions(splitting=SPLITTING, workers=0)
    index_videos([videos], store, "bag", method=bag, options=options, tags=read_tags(table))
    engine = Engine.open(store, bag)
    assert engine.info()["tags"] == ["home", "pets", "work"]
    table.write_text("path,tags\nfirst.mp4,garden\n")
    index_videos([videos], store, "bag", method=bag, options=options, tags=read_tags(table))
    assert engine.info()["tags"] == ["garden", "work"]
    table.write_text("name;label\n")
    with pytest.raises(UsageError, match="path and tags"):
        read_tags(table)
