"""Reports on run folders: tables, differences, curves, recall against time, examples.

Every table has one split and one protocol, and names both. Numbers of the paper are labelled
*paper*. Differences between models are tested with a paired bootstrap over videos, because the
captions of one video are not independent.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.files import write_bytes, write_text
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import FEW_VIDEOS, few_videos
from eaglenet.research.evaluation.evaluate import mean_and_spread
from eaglenet.research.evaluation.figures import (
    Curve,
    Picture,
    QualitativeExample,
    curves_figure,
    qualitative_figure,
    recall_against_time_figure,
)
from eaglenet.research.evaluation.latex import (
    LatexTable,
    escape_latex,
    escape_number,
    find_marks,
    format_cell,
    format_tables,
)
from eaglenet.research.evaluation.paper import PaperTable, paper_tables, recall_against_time
from eaglenet.research.evaluation.run_records import (
    ERRATA,
    TITLES,
    BrokenRun,
    RecipeGroup,
    RunRecord,
    as_cells,
    conditions_lines,
    group_runs,
    paper_conditions,
    read_runs,
    run_conditions,
)


@dataclass(frozen=True)
class Figure:
    """A picture; ``name`` is the stem of its files beside the Markdown."""

    name: str
    caption: str
    picture: Picture


@dataclass(frozen=True)
class Table:
    """A table of our results, as Markdown and for a paper."""

    markdown: str
    latex: LatexTable


Block = str | Figure | Table
"""Markdown, a figure or a table."""
TABLES = "tables.tex"
"""File with the tables of a report as LaTeX."""


def write_document(folder: Path, title: str, blocks: Sequence[Block]) -> Path:
    """Write ``report.md``, with its figures and its tables in LaTeX beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        if isinstance(block, Figure):
            write_bytes(folder / f"{block.name}.png", block.picture.png)
            write_bytes(folder / f"{block.name}.pdf", block.picture.pdf)
    tables = [block.latex for block in blocks if isinstance(block, Table)]
    write_text(folder / TABLES, format_tables(tables))
    path = folder / "report.md"
    write_text(path, to_markdown(title, blocks))
    return path


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    texts = [
        f"![{block.caption}]({block.name}.png)\n\n*{block.caption}* ([PDF]({block.name}.pdf))"
        if isinstance(block, Figure)
        else block.markdown
        if isinstance(block, Table)
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


def plain_table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], num_names: int = 1
) -> Table:
    """Make a table whose cells are the same in Markdown and in LaTeX."""
    latex_rows = [
        [*map(escape_latex, row[:num_names]), *map(escape_number, row[num_names:])] for row in rows
    ]
    names = [escape_latex(name) for name in header]
    return Table(
        make_table(header, rows), LatexTable(caption, names, latex_rows, num_names=num_names)
    )


RECALLS = ("R@1", "R@5", "R@10")
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


DRAWS = 2000
"""Resamplings of the bootstrap."""
CONFIDENCE = 0.95
CHUNK = 100
"""Resamplings computed at a time, to limit memory."""
RANKS = "ranks"
"""Prefix of files with ranks: ``ranks-val.npz`` beside ``evaluation-val.json``."""


