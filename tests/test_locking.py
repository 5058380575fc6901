"""Lock files: one holder at a time; others wait, or fail with the name of the holder."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from eaglenet.core import files
from eaglenet.core.files import LockHeldError, hold_lock, try_lock


def _no_locks(*_: object, **__: object) -> bool:
    raise OSError(errno.ENOSYS, "no locks here")


def test_second_holder_fails_with_the_name_of_the_first(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path / "lock"),
        pytest.raises(LockHeldError, match=r"process \d+ on"),
        hold_lock(tmp_path / "lock"),
    ):
        pass
    with hold_lock(tmp_path / "lock"):
        pass


def test_folder_lock_survives_deleting_the_lock_file(
    tmp_path: Path,
) -> None:
    with hold_lock(tmp_path / "lock", with_folder=True):
        (tmp_path / "lock").unlink()
        with (
            pytest.raises(LockHeldError, match="whose lock file was deleted"),
            hold_lock(tmp_path / "lock", with_folder=True),
        ):
            pass
    with hold_lock(tmp_path / "lock", with_folder=True):
        pass


def test_waits_until_the_first_holder_is_done(tmp_path: Path) -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with hold_lock(tmp_path / "lock", wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with hold_lock(tmp_path / "lock"):
        thread.start()
        entered.wait()
        thread.join(timeout=0.05)
        order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]


def test_works_unlocked_where_the_disk_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filelock.lock_descriptor", _no_locks)
    with hold_lock(tmp_path / "lock"), hold_lock(tmp_path / "lock"):
        pass


def test_new_lock_file_is_locked_when_the_old_one_was_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    deleted: list[Path] = []
    original = files.try_lock

    def delete_then_lock(descriptor: int) -> bool | None:
        if not deleted:
            path.unlink()
            deleted.append(path)
        return original(descriptor)

    monkeypatch.setattr(files, "try_lock", delete_then_lock)
    with hold_lock(path):
        assert path.exists()
        descriptor = os.open(path, os.O_RDWR)
        assert original(descriptor) is False
        os.close(descriptor)


def test_open_file_stays_locked_until_closed(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_reports_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filelock.lock_descriptor", _no_locks)
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    assert try_lock(descriptor) is None
    os.close(descriptor)
