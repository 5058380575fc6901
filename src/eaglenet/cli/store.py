"""``eaglenet store``: what is in a store, and looking after it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from eaglenet.cli.options import StoreName
from eaglenet.cli.terminal import counted, one_line

commands = typer.Typer(no_args_is_help=True, help="Inspect, measure and repair a store.")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="store")


@commands.command()
def info(store: StoreName, as_json: AsJson = False) -> None:
    """Clips, files, hours, model, and how the store is searched."""
    from eaglenet.search.engine import Engine

    values = Engine.open(store).info()
    if as_json:
        print(json.dumps(values, ensure_ascii=False))
        return
    for name, value in values.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        line = f"{name:<10} {text:.2f}" if isinstance(value, float) else f"{name:<10} {text}"
        print(one_line(line))


@commands.command()
def files(store: StoreName, as_json: AsJson = False) -> None:
    """Every file the indexer has dealt with, and why some were left out."""
    from eaglenet.search.store.base import open_store

    rows = sorted(open_store(store).tables().files(), key=lambda row: row.path)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], ensure_ascii=False))
        return
    print(f"{counted(len(rows), 'file')} in {store}", file=sys.stderr)
    for row in rows:
        clips = counted(row.num_clips, "clip")
        text = f"{row.status:<7} {clips:>11}  {row.path}  {row.reason}".rstrip()
        print(one_line(text))


@commands.command()
def remove(
    store: StoreName,
    paths: Annotated[list[str], typer.Argument(help="Files, or folders with everything in them.")],
) -> None:
    """Forget files: they are found no more. The files themselves are left alone."""
    from eaglenet.indexing.maintenance import remove as forget

    found = forget(store, paths)
    print(f"{counted(len(found), 'file')} of {store} forgotten")
    print("indexing their folder again adds them again", file=sys.stderr)


@commands.command()
def recall(
    store: StoreName,
    k: Annotated[int, typer.Option("-k", min=1, help="Length of the shortlists.")] = 100,
    queries: Annotated[int, typer.Option(min=1, help="Clips used as queries.")] = 100,
    as_json: AsJson = False,
) -> None:
    """How much of the exact shortlist the store's codes find, and how fast."""
    from eaglenet.indexing.maintenance import recall as measure

    result = measure(store, k=k, num_queries=queries)
    if as_json:
        print(json.dumps(asdict(result)))
        return
    print(
        f"{store}, {result.index}: "
        f"recall@{result.k} {result.recall:.4f} over {result.queries} queries, "
        f"{result.milliseconds:.1f} ms per query (exact scan {result.exact_milliseconds:.1f} ms)"
    )


@commands.command()
def repair(store: StoreName) -> None:
    """Rebuild what searching reads from the durable table."""
    from eaglenet.indexing.maintenance import repair as rebuild

    print(f"{counted(rebuild(store), 'clip')} of {store} can be searched")


@commands.command()
def verify(store: StoreName, as_json: AsJson = False) -> None:
    """Compare everything in a store with its checksums; names what is damaged."""
    from eaglenet.indexing.maintenance import verify as compare

    found = compare(store)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"whole: {counted(found.clips, 'clip')} of {counted(found.files, 'file')} in {store}")
