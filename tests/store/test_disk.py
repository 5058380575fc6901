"""Errors of a disk are told by their number, in one line."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_store import CLIPS, content_of, fill, make_manifest

from eaglenet.core.errors import StoreError
from eaglenet.store import disk, schema
from eaglenet.store import store as store_module
from eaglenet.store.disk import store_errors
from eaglenet.store.records import Changes, SourceWindows
from eaglenet.store.store import LocalStore


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "is full. Everything reported as done is safe"),
        (errno.EDQUOT, "is full"),
        (errno.EACCES, "cannot be written to"),
        (errno.EROFS, "cannot be written to"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_errors_are_told_by_their_number(number: int, text: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=text) as error, store_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "\n" not in str(error.value)


def test_a_store_that_cannot_be_written_to_can_be_searched(tmp_path: Path) -> None:
    for folder, is_said in ((tmp_path / "none", False), (tmp_path / "store", True)):
        if is_said:
            fill(folder, 1)
        with pytest.raises(StoreError) as error, store_errors(folder):
            raise PermissionError(errno.EACCES, "Permission denied")
        assert ("searching it still works" in str(error.value)) == is_said


def test_a_failing_disk_has_a_way_back(tmp_path: Path) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    with (
        pytest.raises(StoreError, match=r"same command again.*eaglenet store repair --store"),
        store_errors(tmp_path),
    ):
        raise error


def test_an_old_sqlite_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = [each.replace("trigram", "unknown") for each in schema.STATEMENTS]
    monkeypatch.setattr(schema, "STATEMENTS", statements)
    with pytest.raises(StoreError, match="damaged"):
        fill(tmp_path / "damaged", 1)
    monkeypatch.setattr(disk, "TEXT_PROBE", disk.TEXT_PROBE.replace("trigram", "unknown"))
    with pytest.raises(StoreError, match=r"SQLite 3\.34 or newer"):
        fill(tmp_path / "store", 1)
    assert not LocalStore.exists(tmp_path / "store")


def test_the_home_of_nobody_is_an_error() -> None:
    with pytest.raises(StoreError, match="home"):
        LocalStore.open("~nobody-has-this-name/store")


def test_a_store_that_was_hardly_begun_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    (folder / "segments").mkdir(parents=True)
    (folder / ".store.db.partial").write_bytes(b"half")
    (folder / "writer.lock").touch()
    with pytest.raises(StoreError, match="create one with: eaglenet index"):
        LocalStore.open(folder)
    assert len(fill(folder, 1).snapshot()) == 4


@pytest.mark.parametrize("suffix", ["store.db", ".vectors", ".windows"])
def test_a_file_that_cannot_be_inspected_is_not_taken_for_missing(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a damaged one either; for a moment, a network disk may fail in this way."""
    fill(tmp_path / "store", 1)
    key, first, count = (content_of(0), "subtitle", ""), np.uint32([0]), np.uint32([2])
    with LocalStore.write(tmp_path / "store") as writer:
        windows = SourceWindows(key, "e", first, count, np.eye(1, 40, dtype=np.float32))
        writer.commit(Changes(windows=[windows]))
    read_status, num_failures = os.stat, 0

    def fail(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        nonlocal num_failures
        if str(path).endswith(suffix):
            num_failures += 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_status(path, *arguments, **options)

    def read() -> None:
        LocalStore.open(tmp_path / "store").snapshot().windows("e")

    def write() -> None:
        with LocalStore.write(tmp_path / "store", make_manifest()):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        # As of Python 3.14.
        patch.setattr(Path, "exists", lambda path: os.path.exists(path))
        patch.setattr(Path, "is_file", lambda path: os.path.isfile(path))
        for work in (read, write) if suffix == "store.db" else (read,):
            with pytest.raises(OSError, match="Input/output error"):
                work()
    assert num_failures
    assert len(LocalStore.open(tmp_path / "store").snapshot()) == CLIPS


def test_no_store_is_replaced_by_an_empty_one_if_a_disk_fails_under_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "store", 1)
    read_status = os.stat

    def fail(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("store.db"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_status(path, *arguments, **options)

    @contextmanager
    def lock(folder: Path) -> Iterator[None]:
        with disk.writer_lock(folder), monkeypatch.context() as patch:
            patch.setattr(os, "stat", fail)
            patch.setattr(Path, "exists", lambda path: os.path.exists(path))  # Python 3.14.
            yield

    monkeypatch.setattr(store_module, "writer_lock", lock)
    with (
        pytest.raises((OSError, StoreError), match="Input/output error"),
        LocalStore.write(tmp_path / "store", make_manifest()),
    ):
        pass
    assert len(LocalStore.open(tmp_path / "store").snapshot()) == CLIPS
