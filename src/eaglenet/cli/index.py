"""``eaglenet index`` and ``eaglenet watch``: add and update the files of a store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.cli.options import StoreName, argument
from eaglenet.cli.terminal import print_json, print_line
from eaglenet.core.errors import UsageError
from eaglenet.core.files import expand_home
from eaglenet.core.platform import keep_freed_memory
from eaglenet.core.progress import Heartbeat, Lines, show_progress
from eaglenet.core.settings import option
from eaglenet.core.text import format_time
from eaglenet.indexing.options import IndexOptions
from eaglenet.search.hit import SURE

if TYPE_CHECKING:
    from eaglenet.indexing.alerts import Alerts
    from eaglenet.indexing.report import IndexReport

INCOMPLETE = 3
"""Exit code of a complete run in which some files could not be indexed."""
NEW_STORE = (
    "new store with the model {model}, which is part of the package; larger models are more "
    "accurate: --model balanced or --model best (see `eaglenet models`)"
)
MODEL_HELP = (
    "Encode with this model: a name (see `eaglenet models`), a folder or a hub id. Default: the "
    "store's model; small for a new store."
)


def index(
    store: StoreName,
    paths: list[str] | None = argument(
        "Folders, videos, images and s3:// URLs; default: those of --like.", None
    ),
    model: str | None = option(None, MODEL_HELP),
    tags: Path | None = option(
        None, "Read tags from a CSV file: path,tags with a;b;c.", metavar="FILE"
    ),
    files: Path | None = option(
        None,
        "Also index the paths and URLs in this file, one per line.",
        group="Files",
        metavar="FILE",
    ),
    like: str | None = option(
        None,
        "Index the files of this store with its settings into --store.",
        group="Another model",
        metavar="STORE",
    ),
    swap: bool = option(
        False,
        "Exchange --store with the store of --like when it is complete.",
        group="Another model",
    ),
    *,
    options: IndexOptions,
    as_json: bool = option(False, "Print the report as JSON.", name="--json"),
) -> None:
    """Index videos and images so that they can be searched.

    Unchanged files are skipped; an interrupted run continues.
    """
    keep_freed_memory()
    from eaglenet.indexing import maintenance
    from eaglenet.indexing.fetching import read_list
    from eaglenet.indexing.files import read_tags
    from eaglenet.indexing.index import check_request, index_videos
    from eaglenet.indexing.report import show_on

    if swap and like is None:
        raise UsageError("--swap needs the other store: --like STORE")
    if like is not None:
        maintenance.require_distinct_stores(store, like)
        roots, options = maintenance.options_like(like, options)
        paths = paths or list(roots)
    listed_files = read_list(files) if files is not None else []
    if not paths and not listed_files:
        raise UsageError("nothing to index; name folders or files: eaglenet index FOLDER")
    check_request(paths or (), store, options)
    all_tags = read_tags(tags) if tags is not None else {}
    if like is not None:
        # The CSV file has precedence.
        all_tags = {**all_tags, **maintenance.tags_like(like, all_tags)}
    with show_progress(quiet=as_json) as announce:
        if not as_json:
            _announce(store, model)
        display = announce("")
        report = index_videos(
            paths or (),
            store,
            model,
            options=options,
            tags=all_tags,
            on_progress=show_on(display),
            files=listed_files,
            on_transcripts=display,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        print_report(report, store)
    num_used = report.indexed + report.completed + report.unchanged + report.aliases
    if not num_used and not report.problems:
        names = ", ".join([*(paths or ()), *([str(files)] if files is not None else [])])
        print_line(f"no videos or images in {names}; hidden files are skipped", is_error=True)
    if report.unused_tags and tags is not None:
        print_line(f"{tags} lists files that are not in these folders:", is_error=True)
        for name in report.unused_tags:
            print_line(f"  {name}", is_error=True)
    if swap and like is not None:
        maintenance.require_complete(store, like, [problem.path for problem in report.problems])
        maintenance.swap_stores(store, like)
        print_line(f"{like} is now the new store; {store} is the old one", is_error=True)
    if any(not problem.is_known for problem in report.problems):
        raise typer.Exit(INCOMPLETE)


def _announce(store: str, model: str | None) -> None:
    from eaglenet.store.store import kind_of

    if model is None and not kind_of(store).exists(store):
        from eaglenet.indexing.model import DEFAULT_MODEL

        print_line(NEW_STORE.format(model=DEFAULT_MODEL), is_error=True)
    print_line("looking for videos", is_error=True)


def print_report(report: IndexReport, store: str) -> None:
    """Print counts to standard output and problems to standard error."""
    from eaglenet.indexing.report import problem_lines

    for line in report.summary_lines(store):
        print_line(line)
    remarks = list(report.remark_lines())
    for title, files in report.problem_groups():
        remarks += problem_lines(title, files)
    if report.problems:
        remarks.append("files are tried again when they change, or with --retry")
    if any(problem.is_known for problem in (*report.problems, *report.damaged)):
        remarks.append("`eaglenet store files` lists the reasons")
    for line in remarks:
        print_line(line, is_error=True)


def watch(
    store: StoreName,
    paths: list[str] = argument("Folders to watch."),
    model: str | None = option(None, MODEL_HELP),
    interval: float = option(10.0, "Scan the folders at this interval.", metavar="SECONDS", min=1),
    alert: list[str] | None = option(
        None, "Report new moments that show this; repeatable.", metavar="TEXT"
    ),
    min_confidence: float = option(
        SURE,
        "With --alert: report only moments that match with at least this probability.",
        group="Alerts",
        metavar="PROBABILITY",
        min=0,
        max=1,
    ),
    command: str | None = option(
        None,
        "With --alert: run this for each moment, with JSON on standard input.",
        metavar="COMMAND",
    ),
    webhook: str | None = option(
        None, "With --alert: post each moment as JSON to this URL.", metavar="URL"
    ),
    rounds: Annotated[
        int | None, typer.Option(min=1, hidden=True, help="Stop after this many reports.")
    ] = None,
    *,
    options: IndexOptions,
) -> None:
    """Index folders whenever they change, until Ctrl-C.

    Changes are indexed once files are complete; deleted files are dropped from the store.
    """
    for path in paths:
        if not expand_home(path).is_dir():
            raise UsageError(f"{path}: no such folder; `eaglenet watch` takes folders")
    alerts = _make_alerts(store, alert or [], min_confidence, command, webhook)
    folders = ", ".join(paths)
    print_line(f"watching {folders} for the store {store}; stop with Ctrl-C", is_error=True)
    try:
        from eaglenet.indexing.index import check_request
        from eaglenet.indexing.report import show_on
        from eaglenet.indexing.watch import watch as watch_folders
        from eaglenet.search.confidence import format_confidence

        check_request(paths, store, options)
        _announce(store, model)
        with alerts or nullcontext():
            reports = watch_folders(
                paths,
                store,
                model,
                options=options,
                interval=interval,
                # The heartbeat is not started: no lines while nothing changes.
                on_progress=show_on(Lines("", Heartbeat())),
            )
            for number, report in enumerate(reports, 1):
                for name in report.new_files:
                    print_line(f"indexed {name}")
                print_report(report, store)
                for moment in alerts.check() if alerts is not None else ():
                    span = f"{format_time(moment['start'])}-{format_time(moment['end'])}"
                    confidence = format_confidence(moment["confidence"])
                    print_line(f"alert: {moment['alert']}  {confidence}  {span}  {moment['path']}")
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
        raise UsageError("--command and --webhook cannot be combined; use one of them")
    from eaglenet.indexing.alerts import Alerts, make_command, make_webhook

    act = None
    if command is not None:
        act = make_command(command)
    elif webhook is not None:
        act = make_webhook(webhook)
    return Alerts(store, queries, min_confidence=min_confidence, act=act)
