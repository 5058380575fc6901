"""Stores that are lost, locked, full, forbidden or not stores at all."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from index_cases import found, run
from small_videos import colour_video
from synthetic_store import BagMethod

from eaglenet.core.errors import StoreError, UsageError
from eaglenet.search.store.base import open_store
from eaglenet.search.store.manifest import Splitting

LANCE_ADD = "lancedb.table.LanceTable.add"


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (LANCE_ADD, OSError(errno.ENOSPC, "No space left on device")),
        (LANCE_ADD, RuntimeError("lance error: LanceError(IO): No space left on device")),
        (
            "eaglenet.search.store.publishing.write_bytes",
            OSError(errno.ENOSPC, "No space left on device"),
        ),
    ],
)
def test_full_disk_is_reported_and_the_store_stays_readable(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch, error: Exception, function: str
) -> None:
    run(videos, bag)
    before = found(videos, bag)
    colour_video(videos / "new.mp4", ["blue", "red"])

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(function, fail)
        with pytest.raises(StoreError, match="full"):
            run(videos, bag)
        assert found(videos, bag) == before
    report = run(videos, bag)
    assert report.clips == 6
    assert "new.mp4" in dict(found(videos, bag))


def test_refuses_tables_without_a_manifest(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    (videos.parent / "store" / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        run(videos, bag, splitting=Splitting(clip_seconds=4.0))


@pytest.mark.parametrize("table", ["clips", "files"])
def test_lost_table_stops_the_run(table: str, videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    shutil.rmtree(videos.parent / "store" / f"{table}.lance")
    with pytest.raises(StoreError, match=rf"lost {table}\.lance"):
        run(videos, bag)
    assert len(found(videos, bag)) == 5


@pytest.mark.parametrize("is_shown", [True, False])
def test_encodes_files_with_lost_clips_again(is_shown: bool, videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    expected = found(videos, bag)
    store = open_store(videos.parent / "store")
    tables = store.tables()
    lost = next(row for row in tables.files() if row.path.endswith("long.mp4"))
    tables.remove_contents([lost.content])
    tables.sync()
    if not is_shown:
        store.publish(tables, anew=True)
        assert len(found(videos, bag)) == 2
    report = run(videos, bag)
    assert (report.indexed, report.unchanged, report.clips) == (1, 2, 5)
    assert found(videos, bag) == expected
    assert len(store.tables().clip_keys()) == 5
    assert run(videos, bag).unchanged == 3


def test_second_writer_is_refused_with_the_name_of_the_first(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    store = open_store(videos.parent / "store")
    with store.hold(), pytest.raises(StoreError, match=f"process {os.getpid()}"):
        run(videos, bag)
    assert len(found(videos, bag)) == 5
    assert run(videos, bag).unchanged == 3


def test_read_only_store_is_reported_and_can_be_searched(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag)
    colour_video(videos / "new.mp4", ["blue"])
    store = videos.parent / "store"
    original = os.open

    def refuse(path: object, flags: int, *rest: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and str(path).startswith(str(store)):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return original(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"cannot be written to.*searching it still works"):
        run(videos, bag)
    assert len(found(videos, bag)) == 5


def test_leaves_other_folders_and_files_alone(videos: Path, bag: BagMethod) -> None:
    with pytest.raises(StoreError, match="other files"):
        run(videos, bag, videos)
    with pytest.raises(StoreError, match="is a file"):
        run(videos, bag, videos / "notes.txt")
    with pytest.raises(UsageError, match="no such file"):
        run(videos / "nowhere", bag, videos.parent / "never")
    assert not (videos.parent / "never").exists()


def test_reports_a_folder_that_cannot_be_made(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"cannot be written to.*another --store") as caught:
        run(videos, bag)
    assert "searching" not in str(caught.value)
