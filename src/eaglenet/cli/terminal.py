"""Text for a terminal: names of files may hold signs that would move its cursor or colour it."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from eaglenet.core.progress import Progress, Work


def one_line(text: str) -> str:
    """Line breaks and other signs that upset a terminal, shown as escapes.

    >>> one_line("two\\nlines, \\x1b[31mred")
    'two\\\\nlines, \\\\x1b[31mred'
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def counted(number: int, thing: str, several: str = "") -> str:
    """A number and what it counts.

    >>> counted(1, "clip"), counted(1200, "copy", "copies")
    ('1 clip', '1,200 copies')
    """
    return f"{number:,} {thing if number == 1 else several or thing + 's'}"


def lines(text: str) -> str:
    """:func:`one_line` for each line."""
    return "\n".join(map(one_line, text.split("\n")))


class SafeFormatter(logging.Formatter):
    """Log lines that name files of others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the library's name)
        return lines(super().formatMessage(record))


# Progress on standard error: bars in a terminal, a line now and then in a log.

LINE_SECONDS = 30.0
"""Between two lines on one work in a log."""
NOTABLE_SECONDS = 5.0
"""Between two lines on what is notable: small data is evaluated many times a minute."""

Announce = Callable[[str], Progress | None]
"""Title of a run, or '' -> what shows its progress; None shows nothing."""


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Announce]:
    """A display for one run after another; none when ``quiet``."""
    if quiet:
        yield lambda title: None
        return
    if not sys.stderr.isatty():
        yield Lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
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
    """A bar for each work that has begun and is not done; appears with the first."""

    def __init__(self, display: Any, title: str) -> None:
        self.display = display
        self.title = title
        self.tasks: dict[str, Any] = {}

    def __call__(self, work: Work) -> None:
        self.display.start()
        if work.title not in self.tasks:
            self.tasks[work.title] = self.display.add_task("", total=None, count="")
        self.display.update(
            self.tasks[work.title],
            completed=work.done,
            total=work.total or 1,
            count=f"{work.done:,}/{work.total:,}" if work.is_counted else "",
            description=_joined(": ", self.title, _joined(", ", work.title, work.detail)),
            visible=work.done < work.total,
        )


class Lines:
    """Lines of text, few enough to read them all."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began: dict[str, tuple[float, int]] = {}
        self.due: dict[tuple[str, bool], float] = {}

    def __call__(self, work: Work) -> None:
        now = time.monotonic()
        is_first = work.title not in self.began
        if is_first:
            self.began[work.title] = now, work.done
            self.due[work.title, False] = now + LINE_SECONDS
            self.due[work.title, True] = now
        if now < self.due[work.title, work.is_notable]:
            return
        if not is_first or not work.is_notable:
            pause = NOTABLE_SECONDS if work.is_notable else LINE_SECONDS
            self.due[work.title, work.is_notable] = now + pause
        print(self._line(work, now), file=sys.stderr, flush=True)

    def _line(self, work: Work, now: float) -> str:
        count = f"{work.title} {work.done:,} of {work.total:,}" if work.is_counted else ""
        left = "" if work.is_notable or not work.is_counted else self._time_left(work, now)
        return _joined(": ", self.title, _joined(", ", count, work.detail, left))

    def _time_left(self, work: Work, now: float) -> str:
        began, first = self.began[work.title]
        if work.done <= first or work.done >= work.total:
            return ""
        minutes = (now - began) * (work.total - work.done) / (work.done - first) / 60
        return f"about {minutes:.0f} minutes left"


def _joined(separator: str, *parts: str) -> str:
    return separator.join(part for part in parts if part)


# What makes a short command short: most of its time is Python's start and end, not its work.

UNUSED = "torch._meta_registrations"
"""Shapes of results without data, which only compiling and exporting ask for. Torch registers
thousands of them while it is imported, half a second of 1.7 on one core (`benchmarks/cold.py`)."""
GARBAGE = 1_000_000
"""New objects between two searches for garbage: importing makes 240,000, and all of them stay.
Each search takes 0.1 s."""


class ShortCommand:
    """Whether the command that runs is a short one: the process ends with it."""

    runs: ClassVar[bool] = False


def begin_short_command() -> None:
    """Import torch without what a search never calls; nothing is done once torch is there."""
    if "torch" in sys.modules:
        return
    gc.set_threshold(GARBAGE)
    sys.modules[UNUSED] = types.ModuleType(UNUSED)
    import torch

    try:
        torch.Generator()
    except RuntimeError:
        # Torch 2.13 makes generators usable in a module that only the part left out imports.
        import_module("torch._prims.rng_prims")
    ShortCommand.runs = True


def end_short_command(code: int) -> NoReturn:
    """End the process without taking torch apart first (a third of a second).

    A short command holds nothing open that has to be closed: what it wrote is written.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
