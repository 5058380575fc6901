"""``eaglenet index``: bring a store up to date with folders of videos."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.store import one_line

if TYPE_CHECKING:
    from eaglenet.search.indexing.report import IndexReport, Problem, Progress

LINE_SECONDS = 30.0
"""Between two lines of progress in a log."""
LEFT_OUT = 3
"""Exit code: finished, but some files were left out."""


def register(app: typer.Typer) -> None:
    app.command("index", help="Index videos so that they can be searched.")(index)


def index(
    paths: Annotated[list[Path], typer.Argument(help="Folders and video files.")],
    store: Annotated[str, typer.Option(help="Folder of the store; made if needed.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="A name (demo), a model folder, or a hub id. Default: the store's own; for a new "
            "store openai/clip-vit-base-patch32."
        ),
    ] = None,
    clip_seconds: Annotated[float, typer.Option(help="Length of clips, seconds.")] = 10.0,
    overlap: Annotated[float, typer.Option(help="How far clips overlap, seconds.")] = 2.0,
    shots: Annotated[bool, typer.Option("--shots", help="Cut at shot changes.")] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Nearest keyframes instead of exact frames.")
    ] = False,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Forget files that are gone.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try unchanged files again that failed before.")
    ] = False,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="New store: faster exact ranking for six times the disk."),
    ] = False,
    tags: Annotated[
        Path | None, typer.Option(help="CSV with the columns path and tags (a;b;c).")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that decode; 0: none. Default: by the work."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where to encode: cpu, cuda.")] = None,
    executor: Annotated[
        str, typer.Option(help="Who does the work: local, or one that another package brings.")
    ] = "local",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Index videos. Unchanged files are left alone; an interrupted run continues."""
    from eaglenet.search.indexing.files import read_tags
    from eaglenet.search.indexing.videos import IndexOptions, index_videos
    from eaglenet.search.store.manifest import Splitting

    options = IndexOptions(
        splitting=Splitting(clip_seconds, overlap, shots),
        fast=fast,
        drop_missing=drop_missing,
        retry=retry,
        prepare=prepare,
        workers=workers,
        device=device,
        executor=executor,
    )
    given_tags = read_tags(tags) if tags is not None else {}
    with _Bar(shown=not as_json) as bar:
        report = index_videos(
            paths, store, model, options=options, tags=given_tags, on_progress=bar.update
        )
    if as_json:
        print(json.dumps(asdict(report), ensure_ascii=False))
    else:
        _print_report(report, store)
    if not (report.indexed or report.unchanged or report.aliases or report.problems):
        names = ", ".join(map(str, paths))
        print(f"no video was found in {names}; hidden files are left out", file=sys.stderr)
    if report.unused_tags:
        print(f"{tags} names files that were not found in the given paths:", file=sys.stderr)
        for name in report.unused_tags:
            print(f"  {name}", file=sys.stderr)
    if report.problems:
        raise typer.Exit(LEFT_OUT)


class _Bar:
    """A progress bar on standard error; now and then a line where that is not a terminal."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self._bar: Any = None
        self._told = time.monotonic()

    def __enter__(self) -> _Bar:
        if self.shown and not sys.stderr.isatty():
            print("loading the model, looking for videos", file=sys.stderr, flush=True)
        elif self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            self._bar = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("loading the model, looking for videos", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, progress: Progress) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=progress.bytes_total or 1,
                completed=progress.bytes_done,
                description=describe(progress),
            )
        elif self.shown and time.monotonic() - self._told >= LINE_SECONDS:
            self._told = time.monotonic()
            print(describe(progress), file=sys.stderr, flush=True)


def describe(progress: Progress) -> str:
    """One line: videos, clips, hours, speed, time left, skipped."""
    left = progress.seconds_left
    parts = [
        f"{progress.done + progress.skipped}/{progress.total} videos",
        f"{progress.clips} clips",
        f"{progress.hours:.2f} h",
        f"{progress.speed:.1f}x real time",
        "time left unknown" if left is None else f"{_clock(left)} left",
    ]
    if progress.skipped:
        parts.append(f"{progress.skipped} skipped")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _print_report(report: IndexReport, store: str) -> None:
    print(
        f"{report.indexed} videos indexed ({report.hours:.2f} h in {_clock(report.elapsed)}), "
        f"{report.unchanged} unchanged, {report.aliases} copies of others"
    )
    if report.dropped:
        print(f"{report.dropped} dropped that are gone")
    if report.missing:
        print(f"{report.missing} of the store are gone; --drop-missing forgets them")
    print(f"{report.clips} clips in {store}, searched by {report.index}")
    _print_files("files were left out", report.problems)
    _print_files("files are in the store although parts of them are lost", report.damaged)


def _print_files(title: str, files: Sequence[Problem]) -> None:
    if files:
        print(f"{len(files)} {title}:", file=sys.stderr)
    for file in files:
        print(one_line(f"  {file.path}: {file.reason}"), file=sys.stderr)
