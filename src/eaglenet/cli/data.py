"""``eaglenet data``: check datasets, and store their frames and features."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from eaglenet.cli.demo import demo_world
from eaglenet.cli.options import AsJson, Device, argument, check_output_folder, print_table
from eaglenet.cli.terminal import print_record
from eaglenet.core.errors import UsageError
from eaglenet.core.progress import show_progress
from eaglenet.core.settings import check_choices, option, read_assignments, split_assignment
from eaglenet.core.text import escape_lines, pluralize, without_surrogates
from eaglenet.research.names import refuse_unknown_names

if TYPE_CHECKING:
    from eaglenet.research.data.checks import CheckReport

data = typer.Typer(help="Check datasets; store their frames and features.", no_args_is_help=True)
data.command("demo-world")(demo_world)

MAX_REASONS = 5
"""Problems printed per kind; ``--json`` lists them all."""
EXAMPLE = "train=7k"
DATASETS_WITH_VIDEOS = (
    "msrvtt, didemo, msvd, vatex, activitynet, lsmdc, youcook2, qvhighlights, charades-sta, tgif, "
    "folder (your own) or demo"
)
Dataset = Annotated[str, typer.Argument(help=f"Dataset: {DATASETS_WITH_VIDEOS}.")]
Root = Annotated[Path, typer.Option("--root", help="Read the dataset in this folder or file.")]
VideoFolders = Annotated[
    list[Path] | None,
    typer.Option("--videos", help="Look for video files in this folder first; repeatable."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help=f"Change a dataset option, e.g. {EXAMPLE}; repeatable."),
]
Workers = Annotated[int, typer.Option("--workers", help="Process this many files in parallel.")]


@data.command()
def check(
    dataset: str = argument(f"Dataset: {DATASETS_WITH_VIDEOS}; also features or frames."),
    *,
    root: Root,
    videos: VideoFolders = None,
    splits: list[str] | None = option(None, "Check only this split; repeatable.", name="--split"),
    settings: Settings = None,
    decode: bool = option(False, "Decode frames of every video instead of only opening it."),
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Count captions, found, missing and undecodable videos, and videos shared by splits.

    Exit code 0: no problems. 3: videos are missing or cannot be decoded. 1: broken annotations, or
    two splits share a video.
    """
    refuse_unknown_names(dataset=dataset)
    from eaglenet.research.data.checks import check_dataset
    from eaglenet.research.data.frame_folder import FRAMES, check_frames
    from eaglenet.research.experiments.stored_data import FEATURES

    if dataset == FEATURES:
        check_features(root, as_json)
        return
    options = read_assignments(settings, EXAMPLE)
    if dataset == FRAMES:
        report = check_frames(root, splits=splits, decode=decode, **options)
    else:
        with show_progress(quiet=as_json) as announce:
            report = check_dataset(
                dataset,
                root,
                splits=splits,
                video_folders=videos or (),
                decode=decode,
                workers=workers,
                progress=announce(""),
                **options,
            )
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        show(report)
    raise typer.Exit(report.exit_code)


