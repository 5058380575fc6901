"""``eaglenet train`` and ``eaglenet recipes``: train a method, or show the settings of a recipe."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    argument,
    root_setting,
)
from eaglenet.cli.terminal import print_line
from eaglenet.core.errors import UsageError, shell_quote
from eaglenet.core.progress import activity, show_progress
from eaglenet.core.registry import imported_modules
from eaglenet.core.settings import differences, option, to_plain
from eaglenet.core.text import escape_line, pluralize
from eaglenet.models.files import WHOLE_MODEL

if TYPE_CHECKING:
    from eaglenet.research.experiments.build import ExperimentCheck
    from eaglenet.research.experiments.experiment import Experiment
    from eaglenet.research.experiments.runs import Run
    from eaglenet.research.recipes import Recipe


def train(
    name: str = argument(
        "Method (see `eaglenet recipes`), row of a table of the paper (table1/xpool-b16), "
        "experiment.json, or small.",
        metavar="METHOD",
    ),
    *,
    output: Output,
    data: Data = "",
    tower: Tower = "",
    protocol: Protocol = "",
    variants: Variants = None,
    root: Root = "",
    settings: Settings = None,
    device: Device = "auto",
    log: str = option(
        "", "Also log to tensorboard, wandb or trackio (comma-separated).", metavar="NAMES"
    ),
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train a method. Run the same command again to resume; use torchrun for several GPUs.

    Writes experiment.json, manifest.json, log.jsonl, checkpoints/, result.json and model/, the
    epoch that is best on the validation split. To train a finished run longer, repeat the command
    with a larger --set training.epochs=N.
    """
    refuse_misspelt(name, data, tower, protocol, settings)
    # A dry run reports a missing root together with all other problems.
    root_settings = root_setting(root, must_exist=not dry_run)
    is_main = os.environ.get("RANK", "0") == "0"
    with show_progress(quiet=as_json or not is_main) as announce:
        with activity("loading PyTorch"):
            from eaglenet.research.experiments.runs import find_result
            from eaglenet.research.experiments.runs import train as run_training
            from eaglenet.research.small.run import TOWER_RECIPES, train_pairs
            from eaglenet.research.training.checkpoint import parse_boards

        boards = parse_boards(log)
        if name in TOWER_RECIPES:
            if data or tower or protocol or variants or root or log or dry_run or as_json:
                raise UsageError(
                    f"{name} trains towers; use only --output, --device and --set "
                    "(docs/how-to/make_small.md)"
                )
            model = train_pairs(TOWER_RECIPES[name].override(settings or []), output, device=device)
            print(
                f"the model is in {model}; next: eaglenet index FOLDER --store NEW "
                f"--model {shell_quote(model)}"
            )
            return
        _, experiment = find_experiment(name, data, tower, protocol, variants)
        experiment = experiment.override([*root_settings, *(settings or [])])
        is_finished = find_result(experiment, output) is not None
        if is_main and not as_json and not is_finished:
            print_line(announcement(experiment, output, is_dry=dry_run), is_error=True)
        if dry_run:
            if is_finished and not as_json:
                print(f"{output} is already finished: this command would train nothing")
            dry_run_experiment(experiment, output, device, as_json)
            return
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
            "to train longer, or use another --output"
        )
    print_result(run, output)


def refuse_misspelt(
    name: str, data: str, tower: str, protocol: str, settings: list[str] | None
) -> None:
    """Raise for an unknown name of `train` or `recipes` before torch is imported."""
    from eaglenet.research.names import TOWER_RECIPES, refuse_unknown_names

    # Rows of the paper, files and recipes of towers have their own names and settings.
    is_method = "/" not in name and not name.endswith(".json") and name not in TOWER_RECIPES
    refuse_unknown_names(
        methods=[name] if is_method else [],
        data=data,
        tower=tower,
        protocol=protocol,
        settings=settings if is_method else None,
    )


def announcement(experiment: Experiment, output: Path, *, is_dry: bool) -> str:
    """Return a line on what is trained, on which data, and where the run is written."""
    from eaglenet.methods.base import method_title
    from eaglenet.research.experiments.runs import has_begun

    data = experiment.data
    method = method_title(experiment.method)
    source = f"{data.dataset} in {data.root}" if data.root else data.dataset
    recipe = f"{method} on {source} ({experiment.name})"
    if is_dry:
        return f"checking {recipe}; the run would be written to {output}"
    verb = "continuing to train" if has_begun(output) else "training"
    return f"{verb} {recipe}; writing to {output}"


