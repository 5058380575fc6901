"""A disk that is full or fails: one line from every command, and no checkpoint is lost.

For stores see ``tests/store/test_store_failing_calls.py``: every call of an index run fails once.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from failing_disk import FailingDisk

from eaglenet.cli import main as command_line
from eaglenet.core.errors import CheckpointError
from eaglenet.research.training.checkpoint import latest_checkpoint, write_checkpoint

FAULTS = [(errno.ENOSPC, False), (errno.EIO, True)]


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