@data.command()
def cache(
    dataset: Dataset,
    root: Root,
    output: Path = option(..., "Write caches into this folder.", check=check_output_folder),
    splits: list[str] | None = option(
        None, "Cache this split; default: train; repeatable.", name="--split"
    ),
    videos: VideoFolders = None,
    settings: Settings = None,
    num_frames: int = option(12, "Take this many frames per video.", name="--frames"),
    size: int = option(224, "Scale frames to this side in pixels."),
    sampling: str = option(
        "uniform",
        "Choose frames by uniform, middle_frames, before_middle, first_to_last, per_second, "
        "whole_rate, rounded_rate or second_pairs.",
        group="Frames",
    ),
    resize: str = option(
        "crop", "Fit frames into the square by crop, stretch or pad.", group="Frames"
    ),
    short: str = option(
        "repeat",
        "Fill up short videos by repeat, repeat_last, spread, mask or zeros.",
        group="Frames",
    ),
    square_pixels: bool = option(
        False, "Ignore the pixel aspect ratio, as OpenCV does.", group="Frames"
    ),
    encoding: str = option("raw", "Store frames as raw (fast) or jpeg (small).", group="Frames"),
    estimate_only: bool = option(False, "Print the estimated size and exit.", name="--estimate"),
    retry: bool = option(False, "Try skipped videos again.", group="Frames"),
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Decode every video once into a packed file. Run it again to continue after an interruption.

    Training, evaluation and comparisons with `--set data.cache=OUTPUT` and the same frames then
    decode nothing. `eaglenet recipes METHOD --json` lists the frames of a recipe (data.frames).

    Exit code 3: some videos were skipped; they are listed with reasons.
    """
    refuse_unknown_names(dataset=dataset)
    from eaglenet.core.types import FrameSpec
    from eaglenet.research.data import DATASETS
    from eaglenet.research.data.frame_cache import Encoding, FrameCache, cache_folder, estimate

    if encoding not in get_args(Encoding):
        raise UsageError(f"--encoding {encoding!r}; choose one of {', '.join(get_args(Encoding))}")
    choices: Any = {"sampling": sampling, "resize": resize, "short": short}
    kind: Any = encoding
    spec = FrameSpec(num_frames=num_frames, size=size, square_pixels=square_pixels, **choices)
    check_choices(spec)
    options = read_assignments(settings, EXAMPLE)
    loaded_splits = [
        DATASETS[dataset].load(root, name, video_folders=videos or (), **options)
        for name in splits or ["train"]
    ]
    results = []
    for split in loaded_splits:
        folder = cache_folder(output, split.dataset, spec)
        num_found = len(split) - len(split.missing)
        size = estimate(split, spec, kind)
        result = {"split": split.name, "videos": len(split), "found": num_found}
        results.append(result | {"estimated_bytes": size})
        if not as_json:
            about = "" if encoding == "raw" else "about "
            counts = f"{num_found:,} of {len(split):,} videos found"
            print(f"{split.name}: {counts}, {about}{size / 1e9:.2f} GB")
        if estimate_only:
            continue
        with show_progress(quiet=as_json) as announce:
            frames = FrameCache.build(
                split,
                spec,
                folder,
                workers,
                encoding=kind,
                retry_skipped=retry,
                progress=announce(""),
            )
        skipped_videos = {
            video.video_id: frames.skip_reasons.get(video.video_id, "not cached")
            for video, is_cached in zip(split.videos, frames.cached_mask.tolist(), strict=True)
            if not is_cached
        }
        num_cached = len(split) - len(skipped_videos)
        results[-1] |= {"cached": num_cached, "skipped": skipped_videos, "bytes": frames.num_bytes}
        if not as_json:
            print(f"{split.name}: {num_cached:,} of {len(split):,} cached in {folder}")
            for video_id, reason in list(skipped_videos.items())[:MAX_REASONS]:
                print(printable(f"  skipped {video_id}: {reason}"))
            if len(skipped_videos) > MAX_REASONS:
                print(f"  and {len(skipped_videos) - MAX_REASONS} more; --json lists them all")
    if as_json:
        print(json.dumps(results, indent=2))
    if any(result.get("skipped") for result in results):
        raise typer.Exit(3)


def show(report: CheckReport) -> None:
    """Print the report as a table, with the most common problems of each kind."""
    from eaglenet.research.data.records import VideoProblem

    header = ["split", "captions", "listed", "found", "missing", "undecodable", "left out"]
    cells = []
    for split in report.splits:
        problems = (split.missing, split.undecodable, split.left_out)
        counts = (split.num_captions, split.num_videos, split.num_found, *map(len, problems))
        cells.append([split.name, *(f"{count:,}" for count in counts)])
    # "folder in ." would name neither the data nor the place.
    title = f"dataset {report.dataset} in {Path(report.root).absolute()}"
    print_table(printable(title), header, cells)
    lines = []
    for split in report.splits:
        lines.append(f"{split.summary}; {split.protocol}")
        missing_problems = [VideoProblem(video_id, "no file found") for video_id in split.missing]
        for entries in (missing_problems, split.undecodable, split.left_out):
            reasons = Counter(entry.reason for entry in entries)
            for reason, count in reasons.most_common(MAX_REASONS):
                first = next(entry.video_id for entry in entries if entry.reason == reason)
                lines.append(f"  {count:,} x {reason}, first {first}")
        if split.ambiguous:
            lines.append(
                f"  {len(split.ambiguous):,} ids fit several files, first {split.ambiguous[0]}; "
                "the first in path order is used"
            )
    for pair, shared_ids in report.overlaps.items():
        lines.append(f"error: {pair} share {len(shared_ids):,} videos, first {shared_ids[0]}")
    for name, reason in report.broken.items():
        lines.append(f"error: {name}: {reason}")
    if report.verdict:
        lines.append(report.verdict)
    # Plain text: paths and ids may contain brackets, which rich would read as markup.
    print(printable("\n".join(lines)))


def printable(text: str) -> str:
    """Escape text for a terminal; file names may not be UTF-8."""
    return escape_lines(without_surrogates(text))


@data.command()
def features(
    model: str = argument(
        "Model with the towers: a CLIP folder or hub id, a model folder or a run."
    ),
    *,
    dataset: Dataset,
    output: Path = option(..., "Write the features into this folder.", check=check_output_folder),
    root: str = option("", "Read the dataset in this folder or file."),
    split: str = option("train", "Encode this split: train, val or test."),
    videos: VideoFolders = None,
    settings: Settings = None,
    experts: list[str] | None = option(
        None, "Also store features of another model, NAME=MODEL; repeatable.", name="--expert"
    ),
    words: bool = option(False, "Also store the text tower's feature of every token."),
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Encode a split once, so that heads train on stored features, in minutes.

    Train with `eaglenet train xpool --data features --root OUTPUT`; evaluate with `eaglenet
    evaluate RUN --features OUTPUT`. With --expert, the folder has the features of several models,
    for `eaglenet train mmt --data experts --root OUTPUT`.
    """
    refuse_unknown_names(dataset=dataset)
    from eaglenet.research.experiments.evaluation import export_features

    options = read_assignments(settings, EXAMPLE)
    if videos:
        options["video_folders"] = [str(folder) for folder in videos]
    with show_progress(quiet=as_json) as announce:
        source = export_features(
            model,
            dataset,
            root,
            output,
            split=split,
            options=options,
            experts=parse_experts(experts),
            words=words,
            device=device,
            progress=announce("features"),
        )
    lines = [f"{source.num_texts:,} texts and {source.num_videos:,} videos in {output}"]
    if source.missing:
        note = f"{pluralize(len(source.missing), 'video')} of the split not found"
        lines.append(f"{note}, first {source.missing[0]}")
    print_record({"output": str(output), **source.describe()}, as_json, *lines)


@data.command()
def demo_experts(
    output: Path = option(..., "Write the features into this folder.", check=check_output_folder),
    split: str = option("train", "Make this split: train, val or test."),
    count: int = option(600, "Make this many clips.", min=2),
    seed: int = option(0, "Make the world of this seed."),
    missing: float = option(0.3, "Leave out each expert for this fraction of videos, 0 to 0.5."),
    as_json: AsJson = False,
) -> None:
    """Write features of the demo world by five experts, each incomplete and sometimes missing.

    Train with `eaglenet train ce --data experts --root OUTPUT`.
    """
    from eaglenet.research.data.demo.dataset import WIDTHS, write_experts

    records = write_experts(output, split, count=count, seed=seed, missing=missing)
    videos, texts = len(records), len(records.texts)
    record = {"output": str(output), "videos": videos, "texts": texts, "experts": WIDTHS}
    line = f"{videos:,} videos, {texts:,} texts, {', '.join(WIDTHS)} in {output}"
    print_record(record, as_json, line)


@data.command()
def teach(
    model: str = argument("Teacher: a run or a model folder."),
    root: Path = option(..., "Encode this features folder, and write into it."),
    name: str = option(..., "Give the teacher this name in the folder."),
    as_json: AsJson = False,
) -> None:
    """Write a trained model's vectors into a features folder, for distillation.

    Train the student with `eaglenet train teachtext --data experts --root ROOT`.
    """
    from eaglenet.research.experiments.evaluation import write_teacher

    texts, videos = write_teacher(model, root, name)
    record = {"root": str(root), "teacher": name, "texts": texts, "videos": videos}
    print_record(
        record, as_json, f"teacher {name}: {texts:,} texts and {videos:,} videos in {root}"
    )


def parse_experts(assignments: list[str] | None) -> dict[str, str]:
    """Parse ``NAME=MODEL`` assignments of ``--expert``."""
    pairs = [entry.partition("=") for entry in assignments or ()]
    for name, equals, model in pairs:
        if not (name and equals and model):
            raise UsageError(f"--expert {name + equals + model!r}: expected NAME=MODEL")
    if len({name for name, _, _ in pairs} | {"frames"}) != len(pairs) + 1:
        raise UsageError("--expert: use each name once; 'frames' is the name of MODEL")
    return {name: model for name, _, model in pairs}


def check_features(root: Path, as_json: bool) -> None:
    """Read a whole features folder, which checks it, and print a description."""
    from eaglenet.research.data.experts import load_expert_folder

    split = load_expert_folder(root)
    missing_counts = {
        name: int((expert.count == 0).sum()) for name, expert in sorted(split.experts.items())
    }
    content = {
        "dataset": "features",
        "root": str(root),
        "protocol": split.protocol.name,
        "num_videos": split.num_videos,
        "num_captions": split.num_texts,
        "frame_dim": split.frame_dim,
        "text_dim": split.text_dim,
        "max_frames": split.max_frames,
        "experts": split.expert_widths,
        "videos_missing_experts": missing_counts,
        "words": {name: words.values.shape[1] for name, words in split.words.items()},
        "has_graphs": split.graphs is not None,
        "teachers": 0 if split.text_teachers is None else split.text_teachers.shape[1],
        "metadata": dict(split.metadata),
        "exit_code": 0,
    }
    print_record(
        content,
        as_json,
        f"{split.protocol.name}: frames {split.frame_dim} wide, up to {split.max_frames} "
        f"per video; texts {split.text_dim} wide; all numbers finite",
        *(
            f"  expert {name}: {split.expert_widths[name]} wide, missing for {count:,} videos"
            for name, count in missing_counts.items()
        ),
        *(
            f"  words {name}: {words.values.shape[1]} wide, up to {words.max_count} per text"
            for name, words in split.words.items()
        ),
    )


@data.command()
def frames(
    images: Path = option(..., "Read the images in this folder and its subfolders."),
    captions: list[str] = option(
        ..., "Read captions: people=FILE, machine=FILE or labels=FILE; repeatable."
    ),
    source: str = option(..., "Name the source of the images, e.g. coco."),
    output: Path = option(
        ..., "Write into this folder.", name="--output/-o", check=check_output_folder
    ),
    size: int = option(192, "Scale frames to this side in pixels."),
    item: str = option("", "Take the item of an image from the group of this pattern."),
    halves: bool = option(False, "Split every image into two frames side by side."),
    only: Path | None = option(None, "Use only the ids in this file."),
    without: list[Path] | None = option(None, "Leave out the ids in this file; repeatable."),
    validation: float = option(0.0, "Hold out this fraction or number of items for validation."),
    test: bool = option(False, "Write all items as a test split."),
) -> None:
    """Pack images with captions into a folder of frames.

    `eaglenet train small --set folders=A,B` trains on them.
    """
    from eaglenet.research.data.frame_folder import CAPTION_KINDS, FramePreparation, prepare_frames

    files = {}
    for entry in captions:
        kind, path = split_assignment(entry, "people=captions.json")
        if kind not in CAPTION_KINDS:
            raise UsageError(f"--captions {entry}: {kind} is not one of {', '.join(CAPTION_KINDS)}")
        files[kind] = Path(path)
    plan = FramePreparation(
        images, files, source, size, item, halves, only, tuple(without or ()), validation, test
    )
    with show_progress(quiet=False) as announce:
        counts = prepare_frames(plan, output, announce(source))
    print(
        f"{counts['items']} items, {counts['frames']} frames in {output}; "
        f"{counts['validation']} items held out for validation"
    )
    if counts["unreadable"]:
        print(f"{counts['unreadable']} images could not be read and were left out")
        raise typer.Exit(3)