@dataclass(frozen=True)
class Difference:
    """Difference of the recalls of two models in percentage points, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def paired_bootstrap(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    groups: NDArray[np.int64],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Difference:
    r"""Compute the confidence interval of ``mean(first) - mean(second)`` over resampled groups.

    .. math:: d_b = \frac{\sum_g n_{bg} \sum_{q \in g} (x_q - y_q)}{\sum_g n_{bg} |g|}, \quad
        n_b \sim \mathrm{Multinomial}(G, 1/G)

    first, second: score of each query (percentage of seeds with a right answer). groups: video of
    each query.
    """
    if not len(first) == len(second) == len(groups) or len(groups) == 0:
        raise UsageError(
            f"{len(first)}, {len(second)} values and {len(groups)} groups: a paired comparison "
            "needs the same queries on both sides; evaluate both on the same split"
        )
    _, index = np.unique(groups, return_inverse=True)
    sums = np.bincount(index, weights=first - second)
    sizes = np.bincount(index).astype(np.float64)
    generator = np.random.default_rng(seed)
    probabilities = np.full(len(sums), 1 / len(sums))
    differences = []
    for start in range(0, draws, CHUNK):
        counts = generator.multinomial(len(sums), probabilities, size=min(CHUNK, draws - start))
        differences.append((counts @ sums) / (counts @ sizes))
    values = np.concatenate(differences)
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    mean = float(sums.sum() / sizes.sum())
    return Difference(mean, float(low), float(high))


def read_ranks(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read the ranks ``t2v`` and ``v2t`` of a run, and ``video_of_text``."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in ("t2v", "v2t", "video_of_text")}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise UsageError(
            f"{path}: ranks cannot be read ({error}); delete it and evaluate again"
        ) from error


def compare_ranks(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    direction: str = "t2v",
) -> Difference:
    """Compare R@1 of two models, with the mean over seeds of each query."""
    records = (*first, *second)
    counts = {len(record[direction]) for record in records}
    video_of_text = first[0]["video_of_text"]
    is_same = all(np.array_equal(record["video_of_text"], video_of_text) for record in records)
    if len(counts) != 1 or not is_same:
        raise UsageError("the two models were evaluated on different queries")
    groups = video_of_text if direction == "t2v" else np.arange(counts.pop())
    first_scores, second_scores = (
        100.0 * np.mean([record[direction] <= 1 for record in side], axis=0)
        for side in (first, second)
    )
    return paired_bootstrap(first_scores, second_scores, groups)


DIFFERENCE_NOTE = (
    "Differences of R@1 in percentage points, with 95% intervals (paired bootstrap, 2,000 "
    "resamplings of videos with their captions). If the interval contains 0 (no *), there is no "
    "clear difference."
)


Ranks = Mapping[str, Sequence[Mapping[str, Any]]]
"""Ranks of the runs of each recipe, by label."""


def difference_blocks(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Compare all recipes with the best and with the first, on every split with ranks.

    Only results of one protocol are compared: other data may have as many queries.
    """
    blocks: list[Block] = []
    folders = [run.folder for group in groups for run in group.runs]
    for name in sorted({file.stem for path in folders for file in path.glob(f"{RANKS}-*.npz")}):
        suffix = name.removeprefix(RANKS)
        tables = [
            block
            for protocol, ranks in _ranks_by_protocol(groups, suffix).items()
            if len(ranks) > 1
            for block in (*([f"Protocol: {protocol}"] if protocol else []), *_differences(ranks))
        ]
        if tables:
            split = split_title(suffix.lstrip("-"))
            blocks += [f"## Differences on the {split}", DIFFERENCE_NOTE, *tables]
    return blocks


def _ranks_by_protocol(
    groups: Sequence[RecipeGroup], suffix: str
) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    """Read ``ranks`` files, by the protocol of the evaluation beside them, and by label."""
    ranks: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for group in groups:
        for run in group.runs:
            path = run.folder / f"{RANKS}{suffix}.npz"
            if path.exists():
                evaluation = run.evaluations.get(f"evaluation{suffix}", {})
                by_label = ranks.setdefault(str(evaluation.get("protocol", "")), {})
                by_label.setdefault(group.label, []).append(read_ranks(path))
    return ranks


def _differences(ranks: Ranks) -> list[Block]:
    """Compare all recipes of one protocol with the best and with the first."""
    recalls = {
        label: np.mean([np.mean(record["t2v"] <= 1) for record in records])
        for label, records in ranks.items()
    }
    best = max(recalls, key=lambda label: recalls[label])
    first = next(iter(ranks))
    # Without `best`, which the first table has with the opposite sign.
    others = {label: entry for label, entry in ranks.items() if label != best}
    blocks: list[Block] = []
    for base, compared in ((best, ranks), (first, others)):
        rows = difference_rows(compared, base) if base in compared else []
        if rows:
            text = f"R@1 minus that of {base}"
            caption = f"{text}. {DIFFERENCE_NOTE}"
            blocks += [f"{text}:", plain_table(caption, ["recipe", "t2v", "v2t"], rows)]
    return blocks


