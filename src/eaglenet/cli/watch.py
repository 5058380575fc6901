"""``eaglenet watch``: index folders again whenever they change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.dataclass_options import add_command
from eaglenet.cli.index import MODEL_HELP, print_report
from eaglenet.cli.options import StoreName
from eaglenet.cli.terminal import print_line
from eaglenet.core.errors import UsageError
from eaglenet.indexing.options import IndexOptions


def register(app: typer.Typer) -> None:
    add_command(app, "watch", watch, help="Index folders whenever they change, until Ctrl-C.")


def watch(
    store: StoreName,
    paths: Annotated[list[Path], typer.Argument(help="Folders.")],
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    interval: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="Scan the folders this often."),
    ] = 10.0,
    rounds: Annotated[
        int | None, typer.Option(min=1, hidden=True, help="Stop after this many reports.")
    ] = None,
    *,
    options: IndexOptions,
) -> None:
    """Changes are indexed once files are complete; deleted files are dropped from the store."""
    for path in paths:
        if not path.expanduser().is_dir():
            raise UsageError(f"{path}: no such folder; `eaglenet watch` takes folders")
    print_line(f"watching for {store}; stop with Ctrl-C", is_error=True)
    try:
        from eaglenet.indexing.index import check_request
        from eaglenet.indexing.watch import watch as watch_folders

        check_request(paths, store, options)
        reports = watch_folders(paths, store, model, options=options, interval=interval)
        for number, report in enumerate(reports, 1):
            for name in report.new_files:
                print_line(f"indexed {name}")
            print_report(report, store)
            if number == rounds:
                return
            print_line("waiting for changes", is_error=True)
    except KeyboardInterrupt:
        print_line(f"stopped watching; {store} has everything indexed so far", is_error=True)
