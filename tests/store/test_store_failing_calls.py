"""A disk that is full or fails: one line, nothing that was reported is lost, and it goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from index_run import found, index
from made_store import CLIPS, path_of

from eaglenet.core.errors import StoreError
from eaglenet.store.store import LocalStore

HERE = Path(__file__).parent


def run_trials(library: Path, folder: Path, step: int) -> str:
    run = subprocess.run(
        [sys.executable, str(HERE / "failing_trial.py"), str(folder), str(step)],
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def test_a_fault_of_some_calls_loses_nothing(failing_calls: Path, tmp_path: Path) -> None:
    output = run_trials(failing_calls, tmp_path / "disk", 127)
    assert ", 0 failures" in output, output[-2000:]


@pytest.mark.slow
def test_a_fault_of_any_call_loses_nothing(failing_calls: Path, tmp_path: Path) -> None:
    output = run_trials(failing_calls, tmp_path / "disk", 1)
    print(output.splitlines()[-1])
    assert ", 0 failures" in output, output[-2000:]


@pytest.mark.parametrize("kilobytes", [180, 300, 420, 560])
def test_a_full_disk_is_reported_and_the_next_run_continues(kilobytes: int, tmp_path: Path) -> None:
    """A real file system that is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        reported_files: list[str] = []
        with pytest.raises(StoreError, match=r"the disk of .* is full"):
            index(disk / "store", 500, reported_files)
        if reported_files:
            assert found(disk / "store") >= set(reported_files)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        index(disk / "store", 8)
        assert found(disk / "store") == {path_of(number) for number in range(8)}
        LocalStore.open(disk / "store").verify()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_without_any_room_can_be_searched(tmp_path: Path) -> None:
    """SQLite cannot make the file that readers and a writer share there."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        index(disk / "store", 2)
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free))
        store = LocalStore.open(disk / "store")
        before, stamp = store.snapshot(), store.stamp()
        assert len(before) == 2 * CLIPS
        assert found(disk / "store") == {path_of(0), path_of(1)}
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        index(disk / "store", 3)
        assert store.stamp() != stamp
        assert len(store.snapshot()) == 3 * CLIPS
        assert len(before) == 2 * CLIPS
        store.verify()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