def difference_rows(ranks: Ranks, base: str) -> list[list[str]]:
    """Compare each recipe with ``base``, one row each; * marks an interval without 0."""
    rows = []
    for label, records in ranks.items():
        if label == base:
            continue
        cells = []
        for direction in ("t2v", "v2t"):
            try:
                difference = compare_ranks(records, ranks[base], direction)
            except UsageError:
                cells.append("other queries")
                continue
            cells.append(f"{difference}{' *' if difference.is_clear else ''}")
        rows.append([label, *cells])
    return rows


METRICS = ("R@1", "R@5", "R@10", "MdR", "MnR")


@dataclass(frozen=True)
class Report:
    """The files of a report, and the runs that it could not include."""

    markdown: Path
    latex: Path
    num_runs: int
    unreadable_runs: tuple[BrokenRun, ...]
    unfinished_runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]


def write_report(
    folders: Sequence[Path],
    output: Path,
    *,
    title: str = "Report",
    first_split: str = "test",
    examples: Sequence[QualitativeExample] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Read the runs and write ``report.md`` into ``output``, with ``first_split`` first.

    Its tables of our results are also written as LaTeX, into :data:`TABLES`.
    """
    runs, unreadable_runs = read_runs(folders)
    if not runs:
        reasons = "; ".join(f"{entry.folder}: {entry.reason}" for entry in unreadable_runs)
        raise UsageError(f"no runs to report ({reasons or 'no folder given'})")
    groups = group_runs(runs)
    unfinished_runs = [run for run in runs if not run.is_finished]
    notes = list(notes)
    blocks = [*_results(groups, first_split), *_conditions(groups)]
    blocks += difference_blocks(groups)
    blocks += [*dataset_blocks(groups), *time_blocks(groups), *paper_blocks(groups)]
    blocks += _figures(runs, groups, examples, notes)
    blocks += [*_provenance(runs), *_problems(runs, unreadable_runs), *notes]
    path = write_document(output, title, blocks)
    return Report(
        path,
        output / TABLES,
        len(runs),
        tuple(unreadable_runs),
        tuple(unfinished_runs),
        tuple(notes),
    )


SPLITS = {"test": "test split", "val": "validation split", "train": "training split"}


def split_title(split: str) -> str:
    return SPLITS.get(split, split)


def _results(groups: Sequence[RecipeGroup], first_split: str) -> list[Block]:
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


def _conditions(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Tabulate the conditions of each recipe, and name the differences."""
    conditions = [
        run_conditions(
            group.runs[0].settings, str((group.runs[0].metrics or {}).get("protocol", ""))
        )
        for group in groups
    ]
    if not conditions:
        return []
    rows = [
        [group.label, *as_cells(entry)] for group, entry in zip(groups, conditions, strict=True)
    ]
    lines = conditions_lines(conditions)
    return ["## Conditions", make_table(["recipe", *TITLES.values()], rows), *lines]


def _figures(
    runs: Sequence[RunRecord],
    groups: Sequence[RecipeGroup],
    examples: Sequence[QualitativeExample],
    notes: list[str],
) -> list[Block]:
    blocks: list[Block] = []

    def add(name: str, caption: str, draw: Callable[[], Picture]) -> None:
        try:
            blocks.append(Figure(name, caption, draw()))
        except EagleNetError as error:
            notes.append(f"Left out: {caption}: {error}")

    losses, recalls = _loss_curves(runs), _recall_curves(runs)
    if losses:
        add("loss", "Training loss", lambda: curves_figure(
            losses, title="training loss", x_label="step", y_label="loss", log_y=True))  # fmt: skip
    if recalls:
        add("recall", "Text-to-video R@1 after each epoch, on the split used for selection",
            lambda: curves_figure(recalls, title="text-to-video R@1", x_label="epoch",
                                  y_label="R@1 (%)", is_percent=True))  # fmt: skip
    for number, (protocol, points) in enumerate(_time_points(groups).items()):
        name = "recall_against_time" + (f"_{number + 1}" if number else "")
        add(name, f"Recall against whole test time. Ours: {protocol}. Right panel: paper",
            lambda points=points, protocol=protocol: recall_against_time_figure(  # type: ignore[misc]
                points, recall_against_time(), protocol=protocol))  # fmt: skip
    if examples:
        caption = "Queries on which the runs disagree, with the best videos of each: right green, "
        add("examples", f"{caption}wrong red", lambda: qualitative_figure(examples))
    return ["## Figures", *blocks] if blocks else []


def _loss_curves(runs: Sequence[RunRecord]) -> list[Curve]:
    curves = []
    for run in runs:
        points = [
            (entry.step, _loss(entry.values))
            for entry in run.steps
            if _loss(entry.values) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            curves.append(Curve(_run_label(run), x, y))
    return curves


def _loss(step: Mapping[str, Any]) -> float | None:
    value = step.get("total", step.get("loss"))
    return float(value) if isinstance(value, int | float) else None


def _recall_curves(runs: Sequence[RunRecord]) -> list[Curve]:
    return [
        Curve(
            _run_label(run),
            [
                entry.values.get("epoch", number)
                for number, entry in enumerate(run.history, start=1)
            ],
            [entry.values["t2v"]["R@1"] for entry in run.history],
        )
        for run in runs
        if run.history
    ]


def _run_label(run: RunRecord) -> str:
    return f"{run.name}, seed {run.seed}" + ("" if run.is_finished else " (unfinished)")


def _time_points(groups: Sequence[RecipeGroup]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the mean seconds of the whole test and mean R@1, by protocol and recipe."""
    points: dict[str, dict[str, tuple[float, float]]] = {}
    for group in groups:
        by_protocol: dict[str, list[tuple[float, float]]] = {}
        for run in group.runs:
            for record in (run.metrics or {}, *run.evaluations.values()):
                seconds = evaluation_seconds(record)
                if seconds is not None:
                    point = (seconds[0], float(record["t2v"]["R@1"]))
                    by_protocol.setdefault(str(record.get("protocol", "?")), []).append(point)
        for protocol, pairs in by_protocol.items():
            mean = (sum(p[0] for p in pairs) / len(pairs), sum(p[1] for p in pairs) / len(pairs))
            points.setdefault(protocol, {})[group.label] = mean
    return points


def _provenance(runs: Sequence[RunRecord]) -> list[Block]:
    rows = []
    for run in runs:
        versions, hardware, data = (
            _mapping(run.manifest.get(name)) for name in ("versions", "hardware", "data")
        )
        device = ", ".join(hardware.get("gpus", [])) or hardware.get("processor", "?")
        videos = "; ".join(
            f"{name} {counts.get('videos_found', '?')} found, {counts.get('videos_missing', '?')} "
            "missing"
            for name, counts in ((name, _mapping(value)) for name, value in data.items())
        )
        commit = str(run.manifest.get("commit") or "?")[:12]
        # Runs of a campaign are called seed-N; the parent folder has the name of the recipe.
        short_folder = "/".join(run.folder.resolve().parts[-2:])
        rows.append([short_folder, str(run.seed), commit, str(versions.get("torch", "?")),
                     str(device), videos or "?"])  # fmt: skip
    return [
        "## Software and hardware",
        make_table(["run", "seed", "commit", "torch", "hardware", "videos"], rows),
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _problems(runs: Sequence[RunRecord], unreadable_runs: Sequence[BrokenRun]) -> list[Block]:
    rows = [[str(run.folder), run.problem] for run in runs if run.problem]
    rows += [[str(entry.folder), entry.reason] for entry in unreadable_runs]
    if not rows:
        return []
    return ["## Unfinished or unreadable runs", make_table(["folder", "problem"], rows)]
