"""Options and displays that the training commands share."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.errors import UsageError

if TYPE_CHECKING:
    from eaglenet.experiments.experiment import Experiment

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: section.field=value; repeatable."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the run.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="How many seeds (0, 1, ...).")]

LINE_SECONDS = 30.0
EVALUATION_SECONDS = 5.0  # small data is evaluated many times a minute


def find_experiment(name: str, settings: list[str] | None) -> Experiment:
    """A recipe by name, or an experiment saved as JSON, with `--set` applied."""
    from eaglenet.experiments.experiment import Experiment
    from eaglenet.recipes import RECIPES, build_recipe

    is_file = name not in RECIPES and Path(name).suffix == ".json" and Path(name).is_file()
    experiment = Experiment.load(Path(name)) if is_file else build_recipe(name)
    return experiment.override(settings or [])


def root_setting(root: str) -> list[str]:
    """`--root` as a setting; a wrong one is told before weights are looked for."""
    if root and not Path(root).expanduser().exists():
        raise UsageError(f"--root {root}: no such folder or file")
    return [f"data.root={root}"] if root else []


class ProgressBar:
    """Shows steps, loss and the last evaluation of a run; begins with its first event."""

    def __init__(self, bar: Any, title: str) -> None:
        self.bar = bar
        self.title = title
        self.task: Any = None
        self.score = ""
        self.work: dict[str, Any] = {}

    def event(self, record: dict[str, Any]) -> None:
        self.bar.start()
        kind = record["event"]
        if kind == "work":
            self._work(record)
        elif kind == "start":
            total = record["num_steps"]
            self.task = self.bar.add_task(self.title, total=total, completed=record["step"])
        elif kind == "evaluation":
            score = record["t2v"]["R@1"]
            self.score = f", epoch {record['epoch']}: t2v R@1 {score:.1f}"
        elif kind == "step":
            text = f"{self.title}: loss {record['total']:.4f}{self.score}"
            self.bar.update(self.task, completed=record["step"], description=text)

    def _work(self, record: dict[str, Any]) -> None:
        """A bar of its own for what comes before or after the steps."""
        title = record["title"]
        if title not in self.work:
            self.work[title] = self.bar.add_task(f"{self.title}: {title}", total=record["total"])
        self.bar.update(self.work[title], completed=record["done"])


class ProgressLines:
    """The same as lines of text, for a log file: few enough to read them all."""

    def __init__(self, title: str) -> None:
        self.title = title
        now = time.monotonic()
        self.due = {"step": now + LINE_SECONDS, "work": now + LINE_SECONDS, "evaluation": now}
        self.num_steps = 0

    def event(self, record: dict[str, Any]) -> None:
        kind, now = record["event"], time.monotonic()
        if kind == "start":
            self.num_steps = record["num_steps"]
            self._tell(f"step {record['step']} of {self.num_steps}")
        elif now >= self.due.get(kind, float("inf")):
            self.due[kind] = now + (EVALUATION_SECONDS if kind == "evaluation" else LINE_SECONDS)
            self._tell(self._describe(record))

    def _describe(self, record: dict[str, Any]) -> str:
        if record["event"] == "work":
            return f"{record['title']}: {record['done']:,} of {record['total']:,}"
        if record["event"] == "evaluation":
            return f"epoch {record['epoch']}: t2v R@1 {record['t2v']['R@1']:.1f}"
        minutes = (self.num_steps - record["step"]) * record["seconds"] / 60
        place = f"step {record['step']} of {self.num_steps}"
        return f"{place}, loss {record['total']:.4f}, about {minutes:.0f} minutes left"

    def _tell(self, text: str) -> None:
        print(f"{self.title}: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Any]:
    """A function title -> progress for one run after another; shows nothing when ``quiet``."""
    if quiet:
        yield lambda title: None
        return
    if not sys.stderr.isatty():
        yield ProgressLines
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    try:
        yield lambda title: ProgressBar(bar, title)
    finally:
        bar.stop()


def print_table(title: str, header: list[str], cells: list[list[str]]) -> None:
    """A table on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(
            name.replace(" ", "\n"), justify="left" if index == 0 else "right", no_wrap=True
        )
    for row in cells:
        table.add_row(*row)
    console = Console()
    # A line that the terminal wraps is better than a number cut to "13...".
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)
