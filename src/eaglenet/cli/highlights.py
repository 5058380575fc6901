"""``eaglenet highlights``: moments unlike what a store usually shows."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.dataclass_options import add_command
from eaglenet.cli.options import AsJson, StoreName
from eaglenet.cli.results import print_result
from eaglenet.cli.terminal import begin_short_command, pluralize, print_json, print_line
from eaglenet.core.errors import UsageError, store_option
from eaglenet.search.options import Filters


def register(app: typer.Typer) -> None:
    add_command(app, "highlights", highlights, help="List moments unlike everything else.")


def highlights(
    store: StoreName,
    folder: Annotated[
        Path | None, typer.Argument(help="Only files below this folder; default: all.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--results", help="Show this many moments.")] = 10,
    as_json: AsJson = False,
    *,
    filters: Filters,
) -> None:
    """List the most unusual moments of a store or of a folder in it; no model is needed."""
    if folder is not None:
        if filters.path is not None:
            raise UsageError("FOLDER and --path cannot be combined; give one of them")
        path = os.path.join(os.path.abspath(folder.expanduser()), "*")
        filters = dataclasses.replace(filters, path=path)
    begin_short_command()
    from eaglenet.search.engine import Engine
    from eaglenet.search.highlights import find_highlights
    from eaglenet.search.hits import SearchResult
    from eaglenet.search.options import SearchOptions
    from eaglenet.search.query import Query

    engine = Engine.open(store)
    hits = find_highlights(engine, k, filters)
    if as_json:
        print_json({"hits": [asdict(hit) for hit in hits]})
        return
    num_clips = len(engine.snapshot)
    if not num_clips:
        command = f"eaglenet index PATH{store_option(store)}"
        print_line(f"{store} holds no clips yet; add videos with: {command}", is_error=True)
        return
    ids = {hit.clip_id: engine.short_id(hit.clip_id) for hit in hits}
    reason = "" if hits else engine.why_empty(SearchOptions(filters=filters))
    print_result(SearchResult(Query("unusual moments"), hits), ids, reason)
    print_line(f"compared with {pluralize(num_clips, 'clip')} in {store}", is_error=True)
