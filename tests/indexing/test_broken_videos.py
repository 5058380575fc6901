"""Videos that are damaged, cut short or no videos at all."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from index_cases import clip_keys, found, run, stored_files

from eaglenet.indexing import decoding
from eaglenet.search.engine import Engine
from eaglenet.store.object_storage import ObjectError
from small_videos import cut_short_video, damaged_video
from synthetic_store import BagMethod


@pytest.mark.parametrize(
    ("make", "words"),
    [(damaged_video, "unreadable frames replaced"), (cut_short_video, "cut short, only")],
)
def test_damaged_videos_are_indexed_and_noted(
    make: Callable[[Path], Path], words: str, videos: Path, bag: BagMethod
) -> None:
    path = str(make(videos / "damaged.mp4"))
    shutil.copy(path, videos / "damaged too.mp4")
    for report in (run(videos, bag), run(videos, bag)):
        assert {Path(note.path).name for note in report.damaged} == {
            "damaged.mp4",
            "damaged too.mp4",
        }
        assert all(note.reason.startswith("damaged: ") for note in report.damaged)
        assert words in report.damaged[0].reason
        assert [Path(problem.path).name for problem in report.problems] == ["broken.mp4"]
    row = next(row for row in stored_files(videos) if row.path == path)
    assert (row.status, row.reason) == ("done", report.damaged[0].reason)
    hits = Engine.open(videos.parent / "store", bag).search("red", k=100, keep_duplicates=True)
    damage = {Path(hit.path).name: hit.metadata["damage"] for hit in hits}
    assert words in damage.pop("damaged too.mp4", "") + damage.pop("damaged.mp4", "")
    assert set(damage.values()) == {""}


def test_unreachable_file_is_reported_and_indexed_by_the_next_run(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = decoding.local_path

    def refuse(path: str) -> str:
        if path.endswith("long.mp4"):
            raise ObjectError(f"{path}: 503 slow down")
        return reached(path)

    monkeypatch.setattr(decoding, "local_path", refuse)
    report = run(videos, bag)
    assert {Path(p.path).name: p.reason.rpartition(": ")[2] for p in report.problems}[
        "long.mp4"
    ] == "503 slow down"
    assert "long.mp4" not in {name for name, _ in found(videos, bag)}
    monkeypatch.undo()
    report = run(videos, bag)
    assert report.indexed == 1
    assert [Path(problem.path).name for problem in report.problems] == ["broken.mp4"]
    assert "long.mp4" in {name for name, _ in found(videos, bag)}


def test_file_lost_midway_keeps_its_clips_and_gets_the_others_later(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag, videos.parent / "whole")
    expected = clip_keys(videos.parent / "whole")
    monkeypatch.setattr(decoding, "CLIPS_AT_ONCE", 1)
    reached, asked = decoding.local_path, Counter[str]()

    def refuse(path: str) -> str:
        asked[path] += 1
        if path.endswith("long.mp4") and asked[path] == 2:
            raise ObjectError(f"{path}: connection cut")
        return reached(path)

    monkeypatch.setattr(decoding, "local_path", refuse)
    run(videos, bag)
    assert 0 < len(clip_keys(videos.parent / "store")) < len(expected)
    run(videos, bag)
    assert clip_keys(videos.parent / "store") == expected


def test_two_hundred_broken_files_do_not_stop_the_good_ones(videos: Path, bag: BagMethod) -> None:
    import random

    generator = random.Random(0)
    whole = (videos / "first.mp4").read_bytes()
    for number in range(200):
        content = bytearray(whole[: generator.randrange(len(whole))])
        for _ in range(number % 7):
            if content:
                content[generator.randrange(len(content))] ^= 0xFF
        (videos / f"part{number}.mp4").write_bytes(bytes(content))
    report = run(videos, bag)
    good = {Path(name).name for name, _ in found(videos, bag)}
    assert {"first.mp4", "second.mkv", "long.mp4"} <= good
    bad = {Path(problem.path).name for problem in report.problems}
    assert len(good | bad) >= 204 - report.aliases
    assert all(problem.reason for problem in report.problems)
    assert len(bad) > 100


def test_retries_failed_files_on_request_or_after_a_change(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    shutil.copy(videos / "second.mkv", videos / "broken.mp4")
    report = run(videos, bag)
    assert (report.problems, report.aliases) == ((), 1)
    for name in ("broken.mp4", "image.jpg", "image.heic"):
        (videos / name).write_bytes(b"")
    for retry in (False, True):
        reasons = [problem.reason for problem in run(videos, bag, retry=retry).problems]
        assert reasons == 3 * ["the file is empty (0 bytes)"]
