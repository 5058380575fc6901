"""`eaglenet compare`: several methods, one budget, one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from eaglenet.cli.training_options import (
    AsJson,
    Device,
    Output,
    Seeds,
    Settings,
    find_experiment,
    print_table,
    progress_bars,
)


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
        str, typer.Option(help="demo, features, or a dataset and tower such as msrvtt-b32.")
    ] = "demo",
    root: Annotated[str, typer.Option(help="Folder of the dataset or of the features.")] = "",
    split: Annotated[
        str | None, typer.Option(help="Split to report: test unless the data has none.")
    ] = None,
    seeds: Seeds = 3,
    settings: Settings = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train and evaluate methods with the same data, budget and seeds.

    Writes compare.json and compare.md: mean and spread of the recalls, recall against scoring time,
    parameters, memory. The epoch is chosen on validation; a method that cannot run says why.
    Started again, it goes on where it stopped.
    """
    from eaglenet.training.campaign import (
        Trial,
        campaign_table,
        run_campaign,
        write_report,
    )
    from eaglenet.training.runs import default_split

    changes = [*([f"data.root={root}"] if root else []), *(settings or [])]
    names = [name for argument in methods for name in argument.split(",") if name]
    trials = [Trial(name, find_experiment(recipe_name(name, dataset), changes)) for name in names]
    reported = split or default_split(trials[0].experiment)
    with progress_bars(quiet=as_json) as announce:
        rows = run_campaign(
            trials, range(seeds), output, split=reported, device=device, announce=announce
        )
    title = f"{dataset}, {reported} split, {seeds} seeds; the epoch was chosen on validation"
    write_report(output, "compare", title, rows)
    if as_json:
        print(json.dumps({"title": title, "rows": rows}, indent=2))
        return
    print_table(title, *campaign_table(rows))
    print(f"written: {Path(output) / 'compare.md'}, {Path(output) / 'compare.json'}")


def recipe_name(method: str, dataset: str) -> str:
    """The recipe of a method (or of a table's row) on a dataset."""
    if dataset in ("demo", "features"):
        return f"{dataset}/{method}"
    if "/" in method:
        return method if dataset == "msrvtt-b16" else f"{dataset}/{method}"
    return dataset if method == "eaglenet" else f"{dataset}/{method}"