def print_result(run: Run, output: Path) -> None:
    """Print the recalls of the selected epoch with their split, and the next command."""
    from eaglenet.research.data import SOURCES
    from eaglenet.research.experiments.build import default_split

    result, data = run.result, run.experiment.data
    metrics = result["metrics"]
    print(f"{result['experiment']}: epoch {result['selected_epoch']} ({result['selection']})")
    for direction in ("t2v", "v2t"):
        row = metrics[direction]
        recalls = "  ".join(f"{name} {row[name]:.1f}" for name in ("R@1", "R@5", "R@10"))
        print(f"  {direction} on {result['selected_on']} [{metrics['protocol']}]  {recalls}")
    options = "".join(f" --import {shell_quote(module)}" for module in imported_modules())
    if SOURCES[data.dataset].is_features and default_split(data) != "test":
        options = f" --features TEST_FOLDER{options}"
    command = f"eaglenet evaluate {shell_quote(output)}"
    print(f"  trained in {result['seconds']:.0f} s; next: ", command, options, sep="")
    if (output / WHOLE_MODEL).is_dir():
        model = shell_quote(output)
        print("  search with it: eaglenet index FOLDER --store NEW --model", model)


def dry_run_experiment(experiment: Experiment, output: Path, device: str, as_json: bool) -> None:
    """Check an experiment without training, and print a summary or its problems."""
    from eaglenet.research.experiments.build import check_experiment
    from eaglenet.research.experiments.runs import frames_folder
    from eaglenet.research.training.distributed import join

    with join(device) as world:
        check = check_experiment(experiment, world, frames_folder(output))
    if not world.is_main:
        return
    if as_json:
        print(json.dumps(check.to_dict(), indent=2))
        return
    for line in summary(experiment, check, str(world.device)):
        print(escape_line(line))
    print("nothing was trained (--dry-run); --json prints every setting")


def summary(experiment: Experiment, check: ExperimentCheck, device: str) -> list[str]:
    """Summarise method, data and budget of a run in a few lines."""
    from eaglenet.methods.base import method_title
    from eaglenet.research.data.sources import few_videos

    training, choice = experiment.training, experiment.data
    title = method_title(experiment.method)
    lines = [
        f"{experiment.name}: {title}, {check.parameters['trained']:,} trained parameters, on "
        f"{device}",
        f"{pluralize(training.epochs, 'epoch')} in batches of {training.batch_size}, "
        f"{pluralize(choice.frames.num_frames, 'frame')} of {choice.frames.size} pixels per video",
    ]
    for split, counts in check.data.items():
        lines.append(f"{split}: {split_line(counts)}")
        lines += [f"{split}: {warning}" for warning in few_videos(counts["videos_found"])]
    lines.append(check.cost)
    seconds = getattr(check.estimate, "seconds", 0.0)
    is_frozen = experiment.encoder.kind == "features"
    is_slow = device == "cpu" and seconds > LONG_SECONDS
    if is_slow and choice.dataset == "folder" and not is_frozen:
        lines.append("faster: --tower small-frozen encodes the videos once and trains only a head")
    return lines


LONG_SECONDS = 600.0
"""Estimated time of training on a CPU above which a faster tower is suggested."""


def split_line(counts: Mapping[str, Any]) -> str:
    num_missing = counts["videos_missing"]
    first = "".join(f" (first: {name})" for name in counts.get("missing_videos", [])[:1])
    note = f", {num_missing:,} more not found{first}" if num_missing else ""
    texts, videos = pluralize(counts["texts"], "text"), pluralize(counts["videos_found"], "video")
    return f"{texts} of {videos}{note}"


PAPER_TABLE = re.compile(r"table\d+")


