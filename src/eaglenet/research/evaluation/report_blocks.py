"""Blocks of reports: Markdown tables, numbers of the paper, results over datasets, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.core.files import write_bytes, write_text
from eaglenet.research.evaluation.paper import PaperTable, paper_tables
from eaglenet.research.evaluation.run_records import ERRATA, RecipeGroup, as_cells, paper_conditions
from eaglenet.research.evaluation.run_records import TITLES as CONDITIONS


@dataclass(frozen=True)
class Figure:
    """A PNG image; ``name`` is the stem of its file beside the Markdown."""

    name: str
    caption: str
    png: bytes


Block = str | Figure
"""Markdown, or a figure."""


def write_document(folder: Path, title: str, blocks: Sequence[Block]) -> Path:
    """Write ``report.md``, with its figures beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        if isinstance(block, Figure):
            write_bytes(folder / f"{block.name}.png", block.png)
    path = folder / "report.md"
    write_text(path, to_markdown(title, blocks))
    return path


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    texts = [
        f"![{block.caption}]({block.name}.png)\n\n*{block.caption}*"
        if isinstance(block, Figure)
        else block
        for block in blocks
    ]
    return "\n\n".join([f"# {title}", *texts]) + "\n"


def make_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; short rows are padded."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---"] + ["---:"] * (len(header) - 1)
    padded_rows = ([*row, *[""] * (len(header) - len(row))] for row in rows)
    return "\n".join([line(header), line(rule), *map(line, padded_rows)])


RECALLS = ("R@1", "R@5", "R@10")
THREE = ("didemo", "msvd", "vatex")
TWO = ("msrvtt", "didemo")
TITLES = {"msrvtt": "MSR-VTT", "didemo": "DiDeMo", "msvd": "MSVD", "vatex": "VATEX"}


def dataset_and_row(recipe: str) -> tuple[str, str] | None:
    """Split the name of a recipe into its dataset and the rest; None for other datasets.

    >>> dataset_and_row("xpool/msrvtt/clip-b16/paper")
    ('msrvtt', 'xpool/clip-b16/paper')
    """
    method, dataset, axes = (*recipe.split("/", 2), "", "")[:3]
    return (dataset, f"{method}/{axes}") if dataset in TITLES else None


