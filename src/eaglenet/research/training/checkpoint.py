"""State of a run on disk: checkpoints, the log, and boards that show the log."""

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
from eaglenet.research.evaluation.run_records import LOG, LogEvent, read_log

PROJECT = "eaglenet"
"""Default project on hosted boards; WANDB_PROJECT and TRACKIO_PROJECT override it."""


class Board(Protocol):
    """Interface of a board, which shows numbers by step."""

    def add(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Board of files in the folder ``tensorboard`` of the run."""

    def __init__(self, folder: Path, step: int, experiment: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hides the events after the last checkpoint of an interrupted run.
        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class HostedBoard:
    """Board of wandb, or of trackio, which has the same interface.

    The name of a run depends on its folder, so that a resumed run continues on the board.
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
"""For each board, the module that must be installed and the function that opens the board."""


def parse_boards(names: str) -> tuple[str, ...]:
    """Parse names of boards, separated by commas.

    >>> parse_boards("wandb, tensorboard")
    ('wandb', 'tensorboard')
    """
    boards = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in boards:
        if name not in BOARDS:
            raise UsageError(f"--log {name}: unknown service; choose from {', '.join(BOARDS)}")
    return tuple(dict.fromkeys(boards))


def check_boards(names: Sequence[str]) -> None:
    """Raise if a board is not installed, before the data is prepared."""
    for name in names:
        try:
            import_module(BOARDS[name][0])
        except ImportError as error:
            # wandb and trackio have no extra because of their many dependencies.
            package = f"eaglenet[{EXTRAS[name]}]" if name in EXTRAS else name
            raise UsageError(
                f"--log {name}: cannot be loaded ({error}): pip install {shell_quote(package)}, "
                f"or leave {name} out; log.jsonl has the same numbers"
            ) from error


def open_boards(
    names: Sequence[str], folder: Path, step: int, experiment: Mapping[str, Any]
) -> list[Board]:
    return [BOARDS[name][1](folder, step, experiment) for name in names]


def numbers(event: LogEvent) -> dict[str, float]:
    """Return the floats of an event, including nested ones, by names such as ``event/name``."""
    return dict(_numbers(event.values, event.event))


def _numbers(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}/{name}")
        elif isinstance(value, float):
            yield f"{prefix}/{name}", value


KEEP = 2
"""Checkpoints kept per run."""
FORMAT = 1
_NAME = re.compile(r"step-(\d{9})\.pt")


def write_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``state`` atomically as ``step-XXXXXXXXX.pt``.

    Removes all but the last :data:`KEEP` checkpoints, and partial files of killed processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}.pt"
    try:
        with atomic_write(path) as partial:
            torch.save({"format": FORMAT, "step": step, **state}, partial)
    except (RuntimeError, OSError) as error:
        # PyTorch says "failed writing file" if the disk is full.
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path}: the checkpoint cannot be written ({cause}); free space on its disk and run "
            "the same command again: training continues from the previous checkpoint"
        ) from error
    for old in list_checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    for leftover in folder.glob(".step-*.partial*"):
        leftover.unlink(missing_ok=True)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """List complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU, without executing code from the file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    except Exception as error:  # Damaged files raise many kinds of errors.
        # The message of PyTorch would advise to load the untrusted file unsafely.
        raise CheckpointError(
            f"{path}: damaged, or not a checkpoint ({type(error).__name__}); delete it to resume "
            "from the previous one"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a training checkpoint of format {FORMAT}")
    return state


def latest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Read the newest checkpoint; None if there is none."""
    paths = list_checkpoints(folder)
    return read_checkpoint(paths[-1]) if paths else None


@dataclass
class Position:
    """Progress of a run, saved in its checkpoints.

    evaluated: step at the end of the last complete epoch.
    pairs: number of pairs of a text and a video trained on.
    seconds: time including evaluations, over all attempts of an interrupted run.
    step_seconds: time of steps only, including waiting for data.
    epoch_seconds: mean time per epoch; None before the end of the first.
    """

    step: int = 0
    evaluated: int = 0
    best_score: float = float("-inf")
    best_epoch: int = 0
    evaluations_since_best: int = 0
    pairs: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    epoch_seconds: float | None = None
    peak_bytes: int | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


class Logbook:
    """Log of a run: one JSON object per line in ``log.jsonl``; also sends numbers to boards."""

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
    """Remove the events after a checkpoint from the log, and a last line that is incomplete.

    step, evaluated: see :class:`Position` of the checkpoint.
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
