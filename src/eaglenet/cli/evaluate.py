"""`eaglenet evaluate`: score a run, or any model, on a split or on stored features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from eaglenet.cli.data_options import EXAMPLE, VideoFolders
from eaglenet.cli.data_options import Settings as DatasetSettings
from eaglenet.cli.options import AsJson, Device
from eaglenet.cli.terminal import print_line, show_progress
from eaglenet.core.errors import UsageError
from eaglenet.core.files import write_json
from eaglenet.core.settings import read_assignments


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            help="Run folder; with --data, a model folder or name; with --moments, a store."
        ),
    ],
    split: Annotated[
        str | None,
        typer.Option(help="test, val or train; default test, val on folders of frames."),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Score all videos of this features folder instead.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Score any model on this data (demo, msrvtt, ...).")
    ] = None,
    root: Annotated[str, typer.Option(help="Folder of --data.")] = "",
    from_hub: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Score any model on a dataset of the hub that holds its videos (mteb/MSR-VTT); "
            "downloaded once.",
        ),
    ] = None,
    videos: VideoFolders = None,
    settings: DatasetSettings = None,
    noise_seeds: Annotated[
        int, typer.Option(min=0, help="Also report mean and spread over N noise seeds.")
    ] = 0,
    pair_noise: Annotated[
        bool,
        typer.Option(
            "--pair-noise",
            help="Draw noise of its own for each pair, as the authors do; slow. Default: one bank "
            "for all pairs.",
        ),
    ] = False,
    device: Device = "auto",
    backend: Annotated[str, typer.Option(help="Scoring back end; default auto.")] = "auto",
    precision: Annotated[
        str,
        typer.Option(help="auto (the model's own), fp32, bf16, or fp16 for towers only."),
    ] = "auto",
    frames: Annotated[
        list[str] | None,
        typer.Option(
            "--frames",
            metavar="NAME=VALUE",
            help="Change how frames are read: num_frames, size, sampling, resize, short, fast or "
            "square_pixels; repeatable. The result notes what differs from the model.",
        ),
    ] = None,
    sinkhorn: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Also rank ucofia with Sinkhorn offsets from N training texts and videos.",
        ),
    ] = 0,
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="SIM.npy",
            help="Also write the scores, texts x videos, and SIM.videos.npy for `metrics`.",
        ),
    ] = None,
    hubness: Annotated[
        bool,
        typer.Option("--hubness", help="Also rank with offsets against hubs (256 typical texts)."),
    ] = False,
    hubness_bank: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Compute those offsets from these texts, one per line instead."
        ),
    ] = None,
    moments: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Search the videos of a store for the texts of this annotation file (DiDeMo, "
            "QVHighlights, Charades-STA, ActivityNet Captions), and compare the moments.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the result as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print recalls in both directions, with their split, protocol and time.

    With --moments: R@1 at IoU 0.3, 0.5 and 0.7, mean IoU and mean average precision.
    """
    if moments is not None:
        if split or data or from_hub or root or features or frames or settings or videos or scores:
            raise UsageError("--moments takes a store; leave out options of data and splits")
        _evaluate_moments(run, moments, device, output, as_json=as_json)
        return
    from eaglenet.indexing.hubness import read_text_file
    from eaglenet.research.evaluation.metrics import EvaluationOptions
    from eaglenet.research.experiments.evaluation import (
        evaluate_model,
        evaluate_run,
        evaluated_split,
    )
    from eaglenet.research.experiments.runs import load_experiment

    if scores is not None and scores.suffix != ".npy":
        raise UsageError(f"--scores {scores}: give a file name that ends in .npy")
    if from_hub is not None:
        if data or root or features or videos or settings:
            raise UsageError(
                "--from-hub brings its own videos; leave out --data, --root, --features, --videos "
                "and --set"
            )
        from eaglenet.research.data.hub_dataset import unpack_hub_dataset

        split = split or "test"
        with show_progress(quiet=as_json) as announce:
            root = str(unpack_hub_dataset(from_hub, split, progress=announce(from_hub)))
        data = "folder"
    options = read_assignments(settings, EXAMPLE)
    if videos:
        options["video_folders"] = [str(folder) for folder in videos]
    if data is None and options:
        raise UsageError("--videos and --set belong to --data; a run keeps the data it names")
    if features is not None and (split or data or root or frames):
        raise UsageError(
            "--features scores all videos of a folder; leave out --split, --data, --root and "
            "--frames"
        )
    if data is None and root:
        raise UsageError("--root belongs to --data; a run keeps the data it names")
    how = EvaluationOptions(
        backend,
        precision,
        tuple(range(noise_seeds)),
        pair_noise,
        scores,
        hubness=hubness or hubness_bank is not None,
        hubness_bank=read_text_file(hubness_bank) if hubness_bank is not None else (),
        sinkhorn=sinkhorn,
    )
    if data is None and features is None:
        split = evaluated_split(load_experiment(Path(run).expanduser()), split)
    if output is not None and split is not None and split != "test" and "test" in output.stem:
        raise UsageError(
            f"--output {output} names the test split, but {split} would be scored; add "
            f"--split test, or write evaluation-{split}.json"
        )
    with show_progress(quiet=as_json) as announce:
        shared: dict[str, Any] = {
            "options": how,
            "frames": frames or (),
            "device": device,
            "progress": announce("evaluate"),
        }
        if data is None:
            result = evaluate_run(run, split=split, features=features, **shared)
        else:
            result = evaluate_model(run, data, root, split=split, data_options=options, **shared)
    record = result.to_dict()
    if output is not None:
        write_json(output, record)
    print(json.dumps(record, indent=2) if as_json else str(result))


def _evaluate_moments(
    store: str, annotations: Path, device: str, output: Path | None, *, as_json: bool
) -> None:
    from eaglenet.research.data.moment_files import read_moments
    from eaglenet.research.evaluation.moments import evaluate_store
    from eaglenet.search.engine import Engine

    texts = read_moments(annotations)
    with show_progress(quiet=as_json) as announce:
        result = evaluate_store(
            Engine.open(store, device=device), texts, progress=announce("evaluate")
        )
    record = result.to_dict()
    if output is not None:
        write_json(output, record)
    if result.missing_videos:
        count, example = len(result.missing_videos), result.missing_videos[0]
        print_line(f"{count} videos are not in {store} (first: {example})", is_error=True)
    print(json.dumps(record, indent=2) if as_json else str(result))
