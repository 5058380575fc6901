"""``eaglenet watch``: index folders again whenever they change, and act on new moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.dataclass_options import add_command
from eaglenet.cli.index import MODEL_HELP, print_report
from eaglenet.cli.options import StoreName
from eaglenet.cli.results import format_time
from eaglenet.cli.terminal import print_line
from eaglenet.core.errors import UsageError
from eaglenet.indexing.options import IndexOptions
from eaglenet.search.confidence import SURE

if TYPE_CHECKING:
    from eaglenet.indexing.alerts import Alerts

ALERTS = "Alerts"


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
    alert: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Report new moments that show this; repeatable."),
    ] = None,
    min_confidence: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            rich_help_panel=ALERTS,
            metavar="PROBABILITY",
            help="With --alert: only moments that are right with at least this probability.",
        ),
    ] = SURE,
    command: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=ALERTS,
            metavar="COMMAND",
            help="With --alert: run this for each moment; it gets JSON on standard input.",
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=ALERTS,
            metavar="URL",
            help="With --alert: post each moment as JSON to this address.",
        ),
    ] = None,
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
    alerts = _make_alerts(store, alert or [], min_confidence, command, webhook)
    print_line(f"watching for {store}; stop with Ctrl-C", is_error=True)
    try:
        from eaglenet.indexing.index import check_request
        from eaglenet.indexing.watch import watch as watch_folders

        check_request(paths, store, options)
        with alerts or nullcontext():
            reports = watch_folders(paths, store, model, options=options, interval=interval)
            for number, report in enumerate(reports, 1):
                for name in report.new_files:
                    print_line(f"indexed {name}")
                print_report(report, store)
                for moment in alerts.check() if alerts is not None else ():
                    _print_moment(moment)
                if number == rounds:
                    if alerts is not None:
                        alerts.finish()
                    return
                print_line("waiting for changes", is_error=True)
    except KeyboardInterrupt:
        print_line(f"stopped watching; {store} has everything indexed so far", is_error=True)


def _make_alerts(
    store: str,
    queries: Sequence[str],
    min_confidence: float,
    command: str | None,
    webhook: str | None,
) -> Alerts | None:
    if not queries:
        if command is not None or webhook is not None:
            raise UsageError("--command and --webhook act on alerts; add --alert TEXT")
        return None
    if command is not None and webhook is not None:
        raise UsageError("--command and --webhook cannot be combined; give one of them")
    from eaglenet.indexing.alerts import Alerts, make_command, make_webhook

    act = None
    if command is not None:
        act = make_command(command)
    elif webhook is not None:
        act = make_webhook(webhook)
    return Alerts(store, queries, min_confidence=min_confidence, act=act)


def _print_moment(moment: Mapping[str, Any]) -> None:
    span = f"{format_time(moment['start'])}-{format_time(moment['end'])}"
    confidence = f"{moment['confidence']:.0%}"
    print_line(f"alert: {moment['alert']}  {confidence}  {span}  {moment['path']}")