def paper_blocks(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Show tables 1 and 2 of the paper if a run was evaluated on their data."""
    protocols = {
        str(record.get("protocol", ""))
        for group in groups
        for run in group.runs
        for record in (run.metrics or {}, *run.evaluations.values())
    }
    blocks: list[Block] = []
    for name, prefixes, title in (
        ("msrvtt", ("MSR-VTT",), "MSR-VTT 1k-A"),
        ("others", ("DiDeMo", "MSVD", "VATEX"), "DiDeMo, MSVD and VATEX, text to video"),
    ):
        if any(protocol.startswith(prefixes) for protocol in protocols):
            table = paper_tables()[name]
            labels = {row.label for row in table.rows}
            notes = [f"{label}: {note}." for label, note in ERRATA.items() if label in labels]
            text = f"Numbers of the paper on {title}, for comparison; none is ours. (u): uncertain."
            blocks += [f"{text} {' '.join(notes)}", _format_table(table)]
    return ["## The paper's numbers", *blocks] if blocks else []


def _format_table(table: PaperTable) -> str:
    rows = [
        [f"{row.label} (paper)", "-" if row.group == "other" else row.group]
        + ["-" if value is None else f"{value:.1f}" for value in row.values]
        + as_cells(paper_conditions(row.label))
        for row in table.rows
    ]
    return make_table(["method", "tower", *table.columns, *CONDITIONS.values()], rows)


def over_datasets(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Make the columns of tables 2 (Rsum) and 3 (average) over datasets, from our test results."""
    recalls: dict[str, dict[str, dict[str, float]]] = {}
    for group in groups:
        name_parts = dataset_and_row(group.runs[0].name)
        # Runs with changed settings have another label, and no counterpart on other datasets.
        if name_parts is None or group.label != group.runs[0].name:
            continue
        means = _mean_recalls(group)
        if means:
            dataset, row = name_parts
            recalls.setdefault(row, {})[dataset] = means
    blocks: list[Block] = []
    for datasets, title, column in (
        (THREE, "Rsum over DiDeMo, MSVD and VATEX, as table 2 adds it", "Rsum"),
        (TWO, "Average over MSR-VTT and DiDeMo, as in table 3", "average"),
    ):
        rows = []
        for name, values in recalls.items():
            if all(dataset in values for dataset in datasets):
                table = np.array([[values[d][recall] for recall in RECALLS] for d in datasets])
                totals = [table.sum()] if datasets is THREE else table.mean(axis=0)
                rows.append([name, *(f"{value:.1f}" for value in (*table.flat, *totals))])
        if rows:
            header = ["recipe", *(f"{TITLES[d]} {name}" for d in datasets for name in RECALLS)]
            header += [column] if datasets is THREE else [f"{column} {name}" for name in RECALLS]
            blocks += [f"Ours. {title}.", make_table(header, rows)]
    return ["## Over datasets", *blocks] if blocks else []


def _mean_recalls(group: RecipeGroup) -> dict[str, float]:
    """Average text-to-video recalls on the test split; empty if no run was evaluated on it."""
    all_records = [_test_record(run.metrics, run.evaluations, run.selection) for run in group.runs]
    records = [record for record in all_records if record is not None]
    if not records:
        return {}
    return {name: sum(float(r["t2v"][name]) for r in records) / len(records) for name in RECALLS}


def _test_record(
    metrics: Mapping[str, Any] | None,
    evaluations: Mapping[str, Mapping[str, Any]],
    selection: str,
) -> Mapping[str, Any] | None:
    for name, record in evaluations.items():
        if record.get("split", "test" if "test" in name else "") == "test":
            return record
    return metrics if "TEST" in selection else None


def seconds_blocks(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Tabulate the times of table 6 (training epoch, whole test), and of scoring."""
    rows = []
    for group in groups:
        epochs = [run.epoch_seconds for run in group.runs if run.epoch_seconds is not None]
        tests = [
            evaluation_seconds(record)
            for run in group.runs
            for record in (run.metrics or {}, *run.evaluations.values())
        ]
        whole_tests = [seconds[0] for seconds in tests if seconds is not None]
        scorings = [seconds[1] for seconds in tests if seconds is not None]
        if epochs or whole_tests:
            means = [_mean(seconds) for seconds in (epochs, whole_tests, scorings)]
            rows.append([group.label, group.method_title, *means])
    if not rows:
        return []
    header = ["recipe", "method", "training, s per epoch", "whole test, s", "scoring only, s"]
    text = (
        "Ours, on the machines named below. Training epoch without evaluations; whole test with "
        "encoding (and decoding, if frames were not cached), as in table 6 and figure 1 of the "
        "paper."
    )
    # Times of the paper are comparable only on its data.
    is_paper_data = any(
        str((run.metrics or {}).get("protocol", "")).startswith("MSR-VTT")
        for group in groups
        for run in group.runs
    )
    paper = [
        [f"{row.label} (paper, A100)", "", *("-" if v is None else f"{v:.1f}" for v in row.values)]
        for row in (paper_tables()["time"].rows if is_paper_data else ())
    ]
    return ["## Seconds", text, make_table(header, [*rows, *([*row, "-"] for row in paper)])]


def evaluation_seconds(record: Mapping[str, Any]) -> tuple[float, float] | None:
    seconds = record.get("seconds")
    if not isinstance(seconds, Mapping) or "score" not in seconds:
        return None
    return sum(float(value) for value in seconds.values()), float(seconds["score"])


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else "-"
