"""Checkpoints are whole or not there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from eaglenet.core.errors import CheckpointError
from eaglenet.research.training.checkpoint import (
    latest_checkpoint,
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)


def test_the_newest_of_two_is_read_and_older_ones_are_removed(tmp_path: Path) -> None:
    for step in (3, 12, 7_000):
        write_checkpoint(tmp_path, step, {"value": torch.tensor(step)})
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "step-000000012.pt",
        "step-000007000.pt",
    ]
    assert latest_checkpoint(tmp_path)["value"] == 7_000


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None


def test_a_kill_while_writing_leaves_the_one_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, {"value": torch.ones(5)})
    child = os.fork()
    if child == 0:

        def save_half(state: Any, file: Any) -> None:
            file.write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)

        torch.save = save_half
        write_checkpoint(tmp_path, 2, {"value": torch.zeros(5)})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert latest_checkpoint(tmp_path)["step"] == 1
    write_checkpoint(tmp_path, 2, {"value": torch.zeros(5)})
    assert not list(tmp_path.glob(".step-*"))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, {})
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"step-000000001.*delete it") as refused:
        read_checkpoint(path)
    assert "weights_only" not in str(refused.value)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "evil"),))

    path = write_checkpoint(tmp_path, 1, {"value": Evil()})
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not (tmp_path / "evil").exists()
