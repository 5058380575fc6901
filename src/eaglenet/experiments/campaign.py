"""Several experiments with one budget and several seeds, and one table of what they gave."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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

BUDGET = {
    "pairs": "pairs learnt from",
    "batch": "pairs a batch",
    "frames": "frames a video",
    "words": "words at most",
}


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
) -> list[dict[str, Any]]:
    """Train every trial with every seed (finished ones are kept) and evaluate it on ``split``.

    A method that cannot run on the data gives a row that says why. Decoded frames are kept once
    for all of them, in ``folder/frames``.
    """
    if any(SOURCES[trial.experiment.data.dataset].keeps_frames for trial in trials):
        (folder / "frames").mkdir(parents=True, exist_ok=True)
    rows = []
    for trial in trials:
        try:
            build_method(trial.experiment)
        except ConfigError as error:
            rows.append({"label": trial.label, "cannot_run": str(error)})
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
) -> dict[str, Any]:
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
    return {"seed": seed, "evaluation": evaluation, "result": run.result}


def summarise_trial(trial: Trial, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread over seeds; median scoring time; parameters and peak memory."""
    metrics = [
        {name: record["evaluation"][name] for name in ("t2v", "v2t", "Rsum")} for record in records
    ]
    first = records[0]
    peaks = [record["result"]["peak_memory_bytes"] for record in records]
    known = [peak for peak in peaks if peak is not None]
    return {
        "label": trial.label,
        "method": trial.experiment.method,
        "protocol": first["evaluation"]["protocol"],
        "seeds": [record["seed"] for record in records],
        **mean_and_spread(metrics),
        "score_seconds": statistics.median(
            record["evaluation"]["seconds"]["score"] for record in records
        ),
        "test_seconds": statistics.median(
            sum(record["evaluation"]["seconds"].values()) for record in records
        ),
        "epoch_seconds": _median([record["result"].get("epoch_seconds") for record in records]),
        "train_seconds": statistics.median(record["result"]["seconds"] for record in records),
        "parameters": first["result"]["parameters"],
        "budget": budget(trial.experiment, first["result"]),
        "conditions": asdict(
            run_conditions(trial.experiment.to_plain(), first["evaluation"]["protocol"])
        ),
        "peak_memory_bytes": max(known) if known else None,
        "selection": first["result"]["selection"],
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def budget(experiment: Experiment, result: dict[str, Any]) -> dict[str, Any]:
    """What a run was given: recipes of compared methods follow their authors, who differ."""
    return {
        "pairs": result.get("pairs"),
        "batch": experiment.training.batch_size,
        "frames": experiment.data.frames.num_frames,
        "words": experiment.data.max_words,
    }


def row_conditions(rows: Sequence[dict[str, Any]]) -> list[Conditions]:
    """What each row that ran was made under."""
    return [Conditions(**row["conditions"]) for row in rows if row.get("conditions")]


def approximate_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line that names the rows whose method is our reading of an abstract."""
    names = [
        row["label"] for row in rows if row.get("method") and METHODS[row["method"]].is_approximate
    ]
    if not names:
        return []
    return [f"Approximate, read from an abstract: {', '.join(names)}; not their authors' numbers."]


def budget_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence on whether all rows had the same budget, naming what they differ in."""
    given = [row["budget"] for row in rows if row.get("budget")]
    differing = [name for name in BUDGET if len({entry[name] for entry in given}) > 1]
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
    rows: Sequence[dict[str, Any]],
    table: tuple[list[str], list[list[str]]] | None = None,
) -> None:
    """``name.json`` and ``name.md`` in ``folder``, and ``report/`` with the curves of all runs."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", {"title": title, **describe_environment(), "rows": rows})
    lines = [f"# {title}", "", markdown_table(*(table or campaign_table(rows))), ""]
    timed = [row for row in rows if "cannot_run" not in row]
    if timed:
        lines += ["## Recall against test time", ""]
        points = [
            [
                row["label"],
                f"{row['test_seconds']:.2f}",
                f"{row['score_seconds']:.3f}",
                recall_text(row, "t2v", "R@1"),
            ]
            for row in sorted(timed, key=lambda row: float(row["test_seconds"]))
        ]
        header = ["", "whole test s", "of it scoring s", "t2v R@1"]
        lines += [markdown_table(header, points), ""]
        lines += [f"Protocol: {timed[0]['protocol']}; {timed[0]['selection']}.", ""]
        lines += ["## Budget", ""]
        cells = [[row["label"], *_budget_cells(row["budget"])] for row in timed]
        lines += [markdown_table(["", *BUDGET.values()], cells), "", *budget_lines(rows), ""]
        lines += approximate_lines(rows)
        lines += ["## Conditions", ""]
        cells = [
            [row["label"], *as_cells(conditions)]
            for row, conditions in zip(timed, row_conditions(timed), strict=True)
        ]
        lines += [markdown_table(["", *TITLES.values()], cells), ""]
        lines += [*conditions_lines(row_conditions(timed)), ""]
    lines += [*reasons(rows), *left_out_lines(folder, rows)]
    write_text(folder / f"{name}.md", "\n".join(lines))
    if timed:
        runs = [folder / slug(row["label"]) for row in timed]
        report.write_report(runs, folder / "report", title=title)


def slug(label: str) -> str:
    """A folder name for a label."""
    return "".join(letter if letter.isalnum() or letter in "+-._" else "-" for letter in label)


def campaign_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: recalls as mean +- spread, times, sizes."""
    header = [
        "", "t2v R@1", "t2v R@5", "t2v R@10", "v2t R@1", "Rsum",
        "epoch s", "test s", "scoring s", "head params", "peak MiB",
    ]  # fmt: skip
    return header, [_cells(row) for row in rows]


def reasons(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each row that could not run, saying why."""
    return [f"{row['label']}: {row['cannot_run']}" for row in rows if "cannot_run" in row]


def left_out_lines(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line that names the finished runs in ``folder`` which are not in the table."""
    shown = {slug(row["label"]) for row in rows}
    found = {path.parent.parent.name for path in folder.glob(f"*/seed-*/{RESULT}")}
    missing = sorted(found - shown)
    if not missing:
        return []
    return [f"Also in {folder}, not in this table: {', '.join(missing)}; name all to have all."]


def _cells(row: dict[str, Any]) -> list[str]:
    if "cannot_run" in row:
        return [row["label"], "cannot run"]
    peak = row["peak_memory_bytes"]
    return [
        row["label"],
        *(recall_text(row, "t2v", name) for name in ("R@1", "R@5", "R@10")),
        recall_text(row, "v2t", "R@1"),
        f"{row['mean']['Rsum']:.1f}",
        "-" if row["epoch_seconds"] is None else f"{row['epoch_seconds']:.1f}",
        f"{row['test_seconds']:.1f}",
        f"{row['score_seconds']:.3f}",
        f"{row['parameters']['head']:,}",
        f"{peak / 2**20:.0f}" if peak is not None else "-",
    ]


def _budget_cells(given: dict[str, Any]) -> list[str]:
    return ["-" if given[name] is None else f"{given[name]:,}" for name in BUDGET]


def recall_text(row: dict[str, Any], direction: str, name: str) -> str:
    """A recall as mean +- spread; without the spread where there was one seed."""
    value = f"{row['mean'][direction][name]:.1f}"
    if len(row["seeds"]) == 1:
        return value
    return f"{value} +- {row['std'][direction][name]:.1f}"


def markdown_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table; short rows are filled."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in cells:
        filled = [*row, *[""] * (len(header) - len(row))]
        lines.append("| " + " | ".join(filled) + " |")
    return "\n".join(lines)
