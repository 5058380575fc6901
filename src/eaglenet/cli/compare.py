"""`eaglenet compare`: several methods, one budget, one report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.cli.options import (
    AsJson,
    Data,
    Device,
    DryRun,
    Output,
    Protocol,
    Root,
    Seeds,
    Settings,
    Tower,
    print_table,
    root_setting,
)
from eaglenet.cli.terminal import show_progress

if TYPE_CHECKING:
    from eaglenet.research.experiments.build import ExperimentCheck


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Methods, each with choices of its own after colons: "
            "clip4clip:head=lstm, xpool:protocol=original."
        ),
    ],
    output: Output,
    data: Data = "demo",
    tower: Tower = "",
    protocol: Protocol = "",
    root: Root = "",
    split: Annotated[
        str | None,
        typer.Option(help="Split to report: test unless the data has none; val on frames."),
    ] = None,
    seeds: Seeds = 3,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Runs at a time, each in its own process.")
    ] = 1,
    search: Annotated[
        str,
        typer.Option(
            metavar="SETTING=A,B", help="Values that every method tries on validation first."
        ),
    ] = "",
    time_pairs: Annotated[
        int,
        typer.Option("--time", min=0, help="Also time the scores of N texts with N videos."),
    ] = 0,
    settings: Settings = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate methods with the same data and seeds.

    Writes compare.json and compare.md: mean and spread of the recalls, recall against test time,
    parameters, memory and budgets, and in report/ which differences are clear. Budgets are the same
    on demo, features, frames and experts; with --protocol original authors differ, and the report
    says in what. The epoch is chosen on validation. A method that cannot run gets a row with the
    reason. Run the same command again to continue where it stopped.
    """
    from eaglenet.research.evaluation.run_records import conditions_lines
    from eaglenet.research.experiments.campaign import (
        approximate_lines,
        budget_lines,
        campaign_table,
        check_trials,
        left_out_lines,
        plain_rows,
        reasons,
        row_conditions,
    )
    from eaglenet.research.recipes import Recipe
    from eaglenet.research.recipes.comparison import compare as run_comparison
    from eaglenet.research.recipes.comparison import find_trials

    root_settings = root_setting(root)
    if dry_run:
        base = Recipe("", data, tower, protocol)
        trials, refused = find_trials(methods, base, [*root_settings, *(settings or ())])
        print_checks(check_trials(trials, device), reasons(refused), seeds, as_json)
        return
    with show_progress(quiet=as_json) as announce:
        comparison = run_comparison(
            methods,
            data,
            output,
            tower=tower,
            protocol=protocol,
            root=root,
            settings=settings or (),
            split=split,
            seeds=seeds,
            jobs=jobs,
            search=search,
            time_pairs=time_pairs,
            device=device,
            announce=announce,
            say=(lambda line: None) if as_json else print,
        )
    title, rows = comparison.title, comparison.rows
    if as_json:
        print(json.dumps({"title": title, "rows": plain_rows(rows)}, indent=2))
        return
    print_table(title, *campaign_table(rows))
    for line in [
        *budget_lines(rows),
        *conditions_lines(row_conditions(rows)),
        *approximate_lines(rows),
        *reasons(rows),
        *left_out_lines(output, rows),
    ]:
        print(line)
    print(f"written: {Path(output) / 'compare.md'}, {Path(output) / 'compare.json'}")


def print_checks(
    checks: Mapping[str, ExperimentCheck | str], refused: list[str], seeds: int, as_json: bool
) -> None:
    """Print what every row would train, and its estimated cost, for `--dry-run`."""
    from eaglenet.research.experiments.build import Estimate

    if as_json:
        plain = {
            label: {"cannot_run": check} if isinstance(check, str) else check.to_dict()
            for label, check in checks.items()
        }
        print(json.dumps(plain, indent=2))
        return
    seconds = 0.0
    for label, check in checks.items():
        if isinstance(check, str):
            print(f"{label}: {check}")
            continue
        print(f"{label}: {check.parameters['trained']:,} trained parameters; {check.estimate}")
        if isinstance(check.estimate, Estimate):
            seconds += check.estimate.seconds
    for line in refused:
        print(line)
    print(
        f"all rows with {seeds} seeds: about {seeds * seconds / 3600:.1f} h, without evaluation; "
        "nothing was trained (--dry-run)"
    )
