"""Tables of results: by split and protocol, over datasets, in seconds, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eaglenet.methods import METHODS
from eaglenet.research.data.sources import FEW_VIDEOS, few_videos
from eaglenet.research.evaluation.conditions import ERRATA, TITLES, as_cells, paper_conditions
from eaglenet.research.evaluation.document import Block, Table, make_table, plain_table
from eaglenet.research.evaluation.evaluate import mean_and_spread
from eaglenet.research.evaluation.latex import LatexTable, escape_latex, find_marks, format_cell
from eaglenet.research.evaluation.paper import RECALLS, PaperTable, paper_tables
from eaglenet.research.evaluation.run_records import RecipeGroup

METRICS = ("R@1", "R@5", "R@10", "MdR", "MnR")
SPLITS = {"test": "test split", "val": "validation split", "train": "training split"}


def split_title(split: str) -> str:
    return SPLITS.get(split, split)


def result_blocks(groups: Sequence[RecipeGroup], first_split: str) -> list[Block]:
    """Make one section per evaluated split, then the scores of the selected epochs."""
    if not groups:
        return ["## Results", "No run has finished yet."]
    sections: dict[str, list[tuple[RecipeGroup, Sequence[Mapping[str, Any]]]]] = {}
    for name in sorted(
        {name for group in groups for run in group.runs for name in run.evaluations}
    ):
        for group in groups:
            records = [run.evaluations[name] for run in group.runs if name in run.evaluations]
            if records:
                suffix = name.removeprefix("evaluation").strip("-_") or "other data"
                split = str(records[0].get("split") or suffix)
                sections.setdefault(split_title(split), []).append((group, records))
    order = sorted(sections, key=lambda title: title != split_title(first_split))
    blocks: list[Block] = []
    for title in order:
        blocks += [f"## Results on the {title}", OURS, *_tables(sections[title])]
    selections: dict[str, list[tuple[RecipeGroup, Sequence[Mapping[str, Any]]]]] = {}
    for group in groups:
        records = [run.metrics for run in group.runs if run.metrics]
        selections.setdefault(group.runs[0].selection, []).append((group, records))
    for selection, entries in selections.items():
        split = "test" if "TEST" in selection else "val"
        title, tables = split_title(split), _tables(entries)
        if title in sections and tables == _tables(sections[title]):
            blocks.append(f"{selection.capitalize()}.")  # That section has the same scores.
            continue
        heading = f"## Selected epoch, on the {title}"
        blocks += [heading, f"{OURS} {selection.capitalize()}.", *tables]
    return blocks


OURS = "Ours. Mean +- sample standard deviation over seeds."


@dataclass(frozen=True)
class ResultRow:
    """Mean and deviation of the metrics of a recipe under one protocol."""

    group: RecipeGroup
    count: int
    mean: Mapping[str, Any]
    deviation: Mapping[str, Any]

    @property
    def numbers(self) -> list[tuple[float, float]]:
        """Means and deviations in the order of the columns of a table."""
        pairs = [
            (self.mean[direction][name], self.deviation[direction][name])
            for direction in ("t2v", "v2t")
            for name in METRICS
        ]
        return [*pairs, (self.mean["Rsum"], self.deviation["Rsum"])]

    @property
    def cells(self) -> list[str]:
        numbers = (format_spread(*pair, self.count) for pair in self.numbers)
        return [self.group.label, self.group.method_title, str(self.count), *numbers]


def _tables(records: Sequence[tuple[RecipeGroup, Sequence[Mapping[str, Any]]]]) -> list[Block]:
    """Make one table per protocol."""
    by_protocol: dict[str, list[ResultRow]] = {}
    for group, results in records:
        for protocol in dict.fromkeys(str(record.get("protocol", "?")) for record in results):
            matches = [record for record in results if str(record.get("protocol", "?")) == protocol]
            by_protocol.setdefault(protocol, []).append(_row(group, matches))
    header = ["recipe", "method", "seeds", *(f"t2v {name}" for name in METRICS)]
    header += [*(f"v2t {name}" for name in METRICS), "Rsum"]
    counts = [
        int(record["v2t"].get("queries", FEW_VIDEOS)) for _, each in records for record in each
    ]
    cautions = [f"Caution: {text}." for text in few_videos(min(counts, default=FEW_VIDEOS))]
    blocks: list[Block] = []
    for protocol, rows in by_protocol.items():
        markdown = make_table(header, [row.cells for row in rows])
        latex = result_latex(protocol, rows, cautions)
        blocks += [f"Protocol: {protocol}", Table(markdown, latex)]
    return [*blocks, *cautions]


LOWER_IS_BETTER = ("MdR", "MnR")


def result_latex(
    protocol: str, rows: Sequence[ResultRow], comments: Sequence[str] = ()
) -> LatexTable:
    """Typeset results under one protocol, both directions side by side."""
    methods = [row.group.method for row in rows]
    is_unique = len(set(methods)) == len(methods)
    approximate = [name in METHODS and METHODS[name].is_approximate for name in methods]
    names = [
        escape_latex(row.group.method if is_unique else row.group.label) + r"$^\dagger$" * is_marked
        for row, is_marked in zip(rows, approximate, strict=True)
    ]
    metrics = [*METRICS, *METRICS, "Rsum"]
    columns = [[row.numbers[index][0] for row in rows] for index in range(len(metrics))]
    marks = [
        find_marks(values, is_lower_better=name in LOWER_IS_BETTER)
        for name, values in zip(metrics, columns, strict=True)
    ]
    cells = [
        [
            name,
            *(
                format_cell(*pair, row.count, column[index])
                for pair, column in zip(row.numbers, marks, strict=True)
            ),
        ]
        for index, (name, row) in enumerate(zip(names, rows, strict=True))
    ]
    counts = sorted({row.count for row in rows})
    caption = [f"Text-video retrieval, {protocol}."]
    if len(counts) > 1:
        caption.append("Mean and sample standard deviation over seeds, with their number.")
        cells = [
            [name, str(row.count), *values]
            for (name, *values), row in zip(cells, rows, strict=True)
        ]
    elif counts[0] > 1:
        caption.append(f"Mean and sample standard deviation over {counts[0]} seeds.")
    if any("textbf" in column for column in marks):
        second = ", second best underlined" * any("underline" in column for column in marks)
        caption.append(f"Best in bold{second}.")
    if any(approximate):
        caption.append("A dagger marks methods implemented from their abstracts.")
    selections = dict.fromkeys(row.group.runs[0].selection for row in rows)
    caption += [f"{selection[:1].upper()}{selection[1:]}." for selection in selections if selection]
    seeds = ["seeds"] * (len(counts) > 1)
    return LatexTable(
        " ".join(caption),
        ["method", *seeds, *metrics],
        cells,
        [("", 1 + len(seeds)), ("text to video", 5), ("video to text", 5), ("", 1)],
        comments=comments,
    )


def _row(group: RecipeGroup, records: Sequence[Mapping[str, Any]]) -> ResultRow:
    numbers = [
        {direction: {name: float(record[direction][name]) for name in METRICS}
         for direction in ("t2v", "v2t")} | {"Rsum": float(record["Rsum"])}
        for record in records
    ]  # fmt: skip
    summary = mean_and_spread(numbers)
    return ResultRow(group, len(records), summary["mean"], summary["std"])


def format_spread(mean: float, deviation: float, count: int) -> str:
    """Format ``12.3 +- 0.4``; without the deviation if ``count`` is 1."""
    return f"{mean:.1f} +- {deviation:.1f}" if count > 1 else f"{mean:.1f}"


RSUM_DATASETS = ("didemo", "msvd", "vatex")
AVERAGE_DATASETS = ("msrvtt", "didemo")
DATASETS = {"msrvtt": "MSR-VTT", "didemo": "DiDeMo", "msvd": "MSVD", "vatex": "VATEX"}


def dataset_and_row(recipe: str) -> tuple[str, str] | None:
    """Split the name of a recipe into its dataset and the rest; None for other datasets.

    >>> dataset_and_row("xpool/msrvtt/clip-b16/paper")
    ('msrvtt', 'xpool/clip-b16/paper')
    """
    method, dataset, axes = (*recipe.split("/", 2), "", "")[:3]
    return (dataset, f"{method}/{axes}") if dataset in DATASETS else None


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
    return make_table(["method", "tower", *table.columns, *TITLES.values()], rows)


def dataset_blocks(groups: Sequence[RecipeGroup]) -> list[Block]:
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
        (RSUM_DATASETS, "Rsum over DiDeMo, MSVD and VATEX, as table 2 adds it", "Rsum"),
        (AVERAGE_DATASETS, "Average over MSR-VTT and DiDeMo, as in table 3", "average"),
    ):
        rows = []
        for name, values in recalls.items():
            if all(dataset in values for dataset in datasets):
                table = np.array([[values[d][recall] for recall in RECALLS] for d in datasets])
                totals = [table.sum()] if datasets is RSUM_DATASETS else table.mean(axis=0)
                rows.append([name, *(f"{value:.1f}" for value in (*table.flat, *totals))])
        if rows:
            header = ["recipe", *(f"{DATASETS[d]} {name}" for d in datasets for name in RECALLS)]
            header += (
                [column] if datasets is RSUM_DATASETS else [f"{column} {name}" for name in RECALLS]
            )
            blocks += [f"Ours. {title}.", plain_table(f"{title}.", header, rows)]
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


def time_blocks(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Tabulate the times of table 6 (training epoch, whole test), and of scoring.

    A row is of one protocol: other splits of a run have other sizes.
    """
    rows = []
    for group in groups:
        epochs = [run.epoch_seconds for run in group.runs if run.epoch_seconds is not None]
        tests: dict[str, list[Mapping[str, Any]]] = {}
        for run in group.runs:
            for record in (run.metrics or {}, *run.evaluations.values()):
                if evaluation_seconds(record) is not None:
                    tests.setdefault(str(record.get("protocol", "?")), []).append(record)
        if epochs and not tests:
            tests["-"] = []
        for protocol, records in tests.items():
            seconds = [pair for record in records if (pair := evaluation_seconds(record))]
            whole_test = _mean([whole for whole, _ in seconds])
            if any(record.get("stored_features") for record in records):
                whole_test += " (head)"
            scoring = _mean([score for _, score in seconds])
            label, title = group.label, group.method_title
            rows.append([label, title, protocol, _mean(epochs), whole_test, scoring])
    if not rows:
        return []
    header = ["recipe", "method", "evaluated on"]
    header += ["training, s per epoch", "whole test, s", "scoring only, s"]
    text = (
        "Ours, on the machines named below. Training epoch without evaluations; whole test with "
        "encoding, from decoded frames, as in table 6 and figure 1 of the paper. (head): from "
        "stored features, whose towers did not run."
    )
    # Times of the paper are comparable only on its data.
    is_paper_data = any(
        str((run.metrics or {}).get("protocol", "")).startswith("MSR-VTT")
        for group in groups
        for run in group.runs
    )
    paper = [
        [f"{row.label} (paper, A100)", "", "MSR-VTT 1k-A"]
        + ["-" if value is None else f"{value:.1f}" for value in row.values]
        for row in (paper_tables()["time"].rows if is_paper_data else ())
    ]
    # A paper's times are on its own machine: a table of ours leaves them out.
    latex = plain_table(text, header, rows, num_names=3).latex
    markdown = make_table(header, [*rows, *([*row, "-"] for row in paper)])
    return ["## Seconds", text, Table(markdown, latex)]


def evaluation_seconds(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the seconds of an evaluation, and those of its scoring; None if not recorded."""
    seconds = record.get("seconds")
    if not isinstance(seconds, Mapping) or "score" not in seconds:
        return None
    return sum(float(value) for value in seconds.values()), float(seconds["score"])


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else "-"
