"""`eaglenet data`: what is really on disk, and frames decoded once for all epochs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from eaglenet.cli.data_options import (
    DATASETS_WITH_VIDEOS,
    EXAMPLE,
    AsJson,
    Dataset,
    Root,
    Settings,
    VideoFolders,
    Workers,
)
from eaglenet.cli.progress import shown_progress
from eaglenet.cli.terminal import lines
from eaglenet.errors import UsageError
from eaglenet.settings import check_choices, read_assignments

if TYPE_CHECKING:
    from eaglenet.data.checks import CheckReport
    from eaglenet.data.records import Split
    from eaglenet.types import FrameSpec

app = typer.Typer(help="Check datasets and cache their frames.", no_args_is_help=True)

MAX_REASONS = 5  # printed of each kind; --json lists them all


@app.command()
def check(
    dataset: Annotated[str, typer.Argument(help=f"{DATASETS_WITH_VIDEOS}; features or frames.")],
    root: Root,
    videos: VideoFolders = None,
    splits: Annotated[
        list[str] | None, typer.Option("--split", help="Only this split; repeatable.")
    ] = None,
    settings: Settings = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Take frames of every video, not only open it.")
    ] = False,
    probe: Annotated[bool, typer.Option(help="Open every file that was found.")] = True,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Count found, missing and undecodable videos, captions, and videos that splits share.

    Exit code 0: all fine. 3: videos are missing or cannot be decoded. 1: broken annotations, or
    two splits share a video.
    """
    from eaglenet.data.checks import check_dataset
    from eaglenet.data.frame_source import FRAMES, check_frames
    from eaglenet.experiments.feature_data import FEATURES

    if dataset == FEATURES:
        from eaglenet.cli.feature_files import check_features

        check_features(root, as_json)
        return
    options = read_assignments(settings, EXAMPLE)
    if dataset == FRAMES:
        report = check_frames(root, splits=splits, decode=decode, **options)
    else:
        with shown_progress(quiet=as_json) as announce:
            report = check_dataset(
                dataset,
                root,
                splits=splits,
                video_folders=videos or (),
                decode=decode,
                probe_files=probe,
                workers=workers,
                progress=announce(""),
                **options,
            )
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        show(report)
    raise typer.Exit(report.exit_code)


