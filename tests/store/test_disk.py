"""Errors of a disk are told by their number, in one line."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from made_store import fill

from eaglenet.core.errors import StoreError
from eaglenet.store import disk, schema
from eaglenet.store.disk import store_errors
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
