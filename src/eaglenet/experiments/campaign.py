"""Several experiments with one budget and several seeds, and one table of what they gave."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.data import SOURCES
from eaglenet.environment import describe_environment
from eaglenet.errors import ConfigError
from eaglenet.evaluation import report
from eaglenet.evaluation.conditions import (
    TITLES,
    Conditions,
    as_cells,
    conditions_lines,
    run_conditions,
)
from eaglenet.evaluation.summary import mean_and_spread
from eaglenet.experiments.build import build_method
from eaglenet.experiments.evaluation import evaluate_run
from eaglenet.experiments.experiment import Experiment
from eaglenet.experiments.runs import RESULT, train
from eaglenet.files import read_json, write_json, write_text
from eaglenet.methods import METHODS
from eaglenet.progress import Progress
from eaglenet.settings import to_plain

BUDGET = {
    "pairs": "pairs learnt from",
    "batch": "pairs a batch",
    "frames": "frames a video",
    "words": "words at most",
}


@dataclass(frozen=True)
class RunBudget:
    """What a run was given: recipes of compared methods follow their authors, who differ."""

    pairs: int | None
    batch: int
    frames: int
    words: int


@dataclass(frozen=True)
class SeedRun:
    """One run of a trial: its result and its evaluation, as they are written beside it."""

    seed: int
    evaluation: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class TrialRow:
    """What a trial gave over its seeds: mean and spread, median times, sizes."""

    label: str
    method: str
    protocol: str
    seeds: tuple[int, ...]
    mean: Mapping[str, Any]
    std: Mapping[str, Any]
    score_seconds: float
    test_seconds: float
    epoch_seconds: float | None
    train_seconds: float
    parameters: Mapping[str, int]
    budget: RunBudget
    conditions: Conditions
    peak_memory_bytes: int | None
    selection: str

    def recall_text(self, direction: str, name: str) -> str:
        """A recall as mean +- spread; without the spread where there was one seed."""
        value = f"{self.mean[direction][name]:.1f}"
        if len(self.seeds) == 1:
            return value
        return f"{value} +- {self.std[direction][name]:.1f}"


@dataclass(frozen=True)
class CannotRun:
    """A trial that its data, or its authors' settings, do not allow, and why."""

    label: str
    cannot_run: str


CampaignRow = TrialRow | CannotRun


@dataclass(frozen=True)
class Trial:
    """One row of a campaign: how it is called, and what to run for it."""

    label: str
    experiment: Experiment


def run_campaign(
    trials: Sequence[Trial],
    seeds: Sequence[int],
    folder: Path,
    *,
    split: str,
    device: str = "auto",
    announce: Callable[[str], Progress | None] = lambda title: None,
) -> list[CampaignRow]:
    """Train every trial with every seed (finished ones are kept) and evaluate it on ``split``.

    A method that cannot run on the data gives a row that says why. Decoded frames are kept once
    for all of them, in ``folder/frames``.
    """
    if any(SOURCES[trial.experiment.data.dataset].keeps_frames for trial in trials):
        (folder / "frames").mkdir(parents=True, exist_ok=True)
    rows: list[CampaignRow] = []
    for trial in trials:
        try:
            build_method(trial.experiment)
        except ConfigError as error:
            rows.append(CannotRun(trial.label, str(error)))
            continue
        records = [
            run_trial(trial, seed, folder, split=split, device=device, announce=announce)
            for seed in seeds
        ]
        rows.append(summarise_trial(trial, records))
    return rows


