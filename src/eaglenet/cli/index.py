"""``eaglenet index``: bring a store up to date with folders of videos."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.cli.options import StoreName
from eaglenet.cli.terminal import counted, one_line, shown_progress
from eaglenet.core.errors import UsageError
from eaglenet.core.platform import keep_freed_memory
from eaglenet.core.progress import Progress, ProgressUpdate

if TYPE_CHECKING:
    from eaglenet.indexing.report import FileProblem, IndexProgress, IndexReport, OnProgress

EXCLUDE_HELP = "Leave out what matches, as in .gitignore; repeatable. Or use .eaglenetignore files."
LEFT_OUT = 3
"""Exit code: finished, but some files were left out."""
NEW_STORE = (
    "a new store with the model {model}, which comes with the package and needs no network; a "
    "better and larger one is one option away: --model balanced, or best (see `eaglenet models`)"
)
"""Said once, when a store is made and no model is named."""


def register(app: typer.Typer) -> None:
    app.command("index", help="Index videos and pictures so that they can be searched.")(index)


def index(
    store: StoreName,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Folders, videos and pictures, s3:// too; with --like its own."),
    ] = None,
    files: Annotated[
        Path | None, typer.Option(metavar="LIST", help="Index the files of a list, one per line.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="Index the files of this store with its settings, for another --model; it can be "
            "searched meanwhile.",
        ),
    ] = None,
    swap: Annotated[
        bool,
        typer.Option("--swap", help="When complete, swap with the store of --like."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="A name (small, fast, balanced, best, multilingual: see `eaglenet models`), a "
            "model folder, or a hub id. Default: the store's own; for a new store small, which "
            "comes with the package."
        ),
    ] = None,
    clip_seconds: Annotated[float, typer.Option(help="Length of clips, seconds.")] = 10.0,
    overlap: Annotated[float, typer.Option(help="Overlap of clips, seconds.")] = 2.0,
    shots: Annotated[bool, typer.Option("--shots", help="Cut at shot changes.")] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Nearest keyframes instead of exact frames.")
    ] = False,
    exclude: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help=EXCLUDE_HELP)] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Forget files that are gone or excluded now.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try files that failed before again.")
    ] = False,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="New store: faster exact ranking for six times the disk."),
    ] = False,
    subtitles: Annotated[
        bool, typer.Option(help="Index subtitles in the files and beside them (.srt, .vtt, .ass).")
    ] = True,
    read_text: Annotated[
        bool, typer.Option("--read-text", help="Index text in frames; needs eaglenet[ocr].")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Index speech with this model of faster-whisper: a size (tiny, base, small, "
            "medium, large-v3, turbo), a folder or a hub id; needs eaglenet[speech].",
        ),
    ] = None,
    hubness: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Rank clips lower that are near to every sentence of this file, one a line; own: "
            "the model's own bank; off. Default: as the store is; new: own, where there is one.",
        ),
    ] = None,
    tags: Annotated[
        Path | None, typer.Option(help="CSV with the columns path and tags (a;b;c).")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Decoding processes; 0: none. Default: depends on the work."),
    ] = None,
    file_seconds: Annotated[
        float, typer.Option(min=1, help="Time for one file, plus 2 for each second of video.")
    ] = 600.0,
    file_memory: Annotated[
        float, typer.Option(min=0.1, help="GiB that decoding one file may take.")
    ] = 4.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="fp32, bf16, int8, or auto: fast on this machine.")
    ] = "auto",
    executor: Annotated[
        str, typer.Option(help="Where the work runs: local, ray, or one of another package.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="With --executor ray: HOST:PORT of the cluster. Default: RAY_ADDRESS."),
    ] = None,
    gpus_per_worker: Annotated[
        float, typer.Option(min=0, help="With --executor ray; 0.1: ten workers share a GPU.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Index videos. Unchanged files are left alone; an interrupted run continues."""
    keep_freed_memory()
    from eaglenet.indexing.executor import ClusterOptions
    from eaglenet.indexing.fetching import read_list
    from eaglenet.indexing.files import read_tags
    from eaglenet.indexing.index import IndexOptions, check_request, index_videos
    from eaglenet.indexing.rebuilding import (
        require_distinct_stores,
        require_complete,
        options_like,
        swap_stores,
        tags_like,
    )
    from eaglenet.search.model import DEFAULT_MODEL, takes_default
    from eaglenet.search.store.manifest import Splitting
    from eaglenet.video.limits import Limits

    options = IndexOptions(
        splitting=Splitting(clip_seconds, overlap, shots),
        fast=fast,
        exclude=tuple(exclude or ()),
        drop_missing=drop_missing,
        retry=retry,
        prepare=prepare,
        workers=workers,
        device=device,
        precision=precision,
        executor=executor,
        cluster=ClusterOptions(ray_address, gpus_per_worker),
        subtitles=subtitles,
        read_text=read_text,
        listen=listen,
        hubness=hubness,
        limits=Limits(memory=round(file_memory * 2**30), seconds=file_seconds),
    )
    if swap and like is None:
        raise UsageError("--swap swaps with the store of --like; give --like too")
    if like is not None:
        require_distinct_stores(store, like)
        roots, options = options_like(like, options)
        paths = paths or list(roots)
    listed = read_list(files) if files is not None else []
    if not paths and not listed:
        raise UsageError("nothing to index; give folders or files, or another store with --like")
    check_request(paths or (), store, options)
    given_tags = read_tags(tags) if tags is not None else {}
    if like is not None:
        given_tags |= tags_like(like, given_tags)
    with shown_progress(quiet=as_json) as announce:
        if not as_json:
            if takes_default(store, model):
                print(NEW_STORE.format(model=DEFAULT_MODEL), file=sys.stderr)
            print("loading the model, looking for videos", file=sys.stderr, flush=True)
        display = announce("")
        report = index_videos(
            paths or (),
            store,
            model,
            options=options,
            tags=given_tags,
            on_progress=told(display),
            files=listed,
            on_transcripts=display,
        )
    if as_json:
        print(json.dumps(asdict(report), ensure_ascii=False))
    else:
        print_report(report, store)
    if not (report.indexed or report.unchanged or report.aliases or report.problems):
        names = ", ".join([*(paths or ()), *([str(files)] if files is not None else [])])
        print(
            f"no video or picture was found in {names}; hidden files are skipped", file=sys.stderr
        )
    if report.unused_tags and tags is not None:
        print(f"{tags} lists files that were not found in the given paths:", file=sys.stderr)
        for name in report.unused_tags:
            print(one_line(f"  {name}"), file=sys.stderr)
    if swap and like is not None:
        require_complete(store, like, [problem.path for problem in report.problems])
        swap_stores(store, like)
        print(f"{like} is now the new store; the previous one is in {store}", file=sys.stderr)
    if report.problems:
        raise typer.Exit(LEFT_OUT)


