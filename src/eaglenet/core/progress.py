"""Progress of long-running work: updates, and displays for terminals, notebooks and logs."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

from eaglenet.core.text import escape_line, pluralize

LINE_SECONDS = 30.0
"""Seconds between lines of progress in a log."""
HEARTBEAT_SECONDS = 0.5
"""Seconds between checks whether a line is due. Work that goes on at two checks in a row gets a
line in a log."""
NOTABLE_SECONDS = 5.0
"""Seconds between lines of notable updates, such as evaluations."""
NOTEBOOK_SECONDS = 0.2
"""Minimum seconds between updates in a notebook, since each is a message to a browser."""


@dataclass(frozen=True)
class ProgressUpdate:
    """State of a task: ``count`` of ``total`` units, and a detail to show beside them."""

    title: str
    count: int
    total: int
    detail: str = ""
    is_notable: bool = False
    """True for an update that gets its own line in a log, such as an evaluation."""
    is_counted: bool = True
    """Show the numbers; False for units such as bytes, where ``detail`` says everything."""


Progress = Callable[[ProgressUpdate], None]
"""Receives updates during work; :func:`show_progress` makes one that displays them."""


def report_progress(
    progress: Progress | None,
    title: str,
    count: int,
    total: int,
    detail: str = "",
    *,
    is_notable: bool = False,
) -> None:
    """Call ``progress`` with an update, unless it is None."""
    if progress is not None:
        progress(ProgressUpdate(title, count, total, detail, is_notable))


Announce = Callable[[str], Progress | None]
"""Takes the title of a run (may be empty); returns a callback that shows its progress, or None."""


@contextmanager
def show_progress(quiet: bool) -> Iterator[Announce]:
    """Show the progress of runs on standard error, unless ``quiet``.

    Shows bars in a terminal and in a notebook, and occasional lines in a log.
    """
    if quiet:
        yield lambda title: None
        return
    if not is_watched():
        with Heartbeat() as heartbeat:
            yield lambda title: Lines(title, heartbeat)
        return
    display = NotebookDisplay() if is_notebook() else _terminal_display()
    bars = Bars(display, "")
    _activity_displays.append(bars)
    try:
        yield lambda title: Bars(display, title)
    finally:
        _activity_displays.remove(bars)
        display.stop()


_activities: list[str] = []
_activity_displays: list[Progress] = []


@contextmanager
def activity(title: str) -> Iterator[None]:
    """Show that work without measurable progress is running, such as loading a model.

    Terminals and notebooks show ``title`` at once, logs after a second.
    """
    _activities.append(title)
    for show in tuple(_activity_displays):
        show(ProgressUpdate(title, 0, 1, is_counted=False))
    try:
        yield
    finally:
        _activities.remove(title)
        for show in tuple(_activity_displays):
            show(ProgressUpdate(title, 1, 1, is_counted=False))


def is_watched() -> bool:
    """Return whether standard error is a terminal or this process is the kernel of a notebook."""
    return is_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def _terminal_display() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class TimeLeft(TimeRemainingColumn):
        """Remaining time of counted work; other work has its own estimate, or none."""

        def render(self, task: Task) -> Text:
            return super().render(task) if task.fields["count"] else Text()

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TimeLeft(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


class NotebookDisplay:
    """Progress bars in the output of a cell, with the methods of ``rich.progress.Progress``.

    In a notebook, rich's own display needs ipywidgets.
    """

    def __init__(self) -> None:
        self._tasks: list[dict[str, Any]] = []
        self._handle: Any = None
        self._due_time = 0.0

    def start(self) -> None:
        if self._handle is None:
            display = import_module("IPython.display").display
            self._handle = display(_cell_output([]), raw=True, display_id=True)

    def add_task(self, description: str, **fields: Any) -> int:
        self._tasks.append({"description": description, **fields})
        return len(self._tasks) - 1

    def update(self, task: int, **fields: Any) -> None:
        self._tasks[task] |= fields
        now = time.monotonic()
        if now >= self._due_time:
            self._due_time = now + NOTEBOOK_SECONDS
            self._show([task for task in self._tasks if task["visible"]])

    def stop(self) -> None:
        """Remove the bars."""
        self._show([])

    def _show(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        if self._handle is not None:
            self._handle.update(_cell_output(tasks), raw=True)


def _cell_output(tasks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the bars of tasks as HTML and as plain text."""
    lines = [_join(" ", task["description"], task["count"]) for task in tasks]
    bars = (
        f'<div><progress value="{task["completed"]}" max="{task["total"]}"></progress> '
        f"{html.escape(line)}</div>"
        for task, line in zip(tasks, lines, strict=True)
    )
    return {"text/plain": "\n".join(lines), "text/html": "".join(bars)}


