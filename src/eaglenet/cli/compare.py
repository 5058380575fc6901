"""`eaglenet compare`: several methods, one budget, one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.options import (
    AsJson,
    Device,
    Output,
    Root,
    Seeds,
    Settings,
    print_table,
    root_setting,
)
from eaglenet.cli.terminal import shown_progress


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
        typer.Option(help="demo, features, frames, experts, or a benchmark such as msrvtt-b32."),
    ] = "demo",
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
    as_json: AsJson = False,
) -> None:
    """Train and evaluate methods with the same data and seeds, each by its own recipe.

    Writes compare.json and compare.md: mean and spread of the recalls, recall against test time,
    parameters, memory, budgets (on demo, features and frames they are the same; on the datasets
    authors differ, and the report says in what), and in report/ which differences are clear. The
    epoch is chosen on validation; a method that cannot run says why. Started again, it goes on
    where it stopped.
    """
    from eaglenet.research.evaluation.run_records import conditions_lines
    from eaglenet.research.experiments.campaign import (
        approximate_lines,
        budget_lines,
        campaign_table,
        left_out_lines,
        plain_rows,
        reasons,
        row_conditions,
    )
    from eaglenet.research.recipes.comparison import compare as run_comparison

    root_setting(root)  # a wrong folder is told before anything is built
    with shown_progress(quiet=as_json) as announce:
        made = run_comparison(
            methods,
            dataset,
            output,
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
    title, rows = made.title, made.rows
    if as_json:
        print(json.dumps({"title": title, "rows": plain_rows(rows)}, indent=2))
        return
    print_table(title, *campaign_table(rows))
    unequal = conditions_lines(row_conditions(rows))
    told = [*budget_lines(rows), *unequal, *approximate_lines(rows), *reasons(rows)]
    for line in [*told, *left_out_lines(output, rows)]:
        print(line)
    print(f"written: {Path(output) / 'compare.md'}, {Path(output) / 'compare.json'}")