def recipes(
    name: str = argument(
        "Method, row (table1/xpool-b16) or table (table1) of the paper, or experiment.json; "
        "without it, list the axes.",
        "",
        metavar="[NAME]",
    ),
    data: Data = "",
    tower: Tower = "",
    protocol: Protocol = "",
    variants: Variants = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List methods, data, towers, protocols and variants, or show the settings of a recipe.

    With a NAME, prints the command, the settings that differ from the defaults, and notes. --json
    prints the whole experiment; save it to train it with `eaglenet train FILE.json`.
    """
    if name and not PAPER_TABLE.fullmatch(name):
        refuse_misspelt(name, data, tower, protocol, settings)
    from eaglenet.methods import METHODS
    from eaglenet.research.recipes import paper_recipes

    if not name:
        axes = list_axes()
        print(json.dumps(axes, indent=2) if as_json else "\n".join(axes_lines(axes)))
        return
    rows = paper_recipes()
    commands = {row: rows[row].command for row in rows if row.startswith(f"{name}/")}
    if commands:
        marks = {row: " (approximate)" * METHODS[rows[row].method].is_approximate for row in rows}
        lines = _columns({f"{row}{marks[row]}": text for row, text in commands.items()}, "")
        print(json.dumps(commands, indent=2) if as_json else "\n".join(lines))
        return
    recipe, experiment = find_experiment(name, data, tower, protocol, variants)
    experiment = experiment.override(settings or [])
    if as_json:
        print(json.dumps(experiment.to_plain(), indent=2))
        return
    if recipe is not None:
        print(recipe.command)
    print("\n".join(difference_lines(experiment)))


def list_axes() -> dict[str, Any]:
    """Return the axes of recipes with their values, as plain data for JSON."""
    from eaglenet.methods import METHODS
    from eaglenet.research.names import OTHER_TOWERS
    from eaglenet.research.recipes import DATA, PROTOCOLS, VARIANTS, paper_recipes
    from eaglenet.research.recipes.setups import TOWERS

    return {
        "methods": {
            name: METHODS[name].paper + (" (approximate)" if METHODS[name].is_approximate else "")
            for name in METHODS
        },
        "data": {
            name: {"title": axis.title, "towers": {t: list(p) for t, p in axis.towers.items()}}
            for name, axis in DATA.items()
        },
        "towers": {**{name: tower.title for name, tower in TOWERS.items()}, **OTHER_TOWERS},
        "protocols": dict(PROTOCOLS),
        "variants": {
            method: {name: list(values) for name, values in variants.items()}
            for method, variants in VARIANTS.items()
        },
        "tables": sorted({row.split("/")[0] for row in paper_recipes()}),
    }


def axes_lines(axes: dict[str, Any]) -> list[str]:
    """Format the axes for a terminal."""
    from eaglenet.methods import METHODS

    lines = ["eaglenet train METHOD --data NAME --tower NAME --protocol NAME --variant NAME=VALUE"]
    approximate = ", ".join(name for name in axes["methods"] if METHODS[name].is_approximate)
    lines += ["", f"METHOD (approximate, from abstracts: {approximate})"]
    names = textwrap.wrap(", ".join(axes["methods"]), 94, break_on_hyphens=False)
    lines += [f"  {line}" for line in names]
    data = {
        name: f"{entry['title']}: {_list_towers(entry['towers'])}"
        for name, entry in axes["data"].items()
    }
    lines += ["", "--data: towers, the default first", *_columns(data)]
    lines += ["", "--tower", *_columns(axes["towers"])]
    lines += ["", "--protocol", *_columns(axes["protocols"])]
    lines += ["", "--variant"]
    for method, variants in axes["variants"].items():
        lines += [f"  {method}: {name}={'|'.join(values)}" for name, values in variants.items()]
    return [
        *lines,
        "",
        f"Rows of the paper: {', '.join(axes['tables'])}; `eaglenet recipes table1` lists them.",
        "`eaglenet recipes METHOD --data NAME ...` shows the settings of a recipe.",
    ]


def _columns(texts: Mapping[str, str], indent: str = "  ") -> list[str]:
    width = max(map(len, texts))
    return [f"{indent}{name:<{width}}  {text}" for name, text in texts.items()]


def _list_towers(towers: Iterable[str]) -> str:
    from eaglenet.research.recipes.setups import TOWERS

    names = list(towers)
    special_names = [name for name in names if name not in TOWERS]
    is_special = special_names == names
    return ", ".join(names if is_special else [names[0], "any pretrained", *special_names])


def difference_lines(experiment: Experiment) -> list[str]:
    """List the settings that differ from the defaults of the method and of training, and notes."""
    from eaglenet.methods import METHODS
    from eaglenet.research.data.sources import DataChoice
    from eaglenet.research.training.config import TrainingConfig

    defaults = {
        "method_config": METHODS[experiment.method].config_class(),
        "data": DataChoice(experiment.data.dataset),
        "training": TrainingConfig(),
    }
    plain = experiment.to_plain()
    lines = [f"experiment {experiment.name}: {METHODS[experiment.method].paper}"]
    if METHODS[experiment.method].is_approximate:
        lines.append("approximate: read from the abstract")
    encoder = plain["encoder"]
    lines.append(f"encoder: {encoder['kind']} {encoder['source']}".rstrip())
    lines.append("settings that differ from the defaults (default -> recipe):")
    for section, default in defaults.items():
        lines += [
            f"  {line}" for line in differences(to_plain(default), plain[section], where=section)
        ]
    return [*lines, f"notes: {experiment.notes}"]


def find_experiment(
    name: str, data: str, tower: str, protocol: str, variants: list[str] | None
) -> tuple[Recipe | None, Experiment]:
    """Return a recipe and its experiment; an experiment in a JSON file has no recipe."""
    from eaglenet.research.experiments.experiment import Experiment
    from eaglenet.research.recipes import Recipe, paper_recipes
    from eaglenet.research.recipes.recipe import ROW_NAME

    axes = {"data": data, "tower": tower, "protocol": protocol, "variants": tuple(variants or ())}
    changes: dict[str, Any] = {axis: value for axis, value in axes.items() if value}
    if name.endswith(".json"):
        if changes:
            raise UsageError(
                f"{name} is a whole experiment; change it with --set instead of --data, --tower, "
                "--protocol and --variant"
            )
        return None, Experiment.load(Path(name))
    recipe = paper_recipes()[name] if ROW_NAME.fullmatch(name) else Recipe(name)
    recipe = dataclasses.replace(recipe, **changes)
    return recipe, recipe.build()
