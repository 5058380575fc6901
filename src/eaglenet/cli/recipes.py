"""`eaglenet recipes`: the axes that experiments are composed of, and what a composition sets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.options import (
    AsJson,
    Data,
    Protocol,
    Settings,
    Tower,
    Variants,
    find_experiment,
    find_recipe,
)

if TYPE_CHECKING:
    from eaglenet.research.experiments.experiment import Experiment


def recipes(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Method, row of the paper (table1/xpool-b16), table of the paper (table1) or "
            "experiment.json; without it, list the axes.",
        ),
    ] = "",
    data: Data = "",
    tower: Tower = "",
    protocol: Protocol = "",
    variants: Variants = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List what `eaglenet train` composes experiments of, or show one composition.

    With a NAME it prints the command, the settings that differ from the defaults of the method and
    of training, and notes; --json prints the whole experiment, which `eaglenet train FILE.json`
    takes.
    """
    from eaglenet.research.recipes import paper_recipes

    if not name:
        axes = list_axes()
        print(json.dumps(axes, indent=2) if as_json else "\n".join(axes_lines(axes)))
        return
    rows = {row: recipe for row, recipe in _items(paper_recipes()) if row.startswith(f"{name}/")}
    if rows:
        commands = {row: recipe.command for row, recipe in rows.items()}
        width = max(map(len, commands))
        lines = [f"{row:<{width}}  {command}" for row, command in commands.items()]
        print(json.dumps(commands, indent=2) if as_json else "\n".join(lines))
        return
    experiment = find_experiment(name, data, tower, protocol, variants).override(settings or [])
    if as_json:
        print(json.dumps(experiment.to_plain(), indent=2))
        return
    if not name.endswith(".json"):
        print(find_recipe(name, data, tower, protocol, variants).command)
    print("\n".join(difference_lines(experiment)))


def _items(registry: Any) -> Iterable[tuple[str, Any]]:
    return ((name, registry[name]) for name in registry)


def list_axes() -> dict[str, Any]:
    """Every axis with its values, as plain data."""
    from eaglenet.methods import METHODS
    from eaglenet.research.recipes import DATA, PROTOCOLS, VARIANTS, paper_recipes
    from eaglenet.research.recipes.benchmarks import TOWERS
    from eaglenet.research.recipes.recipe import OTHER_TOWERS

    methods = {
        name: spec.paper + (" (approximate)" if spec.is_approximate else "")
        for name, spec in _items(METHODS)
    }
    return {
        "methods": methods,
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
    """The axes in about forty lines."""
    lines = ["eaglenet train METHOD --data NAME --tower NAME --protocol NAME --variant NAME=VALUE"]
    lines += ["", "METHOD", *_wrapped(axes["methods"])]
    lines += ["", "--data: towers, the default first"]
    width = max(map(len, axes["data"]))
    for name, entry in axes["data"].items():
        lines.append(f"  {name:<{width}}  {entry['title']}: {_short(entry['towers'])}")
    lines += ["", "--tower"]
    width = max(map(len, axes["towers"]))
    lines += [f"  {name:<{width}}  {title}" for name, title in axes["towers"].items()]
    lines += ["", "--protocol"]
    width = max(map(len, axes["protocols"]))
    lines += [f"  {name:<{width}}  {title}" for name, title in axes["protocols"].items()]
    lines += ["", "--variant"]
    for method, variants in axes["variants"].items():
        for name, values in variants.items():
            lines.append(f"  {method}: {name}={'|'.join(values)}")
    return [
        *lines,
        "",
        f"Rows of the paper: {', '.join(axes['tables'])}; `eaglenet recipes table1` lists them.",
        "`eaglenet recipes METHOD --data NAME ...` shows what a composition sets.",
    ]


def _short(towers: Iterable[str]) -> str:
    names = list(towers)
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, any pretrained, {names[-1]}"


def _wrapped(names: Iterable[str], width: int = 96) -> list[str]:
    import textwrap

    return textwrap.wrap(
        ", ".join(names), width, initial_indent="  ", subsequent_indent="  ",
        break_on_hyphens=False,
    )  # fmt: skip


def difference_lines(experiment: Experiment) -> list[str]:
    """The settings that differ from the defaults of the method and of training, and the notes."""
    from eaglenet.core.settings import differences, to_plain
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
