"""Campaigns: train several experiments with several seeds, and tabulate their results."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.files import write_json, write_text
from eaglenet.core.progress import Progress
from eaglenet.core.settings import split_assignment, to_plain
from eaglenet.methods import METHODS
from eaglenet.research.data import SOURCES
from eaglenet.research.data.sources import few_videos
from eaglenet.research.evaluation import report
from eaglenet.research.evaluation.evaluate import mean_and_spread
from eaglenet.research.evaluation.report_blocks import make_table, to_markdown
from eaglenet.research.evaluation.run_records import (
    RESULT,
    TITLES,
    Conditions,
    as_cells,
    conditions_lines,
    describe_environment,
    run_conditions,
)
from eaglenet.research.experiments.build import ExperimentCheck, build_method, check_experiment
from eaglenet.research.experiments.trials import (
    Failure,
    Job,
    SeedRun,
    Trial,
    make_job,
    run_jobs,
    slug,
)
from eaglenet.research.training.distributed import join

logger = logging.getLogger(__name__)
SEARCH_FOLDER = "search"


@dataclass(frozen=True)
class Search:
    """Values of one setting, such as ``training.lr_head``, among which every method chooses."""

    setting: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Search:
        """Parse ``training.lr_head=1e-4,3e-4``."""
        setting, texts = split_assignment(text, "training.lr_head=1e-4,3e-4")
        values = tuple(dict.fromkeys(value.strip() for value in texts.split(",") if value.strip()))
        if len(values) < 2:
            raise UsageError(f"--search {text}: expected two or more values, separated by commas")
        return cls(setting, values)


def search_setting(
    trials: Sequence[Trial],
    search: Search,
    seed: int,
    folder: Path,
    *,
    device: str,
    jobs: int,
    announce: Callable[[str], Progress | None],
) -> list[Trial]:
    """Return the trials, each with the value of the best validation R@1 with ``seed``.

    The best run becomes the run of that seed. ``search.json`` lists the score of each value.
    """
    candidates: dict[tuple[str, str], Job] = {}
    for value in search.values:
        for trial in trials:
            candidate = Trial(trial.label, trial.experiment.override([f"{search.setting}={value}"]))
            job = make_job(candidate, seed, folder, split="val", device=device)
            output = folder / SEARCH_FOLDER / slug(trial.label) / slug(value)
            title = f"{trial.label}, {search.setting}={value}"
            candidates[trial.label, value] = dataclasses.replace(job, title=title, output=output)
    outcomes = run_jobs(list(candidates.values()), jobs, announce)
    tuned_trials, table = [], {}
    for trial in trials:
        scores = {
            value: outcome.result["metrics"]["t2v"]["R@1"]
            for value in search.values
            if isinstance(outcome := outcomes[candidates[trial.label, value].output], SeedRun)
        }
        table[trial.label] = scores
        if not scores:
            tuned_trials.append(trial)
            continue
        best = max(scores, key=lambda value: scores[value])
        logger.info("%s: %s=%s is best of %s", trial.label, search.setting, best, scores)
        experiment = trial.experiment.override([f"{search.setting}={best}"])
        tuned_trials.append(Trial(trial.label, experiment))
        output = make_job(tuned_trials[-1], seed, folder, split="val", device=device).output
        if not output.exists():
            shutil.copytree(candidates[trial.label, best].output, output)
    write_json(folder / "search.json", {"setting": search.setting, "val t2v R@1": table})
    return tuned_trials


BUDGET = {
    "pairs": "training pairs",
    "batch": "pairs per batch",
    "frames": "frames per video",
    "words": "words at most",
}
"""Titles of the fields of a training budget, in which the settings of authors differ."""


@dataclass(frozen=True)
class TrialRow:
    """Results of a trial over its seeds: mean and spread of metrics, median times.

    pair_seconds: seconds to score N texts with N videos, by N (as text, for JSON).
    """

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
    budget: Mapping[str, int | None]
    conditions: Conditions
    peak_memory_bytes: int | None
    selection: str
    pair_seconds: Mapping[str, float] = field(default_factory=dict)

    def recall_text(self, direction: str, name: str) -> str:
        """Format a recall as mean +- spread; without spread for one seed."""
        mean, spread = self.mean[direction][name], self.std[direction][name]
        return report.format_spread(mean, spread, len(self.seeds))


@dataclass(frozen=True)
class CannotRun:
    label: str
    cannot_run: str


CampaignRow = TrialRow | CannotRun


def run_campaign(
    trials: Sequence[Trial],
    seeds: Sequence[int],
    folder: Path,
    *,
    split: str,
    device: str = "auto",
    jobs: int = 1,
    search: Search | None = None,
    announce: Callable[[str], Progress | None] = lambda title: None,
) -> list[CampaignRow]:
    """Train every trial with every seed and evaluate it on ``split``; reuse finished runs.

    A method that cannot run on the data gets a row with the reason. All runs share the decoded
    frames in ``folder/frames``; ``jobs`` runs are trained at a time. With ``search``, each trial
    first tries the values of one setting with the first seed, and uses the best.
    """
    if any(SOURCES[trial.experiment.data.dataset].keeps_frames for trial in trials):
        (folder / "frames").mkdir(parents=True, exist_ok=True)
    runnable: list[Trial] = []
    rows: dict[str, CampaignRow] = {}
    for trial in trials:
        try:
            build_method(trial.experiment)
            runnable.append(trial)
        except ConfigError as error:
            rows[trial.label] = CannotRun(trial.label, str(error))
    if search is not None:
        runnable = search_setting(
            runnable, search, seeds[0], folder, device=device, jobs=jobs, announce=announce
        )
    jobs_of = {
        trial.label: [make_job(trial, seed, folder, split=split, device=device) for seed in seeds]
        for trial in runnable
    }
    # Seed by seed, so that runs of the largest method do not share a device.
    order = [jobs_of[trial.label][index] for index in range(len(seeds)) for trial in runnable]
    results = run_jobs(order, jobs, announce)
    for trial in runnable:
        outcomes = [results[job.output] for job in jobs_of[trial.label]]
        records = [outcome for outcome in outcomes if isinstance(outcome, SeedRun)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        for failure in failures:
            logger.warning("%s failed: %s", failure.title, failure.reason)
        if records:
            rows[trial.label] = summarise_trial(trial, records)
        else:
            rows[trial.label] = CannotRun(trial.label, f"every run failed: {failures[0].reason}")
    return [rows[trial.label] for trial in trials]


def summarise_trial(trial: Trial, records: Sequence[SeedRun]) -> TrialRow:
    """Summarise the runs of a trial over its seeds."""
    evaluations = [record.evaluation for record in records]
    results = [record.result for record in records]
    metrics = [{name: entry[name] for name in ("t2v", "v2t", "Rsum")} for entry in evaluations]
    spread = mean_and_spread(metrics)
    experiment, protocol = trial.experiment, str(evaluations[0]["protocol"])
    peaks = [run["peak_memory_bytes"] for run in results if run["peak_memory_bytes"] is not None]
    epochs = [run["epoch_seconds"] for run in results if run.get("epoch_seconds") is not None]
    return TrialRow(
        label=trial.label,
        method=experiment.method,
        protocol=protocol,
        seeds=tuple(record.seed for record in records),
        mean=spread["mean"],
        std=spread["std"],
        score_seconds=statistics.median(entry["seconds"]["score"] for entry in evaluations),
        test_seconds=statistics.median(sum(entry["seconds"].values()) for entry in evaluations),
        epoch_seconds=statistics.median(epochs) if epochs else None,
        train_seconds=statistics.median(run["seconds"] for run in results),
        parameters=results[0]["parameters"],
        budget={
            "pairs": results[0].get("pairs"),
            "batch": experiment.training.batch_size,
            "frames": experiment.data.frames.num_frames,
            "words": experiment.data.max_words,
        },
        conditions=run_conditions(experiment.to_plain(), protocol),
        peak_memory_bytes=max(peaks) if peaks else None,
        selection=results[0]["selection"],
    )


def check_trials(trials: Sequence[Trial], device: str) -> dict[str, ExperimentCheck | str]:
    """Check every trial without training; return the check or the problem by label.

    Raises:
        EagleNetError: data or weights are missing, which affects all trials.
    """
    checks: dict[str, ExperimentCheck | str] = {}
    with join(device) as world:
        for trial in trials:
            try:
                checks[trial.label] = check_experiment(trial.experiment, world)
            except ConfigError as error:
                checks[trial.label] = str(error)
    return checks


def finished_rows(rows: Sequence[CampaignRow]) -> list[TrialRow]:
    return [row for row in rows if isinstance(row, TrialRow)]


def remarks(folder: Path, rows: Sequence[CampaignRow]) -> list[str]:
    """List differences between the rows, rows that could not run, and runs that are no row."""
    return [
        *size_lines(rows),
        *budget_lines(rows),
        *conditions_lines([row.conditions for row in finished_rows(rows)]),
        *approximate_lines(rows),
        *reasons(rows),
        *left_out_lines(folder, rows),
    ]


def size_lines(rows: Sequence[CampaignRow]) -> list[str]:
    """Warn if the split has too few videos; each of them is one video-to-text query."""
    counts = [round(row.mean["v2t"]["queries"]) for row in finished_rows(rows)]
    return list(few_videos(min(counts))) if counts else []


def approximate_lines(rows: Sequence[CampaignRow]) -> list[str]:
    """Name the rows whose method was implemented from an abstract."""
    names = [row.label for row in finished_rows(rows) if METHODS[row.method].is_approximate]
    if not names:
        return []
    return [f"Implemented from abstracts: {', '.join(names)}; not the numbers of their authors."]


def budget_lines(rows: Sequence[CampaignRow]) -> list[str]:
    """Say whether all rows have the same budget, and which fields differ."""
    budgets = [row.budget for row in finished_rows(rows)]
    differences = [name for name in BUDGET if len({budget[name] for budget in budgets}) > 1]
    if not budgets:
        return []
    if not differences:
        return ["All rows had the same budget."]
    names = " and ".join(", ".join(differences).rsplit(", ", 1))
    return [f"Budgets differ in {names} (the report lists them): not an equal comparison."]


def write_report(
    folder: Path,
    name: str,
    title: str,
    rows: Sequence[CampaignRow],
    table: tuple[list[str], list[list[str]]] | None = None,
    *,
    split: str,
    paper: Mapping[str, Any] | None = None,
) -> None:
    """Write ``name.json``, ``name.md`` and ``report/`` into ``folder``.

    table: header and cells; :func:`campaign_table` by default. split: the evaluated split. paper:
    the paper's numbers by label.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / f"{name}.json",
        {"title": title, "split": split, **describe_environment(), "rows": plain_rows(rows, paper)},
    )
    trial_rows = finished_rows(rows)
    blocks = [make_table(*(table or campaign_table(rows)))]
    if trial_rows:
        points = [
            [
                row.label,
                f"{row.test_seconds:.2f}",
                f"{row.score_seconds:.3f}",
                row.recall_text("t2v", "R@1"),
            ]
            for row in sorted(trial_rows, key=lambda row: float(row.test_seconds))
        ]
        budgets = [
            [row.label, *("-" if n is None else f"{n:,}" for n in row.budget.values())]
            for row in trial_rows
        ]
        conditions = [[row.label, *as_cells(row.conditions)] for row in trial_rows]
        blocks += [
            "## Recall against test time",
            make_table(["", "whole test s", "of it scoring s", "t2v R@1"], points),
            f"Split: {split}. Protocol: {trial_rows[0].protocol}; {trial_rows[0].selection}.",
            *size_lines(rows),
            "## Budget",
            make_table(["", *BUDGET.values()], budgets),
            *budget_lines(rows),
            *approximate_lines(rows),
            "## Conditions",
            make_table(["", *TITLES.values()], conditions),
            *conditions_lines([row.conditions for row in trial_rows]),
        ]
    blocks += [*reasons(rows), *left_out_lines(folder, rows)]
    write_text(folder / f"{name}.md", to_markdown(title, blocks))
    if trial_rows:
        runs = [folder / slug(row.label) for row in trial_rows]
        report.write_report(runs, folder / "report", title=title, first_split=split)


