"""Atomic checkpoints: after a kill at any moment, the newest file is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import CheckpointError
from eaglenet.core.files import atomic_write, write_text
from eaglenet.core.run_folder import LOG, LogEvent
from eaglenet.research.training.loggers import Board, numbers

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
        with atomic_write(path) as partial:
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


# Where a training run stands: what a checkpoint keeps of it beside weights.


@dataclass
class Position:
    """Progress of a run. ``evaluated`` is the last step after which evaluation was done.

    A resumed run goes on from its last checkpoint, and so do these counts.
    """

    step: int = 0
    evaluated: int = 0
    best_score: float = float("-inf")
    best_epoch: int = 0
    evaluations_since_best: int = 0
    pairs: int = 0
    """Pairs of a text and a video that it has learnt from."""
    seconds: float = 0.0
    """Spent on it, evaluations included; the attempts of an interrupted run together."""
    step_seconds: float = 0.0
    """Spent on steps alone, waiting for data included."""
    epoch_seconds: float | None = None
    """Seconds of an epoch, once one is complete."""
    peak_bytes: int | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


# The log of a run: one JSON object a line, cut back to the checkpoint when a run resumes.


class Logbook:
    """Appends events to ``log.jsonl``, and shows their numbers on boards."""

    def __init__(self, folder: Path, boards: Sequence[Board] = ()) -> None:
        self.path = folder / LOG
        self._file = self.path.open("a", encoding="utf-8")
        self._boards = boards

    def write(self, event: LogEvent) -> None:
        self._file.write(json.dumps(event.to_dict()) + "\n")
        self._file.flush()
        values = numbers(event)
        for board in self._boards if values else ():
            board.add(values, event.step)

    def close(self) -> None:
        self._file.close()
        for board in self._boards:
            board.close()


def cut_log(folder: Path, step: int, evaluated: int) -> None:
    """Drop what was logged after the checkpoint, and a last line that a kill left unfinished.

    ``step`` is the checkpoint's; ``evaluated`` the last step whose evaluation it knows of.
    """
    path = folder / LOG
    if not path.exists():
        return
    limits = {"evaluation": evaluated, "end": -1}
    entries = [
        entry
        for entry in read_log(folder)
        if entry.step <= min(step, limits.get(entry.event, step))
    ]
    write_text(path, "".join(json.dumps(entry.to_dict()) + "\n" for entry in entries))


def read_log(folder: Path) -> list[LogEvent]:
    """All whole events of a run's log."""
    events: list[LogEvent] = []
    path = folder / LOG
    if not path.exists():
        return events
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(LogEvent.parse(line))
        except ValueError:
            break
    return events
