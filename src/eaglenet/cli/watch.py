"""``eaglenet watch``: index folders again whenever they change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.index import EXCLUDE_HELP, print_report
from eaglenet.cli.options import StoreName
from eaglenet.cli.terminal import counted
from eaglenet.core.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("watch", help="Index folders whenever they change, until interrupted.")(watch)


def watch(
    store: StoreName,
    paths: Annotated[list[Path], typer.Argument(help="Folders.")],
    model: Annotated[
        str | None, typer.Option(help="As in `eaglenet index`; default: the store's own.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help=EXCLUDE_HELP)] = None,
    interval: Annotated[
        float, typer.Option(min=1, help="Seconds between scans; needed on network mounts.")
    ] = 10.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    rounds: Annotated[
        int | None, typer.Option(min=1, hidden=True, help="Stop after this many reports.")
    ] = None,
) -> None:
    """Changes are indexed when files have come to rest; files that are deleted are forgotten."""
    from eaglenet.indexing.index import IndexOptions
    from eaglenet.indexing.watch import watch as reports

    for path in paths:
        if not path.expanduser().is_dir():
            raise UsageError(f"{path}: no such folder; `eaglenet watch` takes folders")
    print(f"watching for {store}; ctrl-c ends it", file=sys.stderr, flush=True)
    options = IndexOptions(exclude=tuple(exclude or ()), device=device)
    found = reports(paths, store, model, options=options, interval=interval)
    for number, report in enumerate(found, 1):
        print_report(report, store)
        if number == rounds:
            return
        print(f"{counted(report.clips, 'clip')}; waiting for changes", file=sys.stderr, flush=True)
