"""`eaglenet ablate`: a table of the paper, ours beside the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.options import (
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
from eaglenet.cli.terminal import shown_progress
from eaglenet.core.errors import UsageError

if TYPE_CHECKING:
    from eaglenet.research.experiments.campaign import CampaignRow

PAPER_COLUMNS = {
    "msrvtt-b16": "MSR-VTT",
    "didemo-b16": "DiDeMo",
    "msrvtt-b16-released": "MSR-VTT",
    "didemo-b16-released": "DiDeMo",
}
WORLDS = ("demo", "features", "frames", *PAPER_COLUMNS)
PaperNumbers = dict[str, dict[str, float | None]]
"""Recalls by dataset and name."""
RECALLS = ("R@1", "R@5", "R@10")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ablate")(ablate)


def ablate(
    table: Annotated[
        str, typer.Argument(help="components, energy, pooling, graph, coefficient or edges.")
    ],
    output: Output,
    world: Annotated[str, typer.Option(help=f"{', '.join(WORLDS)}.")] = "demo",
    root: Root = "",
    seeds: Seeds = 1,
    split: Annotated[
        str | None, typer.Option(help="Split to report: test unless the data has none.")
    ] = None,
    settings: Settings = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train every row of one of the paper's tables and print it beside the paper's numbers.

    Numbers of the paper are labelled so; on the demo world and on features they are other data and
    only the order of the rows can be compared.
    """
    from eaglenet.research.experiments.build import default_split
    from eaglenet.research.experiments.campaign import (
        left_out_lines,
        plain_rows,
        reasons,
        run_campaign,
        write_report,
    )
    from eaglenet.research.experiments.trials import Trial

    rows_of_table = find_table(table)
    if world not in WORLDS:
        raise UsageError(f"unknown world {world!r}; known: {', '.join(WORLDS)}")
    changes = [*root_setting(root), *(settings or [])]
    prefix = "" if world == "msrvtt-b16" else f"{world}/"
    trials = [
        Trial(row.label, find_experiment(f"{prefix}{table}/{row.slug}", changes))
        for row in rows_of_table
    ]
    reported = split or default_split(trials[0].experiment.data)
    with shown_progress(quiet=as_json) as announce:
        rows = run_campaign(
            trials, range(seeds), output, split=reported, device=device, announce=announce
        )
    paper = {row.label: paper_numbers(table, row.label, world) for row in rows}
    title = f"{table}: ours on {world} ({reported} split, {seeds} seeds) beside the paper"
    write_report(output, "ablate", title, rows, beside_paper(rows, paper), paper=paper)
    if as_json:
        print(json.dumps({"title": title, "rows": plain_rows(rows, paper)}, indent=2))
        return
    print_table(title, *beside_paper(rows, paper))
    for line in [*reasons(rows), *left_out_lines(output, rows)]:
        print(line)
    print(f"written: {Path(output) / 'ablate.md'}, {Path(output) / 'ablate.json'}")


def find_table(name: str) -> Any:
    from eaglenet.core.registry import Registry
    from eaglenet.research.recipes import TABLES

    known: Registry[Any] = Registry("table")
    for table, rows in TABLES.items():
        known.add(table, rows)
    return known[name]


def paper_numbers(table: str, label: str, world: str) -> PaperNumbers:
    """The paper's text-to-video recalls of a row, by dataset."""
    from eaglenet.research.evaluation.paper import paper_tables

    known = list(dict.fromkeys(PAPER_COLUMNS.values()))
    datasets = [PAPER_COLUMNS[world]] if world in PAPER_COLUMNS else known
    found = paper_tables()[table]
    if f"average {RECALLS[0]}" in found.columns:
        datasets = [*datasets, "average"]
    return {
        dataset: {name: found.value(label, f"{dataset} {name}") for name in RECALLS}
        for dataset in datasets
    }


def beside_paper(
    rows: Sequence[CampaignRow], paper: Mapping[str, PaperNumbers]
) -> tuple[list[str], list[list[str]]]:
    """Header and cells; columns say ours or paper."""
    from eaglenet.research.experiments.campaign import TrialRow

    datasets = list(paper[rows[0].label])
    header = ["", *(f"{name} (ours)" for name in RECALLS)]
    header += [f"{dataset} {name} (paper)" for dataset in datasets for name in RECALLS]
    cells = []
    for row in rows:
        ours = ["cannot run", "", ""]
        if isinstance(row, TrialRow):
            ours = [row.recall_text("t2v", name) for name in RECALLS]
        theirs = [str(paper[row.label][dataset][name]) for dataset in datasets for name in RECALLS]
        cells.append([row.label, *ours, *theirs])
    return header, cells
