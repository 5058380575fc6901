"""`eaglenet evaluate`: the selected model of a run, or any model, on a split or on features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from eaglenet.cli.data_options import EXAMPLE, VideoFolders
from eaglenet.cli.data_options import Settings as DatasetSettings
from eaglenet.cli.options import AsJson, Device
from eaglenet.cli.terminal import shown_progress
from eaglenet.core.errors import UsageError
from eaglenet.core.files import write_json
from eaglenet.core.settings import read_assignments


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    run: Annotated[
        str, typer.Argument(help="A run folder; a model folder or name with --dataset.")
    ],
    split: Annotated[
        str | None, typer.Option(help="test or val; test unless the data has none.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Evaluate on this features folder instead.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Evaluate any model on this dataset (demo, msrvtt, ...).")
    ] = None,
    root: Annotated[str, typer.Option(help="Folder of --dataset.")] = "",
    videos: VideoFolders = None,
    settings: DatasetSettings = None,
    noise_seeds: Annotated[
        int, typer.Option(min=0, help="Also score with this many noise seeds: mean and spread.")
    ] = 0,
    device: Device = "auto",
    backend: Annotated[str, typer.Option(help="Scoring back end; auto chooses.")] = "auto",
    precision: Annotated[
        str,
        typer.Option(help="auto (the model's own), fp32, bf16, or fp16 for the towers only."),
    ] = "auto",
    frames: Annotated[
        list[str] | None,
        typer.Option(
            "--frames",
            metavar="NAME=VALUE",
            help="Frames other than the model's: num_frames, size, sampling, resize, short, fast "
            "or square_pixels. May be given several times; the result says what differs.",
        ),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="SIM.npy",
            help="Also write the scores, texts x videos, and SIM.videos.npy: for eaglenet metrics.",
        ),
    ] = None,
    hubness: Annotated[
        bool,
        typer.Option("--hubness", help="Also with a bias against videos that answer everything."),
    ] = False,
    bank: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The sentences of that bias, one a line, as `eaglenet index --hubness` takes "
            "them; --hubness alone has 256 typical ones.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the result as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recalls in both directions, with their protocol and the time they took."""
    from eaglenet.indexing.hubness import read_file
    from eaglenet.research.evaluation.metrics import EvaluationOptions
    from eaglenet.research.experiments.evaluation import evaluate_model, evaluate_run

    if scores is not None and scores.suffix != ".npy":
        raise UsageError(f"--scores {scores}: give a file name that ends in .npy")
    options = read_assignments(settings, EXAMPLE)
    if videos:
        options["video_folders"] = [str(folder) for folder in videos]
    if dataset is None and options:
        raise UsageError("--videos and --set belong to --dataset; a run keeps the data it names")
    if features is not None and (split or dataset or root or frames):
        raise UsageError(
            "--features evaluates all videos of a folder; leave out --split, --dataset, --root, "
            "--frames"
        )
    if dataset is None and root:
        raise UsageError("--root belongs to --dataset; a run keeps the data it names")
    how = EvaluationOptions(
        backend,
        precision,
        tuple(range(noise_seeds)),
        scores,
        hubness=hubness or bank is not None,
        bank=read_file(bank) if bank is not None else (),
    )
    with shown_progress(quiet=as_json) as announce:
        settled: dict[str, Any] = {
            "options": how,
            "frames": frames or (),
            "device": device,
            "progress": announce("evaluate"),
        }
        if dataset is None:
            result = evaluate_run(run, split=split, features=features, **settled)
        else:
            result = evaluate_model(
                run, dataset, root, split=split, data_options=options, **settled
            )
    record = result.to_dict()
    if output is not None:
        write_json(output, record)
    print(json.dumps(record, indent=2) if as_json else str(result))
