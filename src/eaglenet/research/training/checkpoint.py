"""Progress of a run on disk: atomic checkpoints, its log, and boards that show the log."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from eaglenet.core.errors import EXTRAS, CheckpointError, UsageError, shell_quote
from eaglenet.core.files import atomic_write, write_text
from eaglenet.core.run_folder import LOG, LogEvent
from eaglenet.research.evaluation.run_records import read_log

PROJECT = "eaglenet"
"""Project of a run on boards that have projects; WANDB_PROJECT and TRACKIO_PROJECT change it."""


class Board(Protocol):
    """Shows numbers by step."""

    def add(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """A folder ``tensorboard`` in the run folder."""

    def __init__(self, folder: Path, step: int, experiment: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an interrupted run showed after its last checkpoint is hidden, as it is cut from the
        # log.
        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class HostedBoard:
    """wandb or trackio, which has the interface of wandb.

    A run keeps its name, so that a resumed one goes on under it.
    """

    def __init__(self, module: str, folder: Path, step: int, experiment: Mapping[str, Any]) -> None:
        self._module = import_module(module)
        path = folder.resolve()
        name = f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        options: dict[str, Any] = {"id": name, "dir": str(folder)} if module == "wandb" else {}
        self._module.init(
            project=os.environ.get(f"{module.upper()}_PROJECT", PROJECT),
            name=name,
            config=dict(experiment),
            resume="allow",
            **options,
        )

    def add(self, values: Mapping[str, float], step: int) -> None:
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        self._module.finish()


BOARDS: Mapping[str, tuple[str, Callable[[Path, int, Mapping[str, Any]], Board]]] = {
    "tensorboard": ("torch.utils.tensorboard", TensorBoard),
    "wandb": ("wandb", partial(HostedBoard, "wandb")),
    "trackio": ("trackio", partial(HostedBoard, "trackio")),
}
"""Module that must be installed, and function that opens the board, by name."""


def parse_boards(names: str) -> tuple[str, ...]:
    """Parse names of boards, separated by commas.

    >>> parse_boards("wandb, tensorboard")
    ('wandb', 'tensorboard')
    """
    boards = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in boards:
        if name not in BOARDS:
            raise UsageError(f"--log {name}: unknown board; choose from {', '.join(BOARDS)}")
    return tuple(dict.fromkeys(boards))


def check_boards(names: Sequence[str]) -> None:
    """Fail before the data is prepared, not after, where a board is not installed."""
    for name in names:
        try:
            import_module(BOARDS[name][0])
        except ImportError as error:
            # wandb and trackio are no extras: they bring many packages, trackio an older pillow.
            package = f"eaglenet[{EXTRAS[name]}]" if name in EXTRAS else name
            raise UsageError(
                f"--log {name}: cannot be loaded ({error}): pip install {shell_quote(package)}, "
                f"or leave {name} out; log.jsonl holds the same numbers"
            ) from error


def open_boards(
    names: Sequence[str], folder: Path, step: int, experiment: Mapping[str, Any]
) -> list[Board]:
    return [BOARDS[name][1](folder, step, experiment) for name in names]


def numbers(event: LogEvent) -> dict[str, float]:
    """``event/name`` of every number of an event, those of both directions included."""
    return dict(_numbers(event.values, event.event))


def _numbers(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}/{name}")
        elif isinstance(value, float):
            yield f"{prefix}/{name}", value


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
