"""``eaglenet store``: inspect and maintain a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from eaglenet.cli.options import AsJson, StoreName
from eaglenet.cli.terminal import pluralize, print_json, print_line

commands = typer.Typer(no_args_is_help=True, help="Inspect, measure and repair a store.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="store")


@commands.command()
def info(store: StoreName, as_json: AsJson = False) -> None:
    """Show clips, files, hours, model, and how the store is searched."""
    from eaglenet.search.engine import Engine

    values = Engine.open(store).info()
    if as_json:
        print_json(values)
        return
    for name, value in values.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        line = f"{name:<10} {text:.2f}" if isinstance(value, float) else f"{name:<10} {text}"
        print_line(line)


@commands.command()
def files(store: StoreName, as_json: AsJson = False) -> None:
    """List all indexed files, and why others were skipped."""
    from eaglenet.search.store.base import open_store

    rows = sorted(open_store(store).tables().files(), key=lambda row: row.path)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_line(f"{pluralize(len(rows), 'file')} in {store}", is_error=True)
    for row in rows:
        clips = pluralize(row.num_clips, "clip")
        print_line(f"{row.status:<7} {clips:>11}  {row.path}  {row.reason}".rstrip())


@commands.command()
def remove(
    store: StoreName,
    paths: Annotated[list[str], typer.Argument(help="Files, or folders with everything in them.")],
) -> None:
    """Remove files from a store. The files themselves are not changed."""
    from eaglenet.indexing.maintenance import remove as remove_files

    removed = remove_files(store, paths)
    print_line(f"removed {pluralize(len(removed), 'file')} from {store}")
    print_line("indexing their folder again adds them again", is_error=True)


@commands.command()
def recall(
    store: StoreName,
    k: Annotated[int, typer.Option("-k", min=1, help="Compare shortlists of this length.")] = 100,
    queries: Annotated[int, typer.Option(min=1, help="Use this many clips as queries.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure how much of the exact shortlist the codes of a store find, and how fast."""
    from eaglenet.indexing.maintenance import recall as measure

    result = measure(store, k=k, num_queries=queries)
    if as_json:
        print_json(asdict(result))
        return
    print_line(
        f"{store}, {result.index}: "
        f"recall@{result.k} {result.recall:.4f} over {result.queries} queries, "
        f"{result.milliseconds:.1f} ms per query (exact scan {result.exact_milliseconds:.1f} ms)"
    )


@commands.command()
def repair(store: StoreName) -> None:
    """Rebuild the files that searching reads from the durable table."""
    from eaglenet.indexing.maintenance import repair as rebuild

    print_line(f"{pluralize(rebuild(store), 'clip')} of {store} can be searched")


@commands.command()
def verify(store: StoreName, as_json: AsJson = False) -> None:
    """Compare everything in a store with its checksums, and name what is damaged."""
    from eaglenet.indexing.maintenance import verify as compare

    counts = compare(store)
    if as_json:
        print_json(asdict(counts))
        return
    clips, files = pluralize(counts.clips, "clip"), pluralize(counts.files, "file")
    print_line(f"intact: {clips} of {files} in {store}")
