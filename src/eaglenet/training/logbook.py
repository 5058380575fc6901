"""The log of a run: one JSON object a line, cut back to the checkpoint when a run resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eaglenet import foreign
from eaglenet.errors import UsageError
from eaglenet.files import write_text


class Logbook:
    """Appends records to ``log.jsonl``; mirrors numbers to TensorBoard when asked.

    Records carry ``event`` (`start`, `step`, `evaluation`, `end`) and ``step``, the number of
    optimizer steps done so far; ``step`` of the logbook is where the run begins or resumes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step: int = 0,
        tensorboard: bool = False,
    ) -> None:
        self.path = folder / "log.jsonl"
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _open_board(folder, step) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in _numbers(record, record["event"]):
                self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def cut_log(folder: Path, step: int, evaluated: int) -> None:
    """Drop what was logged after the checkpoint, and a last line that a kill left unfinished.

    ``step`` is the checkpoint's; ``evaluated`` the last step whose evaluation it knows of.
    """
    path = folder / "log.jsonl"
    if not path.exists():
        return
    limits = {"evaluation": evaluated, "end": -1}
    kept = [
        record
        for record in read_log(folder)
        if record["step"] <= min(step, limits.get(record["event"], step))
    ]
    write_text(path, "".join(json.dumps(record) + "\n" for record in kept))


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All whole records of a run's log."""
    records: list[dict[str, Any]] = []
    path = folder / "log.jsonl"
    if not path.exists():
        return records
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = foreign.parse_json(line)
        except json.JSONDecodeError:
            break
        records.append(record)
    return records


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
            f"TensorBoard is asked for and cannot be loaded ({error}): install the package "
            "tensorboard, or leave --tensorboard out; log.jsonl holds the same numbers"
        ) from error


def _open_board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    # What an interrupted run showed after its last checkpoint is hidden, as it is cut from the log.
    return SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=step + 1)
