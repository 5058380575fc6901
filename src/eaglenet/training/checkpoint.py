"""Atomic checkpoints: after a kill at any moment, the newest file is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from eaglenet.errors import CheckpointError
from eaglenet.files import written_whole

KEEP = 2
FORMAT = 1
_NAME = re.compile(r"step-(\d{9})\.pt")


def write_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``state`` as ``step-XXXXXXXXX.pt``, whole or not at all.

    The last :data:`KEEP` files stay; older ones and leftovers of killed writers are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}.pt"
    try:
        with written_whole(path) as partial:
            torch.save({"format": FORMAT, "step": step, **state}, partial)
    except (RuntimeError, OSError) as error:
        # PyTorch says "failed writing file" where the disk is full.
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path}: the checkpoint cannot be written ({cause}); make room on its disk and run "
            "the same command: training continues from the previous one"
        ) from error
    for old in list_checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    for leftover in folder.glob(".step-*.partial*"):
        leftover.unlink(missing_ok=True)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint on the CPU. Only tensors and plain values are read, never code."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    except Exception as error:  # a damaged file can fail in any way
        # PyTorch's own words advise to load a foreign file unsafely.
        raise CheckpointError(
            f"{path}: damaged, or no checkpoint ({type(error).__name__}); delete it to resume from "
            "the previous one"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a training checkpoint of form {FORMAT}")
    return state


def latest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint, or None where there is none."""
    paths = list_checkpoints(folder)
    return read_checkpoint(paths[-1]) if paths else None
