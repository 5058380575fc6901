"""A disk that is full or fails at any operation: one line, nothing reported is lost, it goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from failing_disk import FailingDisk
from synthetic_store import BagMethod
from test_power_cut import FILES, found, work

from eaglenet.cli import main as command_line
from eaglenet.core.errors import CheckpointError, StoreError
from eaglenet.indexing.maintenance import repair
from eaglenet.research.training.checkpoint import latest_checkpoint, write_checkpoint

FAULTS = [(errno.ENOSPC, False), (errno.EIO, True)]


def num_operations(place: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        disk = FailingDisk(place)
        disk.install(patch)
        work(place / "store", BagMethod(), [])
        repair(place / "store")
    return disk.operations


def check_fault(
    at: int, number: int, is_torn: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail one operation of an index run and a repair, then do both again."""
    bag, store, reported = BagMethod(), place / "store", list[str]()
    place.mkdir()
    with monkeypatch.context() as patch:
        FailingDisk(place, at, number, is_torn).install(patch)
        try:
            work(store, bag, reported)
            repair(store)
        except StoreError as error:
            text = str(error)
        else:
            text = ""  # A file that was to be removed is removed the next time.
    assert "\n" not in text
    if reported:
        assert found(store, bag) >= set(reported), at
    work(store, bag, [])
    repair(store)
    assert found(store, bag) == {f"/videos/{n}.mp4" for n in range(FILES)}


@pytest.mark.parametrize(("number", "is_torn"), FAULTS)
def test_a_fault_of_the_disk_loses_nothing(
    number: int, is_torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = num_operations(tmp_path / "whole", monkeypatch)
    assert operations > 40
    for at in range(3, operations, operations // 3):
        check_fault(at, number, is_torn, tmp_path / str(at), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "is_torn"), FAULTS)
def test_a_fault_at_every_operation_loses_nothing(
    number: int, is_torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(1, num_operations(tmp_path / "whole", monkeypatch) + 1):
        check_fault(at, number, is_torn, tmp_path / str(at), monkeypatch)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.randn(3, 4)
    write_checkpoint(tmp_path, 1, {"weights": weights})
    for number, is_torn in FAULTS:
        for at in range(1, 4):
            with monkeypatch.context() as patch:
                FailingDisk(tmp_path, at, number, is_torn).install(patch)
                try:
                    write_checkpoint(tmp_path, 2, {"weights": 2 * weights})
                except (CheckpointError, OSError) as error:
                    text = str(error)
                    is_one_line = "\n" not in text
                else:
                    is_one_line = True
            assert is_one_line
            state = latest_checkpoint(tmp_path)
            assert state is not None
            assert torch.equal(state["weights"], state["step"] * weights)


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN]
)
def test_a_disk_that_is_full_or_gone_is_told_in_a_line_by_every_command(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no file is named: a write to one that was open when its mount was lost."""

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.delenv("EAGLENET_DEBUG", raising=False)
    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: the disk: {os.strerror(number)}; ")
    assert told.count("\n") == 1