class Bars:
    """Show progress as one bar per unfinished task, from the first update on."""

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
            completed=update.count,
            total=update.total or 1,
            count=f"{update.count:,}/{update.total:,}" if update.is_counted else "",
            description=escape_line(
                _join(": ", self.title, _join(", ", update.title, update.detail))
            ),
            visible=update.count < update.total,
        )


class Heartbeat:
    """Thread that prints a line for work that takes a second, then every ``LINE_SECONDS``.

    Loading a model, or one training step on a CPU, may take minutes without an update.
    """

    def __init__(self) -> None:
        self.last_update = ""
        """Line of the latest progress update."""
        self.work: Hashable = None
        """Name of the work of the latest progress update."""
        self.printed_work: set[Hashable] = set()
        self._start = self._last_line = time.monotonic()
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_done.set()
        # Python's end stops a thread in the middle of a line, and aborts if it held the stream.
        self._thread.join()

    def print(self, line: str) -> None:
        self._last_line = time.monotonic()
        sys.stderr.write(f"{escape_line(line)}\n")
        sys.stderr.flush()

    def _run(self) -> None:
        last_work: Hashable = None
        while not self._is_done.wait(HEARTBEAT_SECONDS):
            now = time.monotonic()
            activity = next(iter(_activities[-1:]), "")
            work = activity or self.work
            if work is not None and work == last_work and work not in self.printed_work:
                self.printed_work.add(work)
                self.print(activity or self.last_update)
            last_work = work
            if now - self._last_line >= LINE_SECONDS:
                minutes, seconds = divmod(round(now - self._start), 60)
                line = _join(": ", f"still working after {minutes}:{seconds:02}", activity)
                self.print(_join("; ", line, self.last_update and f"last step: {self.last_update}"))


class Lines:
    """Show progress as lines of text, at most one per ``LINE_SECONDS`` and task."""

    def __init__(self, title: str, heartbeat: Heartbeat) -> None:
        self.title = title
        self.heartbeat = heartbeat
        self.starts: dict[str, tuple[float, int]] = {}
        self.last_counts: dict[str, int] = {}
        self.due_times: dict[tuple[str, bool], float] = {}

    def __call__(self, update: ProgressUpdate) -> None:
        now = time.monotonic()
        is_first = update.title not in self.starts
        # A task starts again in another epoch.
        if is_first or update.count < self.last_counts[update.title]:
            self.starts[update.title] = now, update.count
        self.last_counts[update.title] = update.count
        if is_first:
            self.due_times[update.title, False] = now + LINE_SECONDS
            self.due_times[update.title, True] = now
        self.heartbeat.last_update = self._line(update, now)
        self.heartbeat.work = (self.title, update.title)
        if now < self.due_times[update.title, update.is_notable]:
            return
        if not is_first or not update.is_notable:
            pause = NOTABLE_SECONDS if update.is_notable else LINE_SECONDS
            self.due_times[update.title, update.is_notable] = now + pause
        self.heartbeat.printed_work.add(self.heartbeat.work)
        self.heartbeat.print(self.heartbeat.last_update)

    def _line(self, update: ProgressUpdate, now: float) -> str:
        count = f"{update.title} {update.count:,} of {update.total:,}" if update.is_counted else ""
        is_timed = update.is_counted and not update.is_notable
        time_left = self._time_left(update, now) if is_timed else ""
        return _join(": ", self.title, _join(", ", count, update.detail, time_left))

    def _time_left(self, update: ProgressUpdate, now: float) -> str:
        start, num_before = self.starts[update.title]
        if update.count <= num_before or update.count >= update.total:
            return ""
        minutes = (now - start) * (update.total - update.count) / (update.count - num_before) / 60
        if minutes < 1:
            return "less than a minute left"
        return f"about {pluralize(round(minutes), 'minute')} left"


def _join(separator: str, *texts: str) -> str:
    return separator.join(text for text in texts if text)
