"""`eaglenet compare`: several methods, one budget, one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.cli.progress import shown_progress
from eaglenet.cli.training_options import (
    AsJson,
    Device,
    Output,
    Root,
    Seeds,
    Settings,
    find_experiment,
    print_table,
    root_setting,
)
from eaglenet.errors import UsageError

if TYPE_CHECKING:
    from eaglenet.experiments.experiment import Experiment


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(help="Methods, or rows of a table such as components/frl; at least one."),
    ],
    output: Output,
    dataset: Annotated[
        str,
        typer.Option(help="demo, features, frames, experts, or such as msrvtt-b32."),
    ] = "demo",
    root: Root = "",
    split: Annotated[
        str | None, typer.Option(help="Split to report: test unless the data has none.")
    ] = None,
    seeds: Seeds = 3,
    settings: Settings = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train and evaluate methods with the same data and seeds, each by its own recipe.

    Writes compare.json and compare.md: mean and spread of the recalls, recall against test time,
    parameters, memory, budgets (on demo and features they are the same; on the datasets authors
    differ, and the report says in what). The epoch is chosen on validation; a method that cannot
    run says why. Started again, it goes on where it stopped.
    """
    from eaglenet.evaluation.conditions import conditions_lines
    from eaglenet.experiments.build import default_split
    from eaglenet.experiments.campaign import (
        CannotRun,
        Trial,
        approximate_lines,
        budget_lines,
        campaign_table,
        left_out_lines,
        plain_rows,
        reasons,
        row_conditions,
        run_campaign,
        write_report,
    )
    from eaglenet.experiments.runs import SELECTION_NOTES

    changes = [*root_setting(root), *(settings or [])]
    # A name given twice is one row.
    names = dict.fromkeys(name for argument in methods for name in argument.split(",") if name)
    found = {name: find_trial(name, dataset, changes) for name in names}
    trials = [Trial(name, given) for name, given in found.items() if given is not None]
    if not trials:
        listed = ", ".join(names) or "none"
        raise UsageError(
            f"no method to compare on {dataset}: {listed} given; see `eaglenet recipes`"
        )
    reported = split or default_split(trials[0].experiment.data)
    with shown_progress(quiet=as_json) as announce:
        rows = run_campaign(
            trials, range(seeds), output, split=reported, device=device, announce=announce
        )
    unset = f"its authors gave no settings for {dataset}, and there is no recipe"
    rows += [CannotRun(name, unset) for name, given in found.items() if given is None]
    note = SELECTION_NOTES[trials[0].experiment.training.select]
    title = f"{dataset}, {reported} split, {seeds} seeds; {note}"
    write_report(output, "compare", title, rows)
    if as_json:
        print(json.dumps({"title": title, "rows": plain_rows(rows)}, indent=2))
        return
    print_table(title, *campaign_table(rows))
    unequal = conditions_lines(row_conditions(rows))
    told = [*budget_lines(rows), *unequal, *approximate_lines(rows), *reasons(rows)]
    for line in [*told, *left_out_lines(output, rows)]:
        print(line)
    print(f"written: {Path(output) / 'compare.md'}, {Path(output) / 'compare.json'}")


def find_trial(name: str, dataset: str, changes: list[str]) -> Experiment | None:
    """The experiment of a method on a dataset, or None where that method has no recipe there.

    A name that is no method, and a dataset that has no recipes, are told what there is.
    """
    from eaglenet.methods import METHODS
    from eaglenet.recipes import RECIPES

    known = sorted(
        {place for place, _, last in (r.rpartition("/") for r in RECIPES) if last in METHODS}
    )
    if dataset not in known:
        raise UsageError(f"--dataset {dataset}; choose one of {', '.join(known)}")
    recipe = recipe_name(name, dataset)
    method = name.split("-")[0]
    if recipe not in RECIPES and "/" not in name and method not in METHODS:
        METHODS[name]  # raises: it lists the methods and near names
    if recipe not in RECIPES and method in METHODS:
        return None
    return find_experiment(recipe, changes)


def recipe_name(method: str, dataset: str) -> str:
    """The recipe of a method (or of a table's row) on a dataset."""
    if dataset in ("demo", "features", "frames", "frames-tuned") or dataset.endswith("experts"):
        return f"{dataset}/{method}"
    if "/" in method:
        return method if dataset == "msrvtt-b16" else f"{dataset}/{method}"
    return dataset if method == "eaglenet" else f"{dataset}/{method}"
