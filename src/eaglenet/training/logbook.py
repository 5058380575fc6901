"""The log of a run: one JSON object a line, cut back to the checkpoint when a run resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eaglenet.errors import UsageError
from eaglenet.files import write_text
from eaglenet.run_folder import LOG, LogEvent


class Logbook:
    """Appends events to ``log.jsonl``; mirrors numbers to TensorBoard when asked.

    ``step`` of the logbook is where the run begins or resumes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step: int = 0,
        tensorboard: bool = False,
    ) -> None:
        self.path = folder / LOG
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _open_board(folder, step) if tensorboard else None

    def write(self, event: LogEvent) -> None:
        self._file.write(json.dumps(event.to_dict()) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in _numbers(event.values, event.event):
                self._board.add_scalar(name, value, event.step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def cut_log(folder: Path, step: int, evaluated: int) -> None:
    """Drop what was logged after the checkpoint, and a last line that a kill left unfinished.

    ``step`` is the checkpoint's; ``evaluated`` the last step whose evaluation it knows of.
    """
    path = folder / LOG
    if not path.exists():
        return
    limits = {"evaluation": evaluated, "end": -1}
    kept = [
        entry
        for entry in read_log(folder)
        if entry.step <= min(step, limits.get(entry.event, step))
    ]
    write_text(path, "".join(json.dumps(entry.to_dict()) + "\n" for entry in kept))


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


def _numbers(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """`event/name` of every number, those of both directions included."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}/{name}")
        elif isinstance(value, float):
            yield f"{prefix}/{name}", value


def check_board() -> None:
    """Fail before the data is prepared, not after, where TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"TensorBoard was requested but cannot be loaded ({error}): install the package "
            "tensorboard, or leave --tensorboard out; log.jsonl holds the same numbers"
        ) from error


def _open_board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    # What an interrupted run showed after its last checkpoint is hidden, as it is cut from the log.
    return SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=step + 1)