def run_trial(
    trial: Trial,
    seed: int,
    folder: Path,
    *,
    split: str,
    device: str,
    announce: Callable[[str], Progress | None],
) -> SeedRun:
    """One run: trained (or found), evaluated, and both written beside it."""
    training = dataclasses.replace(trial.experiment.training, seed=seed)
    experiment = dataclasses.replace(trial.experiment, training=training)
    output = folder / slug(trial.label) / f"seed-{seed}"
    progress = announce(f"{trial.label}, seed {seed}")
    run = train(experiment, output, device=device, progress=progress)
    path = output / f"evaluation-{split}.json"
    if path.exists():
        evaluation = read_json(path)
    else:
        evaluation = evaluate_run(output, split=split, device=device).to_dict()
        write_json(path, evaluation)
    return SeedRun(seed, evaluation, run.result)


def summarise_trial(trial: Trial, records: Sequence[SeedRun]) -> TrialRow:
    """Mean and spread over seeds; median scoring time; parameters and peak memory."""
    evaluations = [record.evaluation for record in records]
    results = [record.result for record in records]
    metrics = [{name: one[name] for name in ("t2v", "v2t", "Rsum")} for one in evaluations]
    spread = mean_and_spread(metrics)
    experiment, protocol = trial.experiment, str(evaluations[0]["protocol"])
    known = [one["peak_memory_bytes"] for one in results if one["peak_memory_bytes"] is not None]
    return TrialRow(
        label=trial.label,
        method=experiment.method,
        protocol=protocol,
        seeds=tuple(record.seed for record in records),
        mean=spread["mean"],
        std=spread["std"],
        score_seconds=statistics.median(one["seconds"]["score"] for one in evaluations),
        test_seconds=statistics.median(sum(one["seconds"].values()) for one in evaluations),
        epoch_seconds=_median([one.get("epoch_seconds") for one in results]),
        train_seconds=statistics.median(one["seconds"] for one in results),
        parameters=results[0]["parameters"],
        budget=RunBudget(
            results[0].get("pairs"),
            experiment.training.batch_size,
            experiment.data.frames.num_frames,
            experiment.data.max_words,
        ),
        conditions=run_conditions(experiment.to_plain(), protocol),
        peak_memory_bytes=max(known) if known else None,
        selection=results[0]["selection"],
    )


def finished(rows: Sequence[CampaignRow]) -> list[TrialRow]:
    """The rows that ran."""
    return [row for row in rows if isinstance(row, TrialRow)]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def row_conditions(rows: Sequence[CampaignRow]) -> list[Conditions]:
    """What each row that ran was made under."""
    return [row.conditions for row in finished(rows)]


def approximate_lines(rows: Sequence[CampaignRow]) -> list[str]:
    """A line that names the rows whose method is our reading of an abstract."""
    names = [row.label for row in finished(rows) if METHODS[row.method].is_approximate]
    if not names:
        return []
    return [f"Approximate, read from an abstract: {', '.join(names)}; not their authors' numbers."]


def budget_lines(rows: Sequence[CampaignRow]) -> list[str]:
    """A sentence on whether all rows had the same budget, naming what they differ in."""
    given = [row.budget for row in finished(rows)]
    differing = [name for name in BUDGET if len({getattr(entry, name) for entry in given}) > 1]
    if not given:
        return []
    if not differing:
        return ["All rows had the same budget."]
    listed = " and ".join(", ".join(differing).rsplit(", ", 1))
    return [f"Budgets differ in {listed} (the report lists them): not quite equal terms."]


