"""Stores that are lost, locked, full, forbidden or not stores at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from index_cases import clip_keys, found, run

from eaglenet.core.errors import StoreError, UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.store.store import LocalStore
from small_videos import colour_video
from synthetic_store import BagMethod

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["os.fsync", "os.write", "os.ftruncate"])
def test_full_disk_is_reported_and_the_store_stays_readable(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run(videos, bag)
    before = found(videos, bag)
    colour_video(videos / "new.mp4", ["blue", "red"])

    def fail(*_: object, **__: object) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(call, fail)
        with pytest.raises(StoreError, match="full"):
            run(videos, bag)
        assert found(videos, bag) == before
    report = run(videos, bag)
    assert report.clips == 6
    assert "new.mp4" in dict(found(videos, bag))


def test_refuses_segments_without_a_database(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    (videos.parent / "store" / "store.db").unlink()
    with pytest.raises(StoreError, match=r"lost its store\.db.*eaglenet index"):
        run(videos, bag, splitting=Splitting(clip_seconds=4.0))
    with pytest.raises(StoreError, match=r"lost its store\.db.*eaglenet index"):
        found(videos, bag)


@pytest.mark.parametrize("kind", ["vectors", "features", "thumbnails", "labels", "codes"])
def test_lost_segment_is_repaired_and_encoded_again(
    kind: str, videos: Path, bag: BagMethod
) -> None:
    run(videos, bag)
    expected, store = found(videos, bag), videos.parent / "store"
    for path in (store / "segments").glob(f"*.{kind}"):
        path.unlink()
    with pytest.raises(StoreError, match="eaglenet store repair"):
        LocalStore.open(store).verify()
    repaired = LocalStore.repair(store)
    LocalStore.open(store).verify()
    report = run(videos, bag)
    assert report.indexed == len(repaired.incomplete_files) == (0 if kind == "codes" else 3)
    assert found(videos, bag) == expected
    assert run(videos, bag).unchanged == 3


def test_encodes_files_with_lost_clips_again(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    expected, store = found(videos, bag), videos.parent / "store"
    with LocalStore.write(store) as writer, writer.transaction() as change:
        change.connection.execute(
            "DELETE FROM clips WHERE number = 1 AND content_id = "
            "(SELECT content_id FROM files WHERE path LIKE '%long.mp4')"
        )
    with pytest.raises(StoreError, match="eaglenet store repair"):
        found(videos, bag)
    assert LocalStore.repair(store).incomplete_files == (str(videos / "long.mp4"),)
    assert len(found(videos, bag)) == 2
    report = run(videos, bag)
    assert (report.indexed, report.unchanged, report.clips) == (1, 2, 5)
    assert found(videos, bag) == expected
    assert len(clip_keys(store)) == 5
    assert run(videos, bag).unchanged == 3


def test_second_writer_is_refused_with_the_name_of_the_first(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    with (
        LocalStore.write(videos.parent / "store"),
        pytest.raises(StoreError, match=f"process {os.getpid()}"),
    ):
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
    with pytest.raises(StoreError, match=r"cannot be written to.*another folder") as caught:
        run(videos, bag)
    assert "searching" not in str(caught.value)
