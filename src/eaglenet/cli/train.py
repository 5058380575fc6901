"""`eaglenet train`: a recipe into a run folder; the same command again resumes it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.options import (
    AsJson,
    Device,
    Output,
    Root,
    Settings,
    find_experiment,
    root_setting,
)
from eaglenet.cli.terminal import counted, one_line, shown_progress
from eaglenet.core.errors import quoted

if TYPE_CHECKING:
    from eaglenet.research.experiments.experiment import Experiment


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train)


def train(
    name: Annotated[str, typer.Argument(help="A recipe (`eaglenet recipes`) or experiment.json.")],
    output: Output,
    root: Root = "",
    settings: Settings = None,
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check settings, data and device, train nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe. Run the same command again to resume; several GPUs: start it with torchrun.

    The folder then holds experiment.json, manifest.json, log.jsonl, checkpoints/, result.json and
    model/, the epoch that was best on the validation split.
    """
    from eaglenet.research.experiments.runs import train as run_training
    from eaglenet.research.small.run import TOWER_RECIPES

    if name in TOWER_RECIPES:
        train_towers(name, output, settings, device)
        return
    # A dry run names a wrong root together with whatever else is missing.
    at_root = [f"data.root={root}"] if dry_run and root else root_setting(root)
    experiment = find_experiment(name, [*at_root, *(settings or [])])
    if dry_run:
        check(experiment, device, as_json)
        return
    is_main = os.environ.get("RANK", "0") == "0"
    with shown_progress(quiet=as_json or not is_main) as announce:
        run = run_training(
            experiment,
            output,
            device=device,
            progress=announce(experiment.name),
            tensorboard=tensorboard,
        )
    if not is_main:
        return
    if as_json:
        print(json.dumps(run.result, indent=2))
        return
    if run.was_finished:
        print(
            f"{output} is already finished: nothing was trained; give another --output to train "
            "again"
        )
    show(run.result, str(output))


def train_towers(name: str, output: Path, settings: list[str] | None, device: str) -> None:
    """A recipe that makes towers: `--set folders=A,B`, `start.vision=...`, `start.text=...`."""
    from eaglenet.research.small.run import TOWER_RECIPES, train_pairs

    experiment = TOWER_RECIPES[name].changed(settings or [])
    model = train_pairs(experiment, output, device=device)
    print(
        f"the model is in {model}; next: eaglenet index FOLDER --store NEW --model {quoted(model)}"
    )


def show(result: dict[str, Any], output: str) -> None:
    metrics = result["metrics"]
    print(f"{result['experiment']}: epoch {result['selected_epoch']} ({result['selection']})")
    for direction in ("t2v", "v2t"):
        row = metrics[direction]
        recalls = "  ".join(f"{name} {row[name]:.1f}" for name in ("R@1", "R@5", "R@10"))
        print(f"  {direction} [{metrics['protocol']}]  {recalls}")
    print(f"  {result['seconds']:.0f} s; next: eaglenet evaluate {quoted(output)}")


def check(experiment: Experiment, device: str, as_json: bool) -> None:
    """Build the method and look at the data without decoding or training; names every fault."""
    from eaglenet.research.experiments.build import check_experiment
    from eaglenet.research.experiments.runs import count_parameters
    from eaglenet.research.training.distributed import join, leave

    world = join(device)
    try:
        method, data = check_experiment(experiment, world)
        found = {
            "experiment": experiment.to_plain(),
            "parameters": count_parameters(method),
            "data": data,
        }
    finally:
        leave(world)
    if not world.is_main:
        return
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for line in summary(experiment, found["parameters"], data, str(world.device)):
        print(one_line(line))
    print("nothing was trained (--dry-run); --json has every setting")


def summary(
    experiment: Experiment, parameters: Mapping[str, int], data: Mapping[str, Any], device: str
) -> list[str]:
    """What would be trained, on what, in lines to read; all settings are another question."""
    from eaglenet.research.data.sources import few_videos

    training, choice = experiment.training, experiment.data
    lines = [
        f"{experiment.name}: {experiment.method}, {parameters['trained']:,} trained parameters, "
        f"on {device}",
        f"{counted(training.epochs, 'epoch')} in batches of {training.batch_size}, "
        f"{counted(choice.frames.num_frames, 'frame')} of {choice.frames.size} pixels a video",
    ]
    for split, found in data.items():
        missing = found["videos_missing"]
        gone = f", {missing:,} more not found" if missing else ""
        first = f" ({found['missing_videos'][0]} first)" if missing else ""
        texts, videos = counted(found["texts"], "text"), counted(found["videos_found"], "video")
        lines.append(f"{split}: {texts} of {videos}{gone}{first}")
        lines += [f"{split}: {remark}" for remark in few_videos(found["videos_found"])]
    return lines