def told(display: Progress | None) -> OnProgress:
    """Shows what an index run says of itself; a bar of bytes, words for the rest."""

    def update(state: IndexProgress) -> None:
        if display is not None:
            total = state.bytes_total or 1
            display(ProgressUpdate("indexing", state.bytes_done, total, describe(state), is_counted=False))

    return update


def describe(progress: IndexProgress) -> str:
    """One line: files, clips, hours, speed, time left, skipped."""
    left = progress.seconds_left
    parts = [
        f"{progress.done + progress.skipped}/{progress.total} files",
        counted(progress.clips, "clip"),
        *(
            [f"{progress.hours:.2f} h of video", f"{progress.speed:.1f}x real time"]
            if progress.hours
            else []
        ),
        "time left unknown" if left is None else f"{_clock(left)} left",
    ]
    if progress.skipped:
        parts.append(f"{progress.skipped} skipped")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def print_report(report: IndexReport, store: str) -> None:
    print(
        f"{_encoded(report)} indexed ({report.hours:.2f} h in "
        f"{_clock(report.elapsed)}), {report.unchanged} unchanged, "
        f"{counted(report.aliases, 'copy', 'copies')} of others"
    )
    if report.indexed:
        print(f"encoded on {report.device} in {report.precision}")
    if report.lines:
        print(f"{counted(report.lines, 'line')} of words read")
    if report.dropped:
        print(f"{counted(report.dropped, 'file')} forgotten: gone or excluded")
    if report.missing:
        files = counted(report.missing, "file of the store is", "files of the store are")
        print(f"{files} gone or excluded; --drop-missing forgets them")
    print(f"{counted(report.clips, 'clip')} in {store}, searched by {report.index}")
    _print_files("left out", report.problems)
    if report.problems:
        print("they are tried again when they change, or with --retry", file=sys.stderr)
    _print_files("in the store although parts are lost", report.damaged)


def _encoded(report: IndexReport) -> str:
    """Videos, and photographs where there are any."""
    videos = report.indexed - report.pictures
    parts = [counted(videos, "video")] if videos or not report.pictures else []
    parts += [counted(report.pictures, "picture")] if report.pictures else []
    return " and ".join(parts)


def _print_files(title: str, files: Sequence[FileProblem]) -> None:
    if files:
        print(f"{counted(len(files), 'file')} {title}:", file=sys.stderr)
    for file in files:
        print(one_line(f"  {file.path}: {file.reason}"), file=sys.stderr)
