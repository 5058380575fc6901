"""One holder of a lock at a time: others are told who, or wait."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from eaglenet.core import files
from eaglenet.core.files import LockHeldError, hold_lock, try_lock


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path / "lock"),
        pytest.raises(LockHeldError, match=r"process \d+ on"),
        hold_lock(tmp_path / "lock"),
    ):
        pass
    with hold_lock(tmp_path / "lock"):
        pass


def test_deleting_the_file_lets_no_second_holder_in_where_the_folder_is_locked_too(
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


def test_one_that_waits_comes_after_the_first(tmp_path: Path) -> None:
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
    thread.join(timeout=5)
    assert order == ["first", "second"]


def test_a_system_without_locks_is_worked_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    with hold_lock(tmp_path / "lock"), hold_lock(tmp_path / "lock"):
        pass


def test_an_open_file_is_locked_by_one_until_it_is_closed(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_without_file_locks_nothing_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    assert not try_lock(descriptor)
    os.close(descriptor)
