"""Boards that show the log of a run: TensorBoard, Weights & Biases and trackio.

``log.jsonl`` is always written; a board gets the same numbers. Every board has one interface,
:class:`Board`, and a row in :data:`BOARDS`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from eaglenet.core.errors import EXTRAS, UsageError, shell_quote
from eaglenet.core.run_folder import LogEvent

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
