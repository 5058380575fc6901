"""`eaglenet train`: train a recipe into a run folder; the same command again resumes it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.options import (
    AsJson,
    Data,
    Device,
    DryRun,
    Output,
    Protocol,
    Root,
    Settings,
    Tower,
    Variants,
    find_experiment,
    root_setting,
)
from eaglenet.cli.terminal import escape_line, pluralize, show_progress
from eaglenet.core import plugins
from eaglenet.core.errors import UsageError, shell_quote

if TYPE_CHECKING:
    from eaglenet.research.experiments.build import ExperimentCheck
    from eaglenet.research.experiments.experiment import Experiment
    from eaglenet.research.experiments.runs import Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train)


def train(
    name: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="Method (`eaglenet recipes`), row of the paper such as table1/xpool-b16, "
            "experiment.json, or small.",
        ),
    ],
    output: Output,
    data: Data = "",
    tower: Tower = "",
    protocol: Protocol = "",
    variants: Variants = None,
    root: Root = "",
    settings: Settings = None,
    device: Device = "auto",
    log: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Also log to tensorboard, wandb or trackio; commas between them."
        ),
    ] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train a method. Run the same command again to resume; use torchrun for several GPUs.

    The folder then holds experiment.json, manifest.json, log.jsonl, checkpoints/, result.json and
    model/, the epoch that was best on the validation split. A finished run trains on when the
    command is repeated with a larger --set training.epochs=N.
    """
    from eaglenet.research.experiments.runs import train as run_training
    from eaglenet.research.small.run import TOWER_RECIPES
    from eaglenet.research.training.loggers import parse_boards

    boards = parse_boards(log)
    if name in TOWER_RECIPES:
        if data or tower or protocol or variants or root:
            raise UsageError(f"{name} trains towers, with only --set (docs/how-to/make_small.md)")
        train_towers(name, output, settings, device)
        return
    # A dry run reports a wrong root together with everything else that is missing.
    at_root = [f"data.root={root}"] if dry_run and root else root_setting(root)
    experiment = find_experiment(name, data, tower, protocol, variants)
    experiment = experiment.override([*at_root, *(settings or [])])
    if dry_run:
        dry_run_experiment(experiment, device, as_json)
        return
    is_main = os.environ.get("RANK", "0") == "0"
    with show_progress(quiet=as_json or not is_main) as announce:
        run = run_training(
            experiment,
            output,
            device=device,
            progress=announce(experiment.name),
            boards=boards,
        )
    if not is_main:
        return
    if as_json:
        print(json.dumps(run.result, indent=2))
        return
    if run.was_finished:
        more = experiment.training.epochs + 5
        print(
            f"{output} is already finished: nothing was trained; add --set training.epochs={more} "
            "to train on, or give another --output"
        )
    print_result(run, output)


def train_towers(name: str, output: Path, settings: list[str] | None, device: str) -> None:
    """Train towers: `--set folders=A,B`, `start.vision=...`, `start.text=...`."""
    from eaglenet.research.small.run import TOWER_RECIPES, train_pairs

    experiment = TOWER_RECIPES[name].changed(settings or [])
    model = train_pairs(experiment, output, device=device)
    print(
        f"the model is in {model}; next: eaglenet index FOLDER --store NEW "
        f"--model {shell_quote(model)}"
    )


def print_result(run: Run, output: Path) -> None:
    """Print the recalls of the selected epoch with their split, and the next command."""
    from eaglenet.research.data import SOURCES
    from eaglenet.research.experiments.build import default_split
    from eaglenet.research.experiments.stored_data import WHOLE_MODEL

    result, data = run.result, run.experiment.data
    metrics = result["metrics"]
    print(f"{result['experiment']}: epoch {result['selected_epoch']} ({result['selection']})")
    for direction in ("t2v", "v2t"):
        row = metrics[direction]
        recalls = "  ".join(f"{name} {row[name]:.1f}" for name in ("R@1", "R@5", "R@10"))
        print(f"  {direction} on {result['selected_on']} [{metrics['protocol']}]  {recalls}")
    options = "".join(f" --import {shell_quote(module)}" for module in plugins.imported_modules())
    if SOURCES[data.dataset].is_features and default_split(data) != "test":
        options = f" --features TEST_FOLDER{options}"
    command = f"eaglenet evaluate {shell_quote(output)}"
    print(f"  {result['seconds']:.0f} s; next: ", command, options, sep="")
    if (output / WHOLE_MODEL).is_dir():
        model = shell_quote(output / WHOLE_MODEL)
        print(f"  search with it: eaglenet index FOLDER --store NEW --model {model}")


def dry_run_experiment(experiment: Experiment, device: str, as_json: bool) -> None:
    """Build the method and count the data without decoding or training; report every problem."""
    from eaglenet.research.experiments.build import check_experiment
    from eaglenet.research.training.distributed import join, leave

    world = join(device)
    try:
        checked = check_experiment(experiment, world)
    finally:
        leave(world)
    if not world.is_main:
        return
    if as_json:
        print(json.dumps(checked.to_dict(), indent=2))
        return
    for line in summary(experiment, checked, str(world.device)):
        print(escape_line(line))
    print("nothing was trained (--dry-run); --json prints every setting")


def summary(experiment: Experiment, check: ExperimentCheck, device: str) -> list[str]:
    """Method, data and budget of a run, in a few lines."""
    from eaglenet.research.data.sources import few_videos

    training, choice = experiment.training, experiment.data
    lines = [
        f"{experiment.name}: {experiment.method}, {check.parameters['trained']:,} trained "
        f"parameters, on {device}",
        f"{pluralize(training.epochs, 'epoch')} in batches of {training.batch_size}, "
        f"{pluralize(choice.frames.num_frames, 'frame')} of {choice.frames.size} pixels per video",
    ]
    for split, part in check.data.items():
        lines.append(f"{split}: {split_line(part)}")
        lines += [f"{split}: {remark}" for remark in few_videos(part["videos_found"])]
    lines.append(str(check.estimate))
    seconds = getattr(check.estimate, "seconds", 0.0)
    if device == "cpu" and choice.dataset == "folder" and seconds > LONG_SECONDS:
        lines.append("faster: --tower small-frozen trains a head on features computed once")
    return lines


LONG_SECONDS = 600.0
"""Training on a CPU for which a faster way is named."""


def split_line(part: Mapping[str, Any]) -> str:
    missing = part["videos_missing"]
    first = "".join(f" (first: {name})" for name in part.get("missing_videos", [])[:1])
    note = f", {missing:,} more not found{first}" if missing else ""
    texts, videos = pluralize(part["texts"], "text"), pluralize(part["videos_found"], "video")
    return f"{texts} of {videos}{note}"