def plain_rows(
    rows: Sequence[CampaignRow], paper: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Convert rows to dictionaries, each with the paper's numbers if ``paper`` has them."""
    additions = {} if paper is None else {row.label: {"paper": paper[row.label]} for row in rows}
    return [{**to_plain(row), **additions.get(row.label, {})} for row in rows]


def campaign_table(rows: Sequence[CampaignRow]) -> tuple[list[str], list[list[str]]]:
    """Make a table of recalls, times and sizes: the header, and the cells of each row."""
    header = [
        "", "t2v R@1", "t2v R@5", "t2v R@10", "t2v MnR",
        "v2t R@1", "v2t R@5", "v2t R@10", "v2t MnR", "Rsum",
        "train s", "epoch s", "test s", "scoring s", "head params", "peak MiB",
    ]  # fmt: skip
    sizes = sorted({size for row in finished_rows(rows) for size in row.pair_seconds}, key=int)
    header += [f"{int(size):,} x {int(size):,} s" for size in sizes]
    return header, [_cells(row, sizes) for row in rows]


def reasons(rows: Sequence[CampaignRow]) -> list[str]:
    return [f"{row.label}: {row.cannot_run}" for row in rows if isinstance(row, CannotRun)]


def left_out_lines(folder: Path, rows: Sequence[CampaignRow]) -> list[str]:
    """Name the finished runs in ``folder`` that are not in the table."""
    names = {path.parent.parent.name for path in folder.glob(f"*/seed-*/{RESULT}")}
    other_names = sorted(names - {slug(row.label) for row in rows})
    if not other_names:
        return []
    listing = ", ".join(other_names)
    return [f"Also in {folder}, not in this table: {listing}; name them to include them."]


def _cells(row: CampaignRow, sizes: Sequence[str] = ()) -> list[str]:
    if isinstance(row, CannotRun):
        return [row.label, "cannot run"]
    peak = row.peak_memory_bytes
    return [
        row.label,
        *(
            row.recall_text(direction, name)
            for direction in ("t2v", "v2t")
            for name in ("R@1", "R@5", "R@10", "MnR")
        ),
        f"{row.mean['Rsum']:.1f}",
        f"{row.train_seconds:.0f}",
        "-" if row.epoch_seconds is None else f"{row.epoch_seconds:.1f}",
        f"{row.test_seconds:.1f}",
        f"{row.score_seconds:.3f}",
        f"{row.parameters['head']:,}",
        f"{peak / 2**20:.0f}" if peak is not None else "-",
        *(f"{row.pair_seconds[size]:.3f}" if size in row.pair_seconds else "-" for size in sizes),
    ]
