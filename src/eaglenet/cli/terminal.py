"""Output to a terminal: escaped text, JSON and progress; start and end of short commands.

File names, transcripts and metadata are untrusted. They may contain characters that move the
cursor, change colours or reverse the order of text, so all output is escaped here.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar, NoReturn, Self

from eaglenet.core.progress import Progress, ProgressUpdate

LINE_SECONDS = 30.0
"""Seconds between lines of progress in a log."""
HEARTBEAT_SECONDS = 1.0
"""Seconds between checks whether a line is due."""
NOTABLE_SECONDS = 5.0
"""Seconds between lines of notable updates, such as evaluations of small data."""
UNUSED_MODULE = "torch._meta_registrations"
"""Part of torch that only compiling and exporting need. Importing it takes 0.5 of 1.7 s on one core
(`benchmarks/cold.py`)."""
GARBAGE_THRESHOLD = 1_000_000
"""New objects between garbage collections. Importing creates 240,000 permanent objects, and each
collection takes 0.1 s."""


def escape_line(text: str) -> str:
    """Escape line breaks, control characters (C0 and C1) and marks that change text direction.

    >>> escape_line("two\\nlines, \\x1b[31mred, \\x9b31mred, \\u202egnp.exe")
    'two\\\\nlines, \\\\x1b[31mred, \\\\x9b31mred, \\\\u202egnp.exe'
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def escape_lines(text: str) -> str:
    """Apply :func:`escape_line` to each line."""
    return "\n".join(map(escape_line, text.split("\n")))


def print_line(text: str, *, is_error: bool = False) -> None:
    """Print one escaped line to standard output, or to standard error."""
    print(escape_line(text), file=sys.stderr if is_error else sys.stdout, flush=True)


def print_json(value: Any) -> None:
    """Print JSON; in a terminal, with ``\\uXXXX`` for characters that are not printable."""
    text = json.dumps(value, ensure_ascii=False)
    if sys.stdout.isatty():
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    print(text)


def print_record(record: Any, as_json: bool, *lines: str) -> None:
    """Print ``record`` as JSON, or ``lines`` as text."""
    if as_json:
        print_json(record)
    else:
        for line in lines:
            print_line(line)


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun.

    >>> pluralize(1, "clip"), pluralize(1200, "copy", "copies")
    ('1 clip', '1,200 copies')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_bytes(count: float) -> str:
    """Format a number of bytes with at least two digits.

    >>> format_bytes(44_900_000), format_bytes(1_500_000_000), format_bytes(16_300_000_000)
    ('45 MB', '1.5 GB', '16 GB')
    """
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if count >= 1000:
            count, unit = count / 1000, larger
    return f"{count:.{int(count < 10 and unit != 'bytes')}f} {unit}"