@app.command()
def cache(
    dataset: Dataset,
    root: Root,
    output: Annotated[
        Path, typer.Option("--output", help="Folder of caches; train with --set data.cache=it.")
    ],
    splits: Annotated[
        list[str] | None, typer.Option("--split", help="Splits to cache; train if none is given.")
    ] = None,
    videos: VideoFolders = None,
    settings: Settings = None,
    num_frames: Annotated[int, typer.Option("--frames", help="Frames per video.")] = 12,
    size: Annotated[int, typer.Option("--size", help="Side of a frame in pixels.")] = 224,
    sampling: Annotated[str, typer.Option(help="uniform, per_second or whole_rate.")] = "uniform",
    resize: Annotated[str, typer.Option(help="crop or stretch.")] = "crop",
    short: Annotated[
        str, typer.Option(help="For videos with too few frames: repeat, mask or zeros.")
    ] = "repeat",
    square_pixels: Annotated[
        bool, typer.Option("--square-pixels", help="Ignore the pixel aspect, as OpenCV does.")
    ] = False,
    encoding: Annotated[str, typer.Option(help="raw (fast) or jpeg (small).")] = "raw",
    estimate_only: Annotated[
        bool, typer.Option("--estimate", help="Show the size and stop.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try skipped videos again.")] = False,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Decode every video once into a packed file. Interrupted, the same command continues.

    Training, evaluation and comparisons with ``--set data.cache=OUTPUT`` and the same frames
    (``eaglenet recipes show`` lists them under data.frames) then decode nothing.

    Exit code 3 when some videos had to be skipped; they are listed with reasons.
    """
    from eaglenet.data import DATASETS
    from eaglenet.data.frame_journal import Encoding
    from eaglenet.types import FrameSpec

    if encoding not in get_args(Encoding):
        raise UsageError(f"--encoding {encoding!r}; choose one of {', '.join(get_args(Encoding))}")
    chosen: dict[str, Any] = {"sampling": sampling, "resize": resize, "short": short}
    spec = FrameSpec(num_frames=num_frames, size=size, square_pixels=square_pixels, **chosen)
    check_choices(spec)
    options = read_assignments(settings, EXAMPLE)
    loaded = [
        DATASETS[dataset].load(root, name, video_folders=videos or (), **options)
        for name in splits or ["train"]
    ]
    results = [
        cache_split(split, spec, output, encoding, workers, retry, estimate_only, as_json)
        for split in loaded
    ]
    if as_json:
        print(json.dumps(results, indent=2))
    if not estimate_only and any(result["skipped"] for result in results):
        raise typer.Exit(3)


def cache_split(
    split: Split,
    spec: FrameSpec,
    output: Path,
    encoding: Any,
    workers: int,
    retry: bool,
    estimate_only: bool,
    quiet: bool,
) -> dict[str, Any]:
    from eaglenet.data.frame_cache import FrameCache, cache_folder, estimate

    folder = cache_folder(output, split.dataset, spec)
    expected = estimate(split, spec, encoding)
    result: dict[str, Any] = {
        "split": split.name,
        "videos": len(split),
        "found": len(split) - len(split.missing),
        "estimated_bytes": expected,
    }
    if not quiet:
        about = "" if encoding == "raw" else "about "
        print(
            f"{split.name}: {result['found']:,} of {len(split):,} videos found, "
            f"{about}{expected / 1e9:.2f} GB"
        )
    if estimate_only:
        return result
    with shown_progress(quiet=quiet) as announce:
        built = FrameCache.build(
            split,
            spec,
            folder,
            workers,
            encoding=encoding,
            retry_skipped=retry,
            progress=announce(""),
        )
    skipped = {
        video.video_id: built.skipped.get(video.video_id, "not cached")
        for video, here in zip(split.videos, built.available.tolist(), strict=True)
        if not here
    }
    result |= {"cached": len(split) - len(skipped), "skipped": skipped, "bytes": built.num_bytes}
    if not quiet:
        print(f"{split.name}: {result['cached']:,} of {len(split):,} cached in {folder}")
        for video_id, reason in list(skipped.items())[:MAX_REASONS]:
            print(printable(f"  skipped {video_id}: {reason}"))
        if len(skipped) > MAX_REASONS:
            print(f"  and {len(skipped) - MAX_REASONS} more; --json lists them all")
    return result


def show(report: CheckReport) -> None:
    """The report as a table, with the first few reasons of each kind."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from eaglenet.data.checks import VideoProblem, count_reasons

    console = Console()
    table = Table(title=escape(printable(f"{report.dataset} in {report.root}")))
    for column in ("split", "captions", "listed", "found", "missing", "undecodable", "left out"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split in report.splits:
        counts = (
            split.num_captions,
            split.num_videos,
            split.num_found,
            len(split.missing),
            len(split.undecodable),
            len(split.left_out),
        )
        table.add_row(split.name, *(f"{count:,}" for count in counts))
    console.print(table)
    lines = []
    for split in report.splits:
        lines.append(f"{split.summary}; {split.protocol}")
        missing = [VideoProblem(video_id, "no file found") for video_id in split.missing]
        for problems in (missing, split.undecodable, split.left_out):
            for reason, count in count_reasons(problems)[:MAX_REASONS]:
                first = next(entry.video_id for entry in problems if entry.reason == reason)
                lines.append(f"  {count:,} x {reason}, first {first}")
        if split.ambiguous:
            lines.append(
                f"  {len(split.ambiguous):,} ids fit several files, first {split.ambiguous[0]}; "
                "the first in path order is used"
            )
    for pair, shared in report.overlaps.items():
        lines.append(f"error: {pair} share {len(shared):,} videos, first {shared[0]}")
    for name, reason in report.broken.items():
        lines.append(f"error: {name}: {reason}")
    if not report.overlaps and not report.broken and len(report.splits) > 1:
        lines.append("no video is in two splits")
    # Plain text: paths and ids may hold brackets that rich would take for markup.
    print(printable("\n".join(lines)))


def printable(text: str) -> str:
    """File names need not be UTF-8, and may hold signs that upset a terminal."""
    return lines(text.encode(errors="replace").decode())


def register(root: typer.Typer) -> None:
    from eaglenet.cli import feature_files, frames

    feature_files.register(app)
    frames.register(app)
    root.add_typer(app, name="data")