def write_report(
    folder: Path,
    name: str,
    title: str,
    rows: Sequence[CampaignRow],
    table: tuple[list[str], list[list[str]]] | None = None,
    *,
    paper: Mapping[str, Any] | None = None,
) -> None:
    """``name.json`` and ``name.md`` in ``folder``, and ``report/`` with the curves of all runs.

    ``paper``: by label, the paper's numbers beside ours.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / f"{name}.json",
        {"title": title, **describe_environment(), "rows": plain_rows(rows, paper)},
    )
    lines = [f"# {title}", "", markdown_table(*(table or campaign_table(rows))), ""]
    timed = finished(rows)
    if timed:
        lines += ["## Recall against test time", ""]
        points = [
            [
                row.label,
                f"{row.test_seconds:.2f}",
                f"{row.score_seconds:.3f}",
                row.recall_text("t2v", "R@1"),
            ]
            for row in sorted(timed, key=lambda row: float(row.test_seconds))
        ]
        header = ["", "whole test s", "of it scoring s", "t2v R@1"]
        lines += [markdown_table(header, points), ""]
        lines += [f"Protocol: {timed[0].protocol}; {timed[0].selection}.", ""]
        lines += ["## Budget", ""]
        cells = [[row.label, *_budget_cells(row.budget)] for row in timed]
        lines += [markdown_table(["", *BUDGET.values()], cells), "", *budget_lines(rows), ""]
        lines += approximate_lines(rows)
        lines += ["## Conditions", ""]
        cells = [
            [row.label, *as_cells(conditions)]
            for row, conditions in zip(timed, row_conditions(timed), strict=True)
        ]
        lines += [markdown_table(["", *TITLES.values()], cells), ""]
        lines += [*conditions_lines(row_conditions(timed)), ""]
    lines += [*reasons(rows), *left_out_lines(folder, rows)]
    write_text(folder / f"{name}.md", "\n".join(lines))
    if timed:
        runs = [folder / slug(row.label) for row in timed]
        report.write_report(runs, folder / "report", title=title)


def plain_rows(
    rows: Sequence[CampaignRow], paper: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Rows as JSON takes them, each with what the paper says of it."""
    theirs = {} if paper is None else {row.label: {"paper": paper[row.label]} for row in rows}
    return [{**to_plain(row), **theirs.get(row.label, {})} for row in rows]


def slug(label: str) -> str:
    """A folder name for a label."""
    return "".join(letter if letter.isalnum() or letter in "+-._" else "-" for letter in label)


def campaign_table(rows: Sequence[CampaignRow]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: recalls as mean +- spread, times, sizes."""
    header = [
        "", "t2v R@1", "t2v R@5", "t2v R@10", "v2t R@1", "Rsum",
        "epoch s", "test s", "scoring s", "head params", "peak MiB",
    ]  # fmt: skip
    return header, [_cells(row) for row in rows]


def reasons(rows: Sequence[CampaignRow]) -> list[str]:
    """A line for each row that could not run, saying why."""
    return [f"{row.label}: {row.cannot_run}" for row in rows if isinstance(row, CannotRun)]


def left_out_lines(folder: Path, rows: Sequence[CampaignRow]) -> list[str]:
    """A line that names the finished runs in ``folder`` which are not in the table."""
    shown = {slug(row.label) for row in rows}
    found = {path.parent.parent.name for path in folder.glob(f"*/seed-*/{RESULT}")}
    missing = sorted(found - shown)
    if not missing:
        return []
    return [f"Also in {folder}, not in this table: {', '.join(missing)}; name all to have all."]


def _cells(row: CampaignRow) -> list[str]:
    if isinstance(row, CannotRun):
        return [row.label, "cannot run"]
    peak = row.peak_memory_bytes
    return [
        row.label,
        *(row.recall_text("t2v", name) for name in ("R@1", "R@5", "R@10")),
        row.recall_text("v2t", "R@1"),
        f"{row.mean['Rsum']:.1f}",
        "-" if row.epoch_seconds is None else f"{row.epoch_seconds:.1f}",
        f"{row.test_seconds:.1f}",
        f"{row.score_seconds:.3f}",
        f"{row.parameters['head']:,}",
        f"{peak / 2**20:.0f}" if peak is not None else "-",
    ]


def _budget_cells(given: RunBudget) -> list[str]:
    amounts = (getattr(given, name) for name in BUDGET)
    return ["-" if amount is None else f"{amount:,}" for amount in amounts]


def markdown_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table; short rows are filled."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in cells:
        filled = [*row, *[""] * (len(header) - len(row))]
        lines.append("| " + " | ".join(filled) + " |")
    return "\n".join(lines)
