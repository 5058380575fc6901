"""``eaglenet store``: inspect, maintain, export and import a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eaglenet.cli.options import (
    AsJson,
    StoreName,
    argument,
    check_output_file,
    check_output_folder,
    refuse_indexed_file,
)
from eaglenet.cli.terminal import print_json, print_line, print_record
from eaglenet.core.errors import UsageError, shell_join, shell_quote
from eaglenet.core.settings import option
from eaglenet.core.text import format_bytes, format_hours, format_time, pluralize

if TYPE_CHECKING:
    from eaglenet.store.base import Store

store = typer.Typer(no_args_is_help=True, help="Inspect, repair, export and import a store.")
FILES_SHOWN = 20
LABEL_WIDTH = 18


class TableFormat(StrEnum):
    parquet = "parquet"
    lance = "lance"
    csv = "csv"


@store.command()
def info(store: StoreName, as_json: AsJson = False) -> None:
    """Show the numbers of clips, files and hours, the model, search method and size."""
    from eaglenet.search.engine import Engine
    from eaglenet.store.store import open_store

    local_store = open_store(store)
    rows = local_store.files()
    values = {
        **Engine.open(store).info(),
        "damaged_files": sum(row.status == "done" and bool(row.reason) for row in rows),
        "skipped_files": sum(row.status == "failed" for row in rows),
    }
    usage = local_store.usage()
    total = sum(usage.values())
    if as_json:
        print_json({**values, "bytes": {"total": total, **usage}})
        return
    for label, text in _info_rows(values):
        print_line(f"{label:<{LABEL_WIDTH}} {text}".rstrip())
    if values["damaged_files"] or values["skipped_files"]:
        print_line("`eaglenet store files` lists damaged and skipped files", is_error=True)
    print_line(f"{'size on disk':<{LABEL_WIDTH}} {format_bytes(total)}")
    for name, size in sorted(usage.items(), key=lambda entry: -entry[1]):
        percentage = f"{size / max(total, 1):.0%}"
        print_line(f"  {name:<{LABEL_WIDTH - 2}} {format_bytes(size):>9}  {percentage:>4}")


def _info_rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the values of ``eaglenet store info`` as labels and texts."""
    copies = values["files"] - values["distinct_files"]
    keyframe_clips, unread = values["keyframe_clips"], values["files_with_unread_metadata"]
    dimensions, num_frames = values["dimensions"], values["frames_per_clip"]
    notes = {
        "files": f"{pluralize(copies, 'copy', 'copies')} of others included" if copies else "",
        "clips": f"{keyframe_clips:,} from keyframes only so far" if keyframe_clips else "",
    }
    seconds = f"{values['moment_seconds']:.3g} s"
    metadata = (
        f"{values['files_with_date']:,} with a date, {values['files_with_place']:,} with a place"
    )
    if unread:
        metadata += f", {unread:,} not read yet (index their folder again)"
    rows = {
        "store": values["store"],
        "folders": ", ".join(values["folders"]),
        "files": f"{values['files']:,}",
        "damaged files": f"{values['damaged_files']:,}, indexed except for unreadable parts",
        "skipped files": f"{values['skipped_files']:,}, not indexed",
        "recording data": metadata,
        "tags": ", ".join(values["tags"]) or "none",
        "video": format_hours(values["hours"]),
        "clips": f"{values['clips']:,}",
        "transcript lines": f"{values['transcript_lines']:,}",
        "model": f"{values['model']} ({values['method']})",
        "model fingerprint": f"{values['model_fingerprint']} (differs for other weights)",
        "vectors": f"{dimensions:,} dimensions, {num_frames} frames per clip",
        "moments": (
            f"whole clips of up to {seconds}: the model has one vector per clip"
            if num_frames == 1
            else f"exact to about {seconds}, the time between two frames"
        ),
        "search": f"{values['index']}, hubness bank: {values['hubness']}",
        "snapshot": f"{values['snapshot']}, the number of changes so far",
    }
    return [
        (label, f"{text} ({notes[label]})" if notes.get(label) else text)
        for label, text in rows.items()
    ]


@store.command()
def files(store: StoreName, as_json: AsJson = False) -> None:
    """List indexed files, and skipped files with the reason."""
    from eaglenet.indexing.report import DAMAGED
    from eaglenet.store.store import open_store

    rows = sorted(open_store(store).files(), key=lambda row: row.path)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_line(f"{pluralize(len(rows), 'file')} in {store}", is_error=True)
    for row in rows:
        clips = pluralize(row.num_clips, "clip")
        status = "skipped" if row.status == "failed" else "damaged" if row.reason else "indexed"
        print_line(
            f"{status:<7} {clips:>11}  {row.path}  {row.reason.removeprefix(DAMAGED)}".rstrip()
        )