class SafeFormatter(logging.Formatter):
    """Formatter that escapes log lines, and names our own modules only if ``verbose``."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__("%(name)s: %(message)s")
        self.verbose = verbose

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the library's name)
        is_ours = record.name.partition(".")[0] == "eaglenet"
        if is_ours and not self.verbose:
            return escape_lines(f"{record.levelname.lower()}: {record.message}")
        return escape_lines(super().formatMessage(record))


Announce = Callable[[str], Progress | None]
"""Takes the title of a run (or '') and returns a callback that shows its progress, or None."""


@contextmanager
def show_progress(quiet: bool) -> Iterator[Announce]:
    """Show the progress of runs on standard error, unless ``quiet``.

    Shows bars in a terminal, and occasional lines in a log.
    """
    if quiet:
        yield lambda title: None
        return
    if not sys.stderr.isatty():
        with Heartbeat() as heartbeat:
            yield lambda title: Lines(title, heartbeat)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
    )
    display = Progress(*columns, console=Console(stderr=True), transient=True)
    try:
        yield lambda title: Bars(display, title)
    finally:
        display.stop()


class Bars:
    """Progress as one bar per unfinished task, shown from the first update on."""

    def __init__(self, display: Any, title: str) -> None:
        self.display = display
        self.title = title
        self.tasks: dict[str, Any] = {}

    def __call__(self, update: ProgressUpdate) -> None:
        self.display.start()
        if update.title not in self.tasks:
            self.tasks[update.title] = self.display.add_task("", total=None, count="")
        self.display.update(
            self.tasks[update.title],
            completed=update.done,
            total=update.total or 1,
            count=f"{update.done:,}/{update.total:,}" if update.is_counted else "",
            description=escape_line(
                _join(": ", self.title, _join(", ", update.title, update.detail))
            ),
            visible=update.done < update.total,
        )


class Heartbeat:
    """Thread that prints a line after ``LINE_SECONDS`` without output, to show a living process.

    Loading a model or one training step on a CPU may take minutes without an update.
    """

    def __init__(self) -> None:
        self.last_update = ""
        """Line of the latest progress update."""
        self._start = self._last_line = time.monotonic()
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_done.set()

    def print(self, line: str) -> None:
        self._last_line = time.monotonic()
        print_line(line, is_error=True)

    def _run(self) -> None:
        while not self._is_done.wait(HEARTBEAT_SECONDS):
            now = time.monotonic()
            if now - self._last_line >= LINE_SECONDS:
                minutes, seconds = divmod(round(now - self._start), 60)
                line = f"still working after {minutes}:{seconds:02}"
                self.print(_join("; ", line, self.last_update and f"last step: {self.last_update}"))


class Lines:
    """Progress as lines of text, at most one per ``LINE_SECONDS`` and task."""

    def __init__(self, title: str, heartbeat: Heartbeat) -> None:
        self.title = title
        self.heartbeat = heartbeat
        self.starts: dict[str, tuple[float, int]] = {}
        self.due_times: dict[tuple[str, bool], float] = {}

    def __call__(self, update: ProgressUpdate) -> None:
        now = time.monotonic()
        is_first = update.title not in self.starts
        if is_first:
            self.starts[update.title] = now, update.done
            self.due_times[update.title, False] = now + LINE_SECONDS
            self.due_times[update.title, True] = now
        self.heartbeat.last_update = self._line(update, now)
        if now < self.due_times[update.title, update.is_notable]:
            return
        if not is_first or not update.is_notable:
            pause = NOTABLE_SECONDS if update.is_notable else LINE_SECONDS
            self.due_times[update.title, update.is_notable] = now + pause
        self.heartbeat.print(self.heartbeat.last_update)

    def _line(self, update: ProgressUpdate, now: float) -> str:
        count = f"{update.title} {update.done:,} of {update.total:,}" if update.is_counted else ""
        is_timed = update.is_counted and not update.is_notable
        time_left = self._time_left(update, now) if is_timed else ""
        return _join(": ", self.title, _join(", ", count, update.detail, time_left))

    def _time_left(self, update: ProgressUpdate, now: float) -> str:
        start, num_before = self.starts[update.title]
        if update.done <= num_before or update.done >= update.total:
            return ""
        minutes = (now - start) * (update.total - update.done) / (update.done - num_before) / 60
        return f"about {pluralize(round(minutes), 'minute')} left"


def _join(separator: str, *texts: str) -> str:
    return separator.join(text for text in texts if text)


class ShortCommand:
    """Process-wide flag: a short command is running, and the process ends with it."""

    is_running: ClassVar[bool] = False


def begin_short_command() -> None:
    """Skip work that only long commands need; do nothing if torch is already imported."""
    if "torch" not in sys.modules:
        gc.set_threshold(GARBAGE_THRESHOLD)
        ShortCommand.is_running = True


def import_torch() -> None:
    """Import torch for a short command, without :data:`UNUSED_MODULE`."""
    if "torch" in sys.modules or not ShortCommand.is_running:
        return
    sys.modules[UNUSED_MODULE] = types.ModuleType(UNUSED_MODULE)
    import torch

    try:
        torch.Generator()
    except RuntimeError:
        # Torch 2.13 registers generators in a module that only the omitted part imports.
        import_module("torch._prims.rng_prims")


def end_short_command(code: int) -> NoReturn:
    """Exit without the teardown of torch, which takes 0.3 s; flushes output and logs."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
