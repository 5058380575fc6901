"""Progress on standard error: bars in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from eaglenet.progress import Progress, Work

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