@store.command()
def transcript(
    store: StoreName,
    file: str = argument("Path or name of an indexed video, or id of a clip."),
    save: Path | None = option(
        None,
        "Write the lines as .srt or .vtt.",
        metavar="FILE",
        check=lambda path: check_output_file(path, (".srt", ".vtt")),
    ),
    source: int = option(1, "Choose one of several transcripts.", metavar="NUMBER", min=1),
    as_json: AsJson = False,
) -> None:
    """Show or save a transcript of a video: subtitles, speech or on-screen text."""
    from eaglenet.search.engine import Engine
    from eaglenet.search.export import read_transcripts, write_transcript

    if save is not None and as_json:
        raise UsageError("--save and --json cannot be combined; use one of them")
    engine = Engine.open(store)
    transcripts = read_transcripts(engine, file)
    if source > max(len(transcripts), 1):
        raise UsageError(
            f"--source {source}: {file} has {pluralize(len(transcripts), 'transcript')}"
        )
    if not transcripts:
        raise UsageError(
            f"{file} has no transcript; `eaglenet index --listen MODEL` recognises speech, "
            "`--read-text` reads on-screen text"
        )
    transcript = transcripts[source - 1]
    if save is not None:
        refuse_indexed_file(save, engine)
        write_transcript(save, transcript)
        print_line(f"wrote {save}: {pluralize(len(transcript.lines), 'line')} ({transcript.title})")
    elif as_json:
        print_json([{**asdict(entry), "number": n} for n, entry in enumerate(transcripts, 1)])
        return
    else:
        for line in transcript.lines:
            print_line(f"{format_time(line.start):>8}  {line.text}")
    for number, entry in enumerate(transcripts, 1):
        if number != source:
            print_line(f"also: --source {number:d} ({entry.title})", is_error=True)


@store.command()
def remove(
    store: StoreName,
    paths: list[str] = argument("Files, or folders with all files below them."),
) -> None:
    """Remove files from a store. The files themselves stay on disk."""
    from eaglenet.indexing.maintenance import remove as remove_files

    files = remove_files(store, paths)
    print_line(f"removed {pluralize(len(files), 'file')} from {store}")
    print_line("indexing their folder would add them again", is_error=True)


@store.command()
def recall(
    store: StoreName,
    k: int = option(100, "Compare shortlists of this length.", name="-k", min=1),
    queries: int = option(100, "Use this many clips as queries.", min=1),
    as_json: AsJson = False,
) -> None:
    """Measure recall and speed of the approximate shortlist against the exact one."""
    from eaglenet.search.shortlist import measure_recall
    from eaglenet.store.store import open_store

    result = measure_recall(open_store(store), k=k, num_queries=queries)
    print_record(
        asdict(result),
        as_json,
        f"{store}, {result.index}: "
        f"recall@{result.k} {result.recall:.4f} over {result.queries} queries, "
        f"{result.milliseconds:.1f} ms per query (exact scan {result.exact_milliseconds:.1f} ms)",
    )


@store.command()
def verify(store: StoreName, as_json: AsJson = False) -> None:
    """Verify the checksums of a store, and report what is damaged."""
    from eaglenet.store.store import open_store

    counts = open_store(store).verify()
    clips, files = pluralize(counts.clips, "clip"), pluralize(counts.files, "file")
    print_record(asdict(counts), as_json, f"intact: {clips} of {files} in {store}")


@store.command()
def repair(store: StoreName, as_json: AsJson = False) -> None:
    """Rebuild a damaged store from its intact parts."""
    from eaglenet.store.store import kind_of, open_store

    result = kind_of(store).repair(store)
    if as_json:
        print_json(asdict(result))
        return
    for detail in result.details:
        print_line(detail, is_error=True)
    print_line(f"{pluralize(result.clips, 'clip')} of {store} can be searched")
    if result.incomplete_files:
        _print_incomplete(open_store(store), result.incomplete_files)


def _print_incomplete(store: Store, paths: Sequence[str]) -> None:
    """Print files that lack clips, and the command that indexes them again."""
    print_line(f"{pluralize(len(paths), 'file')} must be indexed again:", is_error=True)
    for path in paths[:FILES_SHOWN]:
        print_line(f"  {path}", is_error=True)
    if len(paths) > FILES_SHOWN:
        print_line(f"  and {len(paths) - FILES_SHOWN} more", is_error=True)
    roots = store.manifest.roots or ("FOLDER",)
    print_line(
        f"run: eaglenet index {shell_join(roots)} --store {shell_quote(store.location)}",
        is_error=True,
    )


@store.command()
def upgrade(store: StoreName) -> None:
    """Convert a store of an earlier version; the old store stays beside it."""
    from eaglenet.indexing.maintenance import upgrade_store
    from eaglenet.store.store import open_store

    result = upgrade_store(store)
    print_line(f"{store} is up to date: {pluralize(result.clips, 'clip')}")
    if result.old_folder is not None:
        print_line(
            f"the old store is in {result.old_folder}; delete it once the new one works",
            is_error=True,
        )
    if result.incomplete_files:
        _print_incomplete(open_store(store), result.incomplete_files)


@store.command("export")
def export_tables(
    store: StoreName,
    folder: Path = argument("New folder to write the tables to.", check=check_output_folder),
    table_format: TableFormat = option(
        TableFormat.parquet,
        "Write parquet (needs eaglenet[parquet]), lance (needs eaglenet[lance]) or csv "
        "(with vectors, but without frame features and thumbnails).",
        name="--format",
    ),
) -> None:
    """Write clips, files and transcripts as tables for other programs."""
    from eaglenet.indexing.exchange import export_store

    rows = export_store(store, folder, table_format.value)
    counts = ", ".join(f"{name} {count:,}" for name, count in rows.items() if count)
    print_line(f"exported to {folder}: {counts or 'an empty store'}")


@store.command("import")
def import_tables(
    store: StoreName,
    folder: Path = argument("Folder that `eaglenet store export` wrote."),
) -> None:
    """Add exported tables to a store; create the store if it does not exist."""
    from eaglenet.indexing.exchange import import_store

    print_line(f"{pluralize(import_store(folder, store), 'clip')} in {store}")
