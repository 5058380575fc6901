"""Campaigns: train several experiments with several seeds, and tabulate their results."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import ConfigError, EagleNetError, UsageError
from eaglenet.core.files import atomic_folder, read_json, write_json, write_text
from eaglenet.core.platform import exit_with_parent, num_cores
from eaglenet.core.process import ChildProcess, start_child
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.registry import import_plugin, imported_modules
from eaglenet.core.settings import split_assignment, to_plain
from eaglenet.methods import METHODS
from eaglenet.research.data import SOURCES
from eaglenet.research.data.records import check_split_name
from eaglenet.research.data.sources import DataChoice, few_videos
from eaglenet.research.evaluation import report
from eaglenet.research.evaluation.conditions import Conditions, conditions_lines, run_conditions
from eaglenet.research.evaluation.differences import RANKS
from eaglenet.research.evaluation.document import TABLES, make_table, to_markdown
from eaglenet.research.evaluation.evaluate import mean_and_spread
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.research.evaluation.result_tables import METRICS, format_spread
from eaglenet.research.evaluation.run_records import RESULT, describe_environment
from eaglenet.research.experiments.build import (
    ExperimentCheck,
    build_method,
    check_experiment,
    default_split,
)
from eaglenet.research.experiments.evaluation import evaluate_run
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.runs import find_result, train
from eaglenet.research.training.distributed import join

logger = logging.getLogger(__name__)
WORKER_LOG = ".worker.log"
"""Hidden, because a run does not start in a folder that has visible files."""


@dataclass(frozen=True)
class Trial:
    """A row of a campaign: an experiment that is trained with several seeds."""

    label: str
    experiment: Experiment


@dataclass(frozen=True)
class SeedRun:
    """Results of a run: its evaluation on a split, and its ``result.json``."""

    seed: int
    evaluation: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """A run to train into a folder and to evaluate on ``split``."""

    title: str
    experiment: Experiment
    output: Path
    split: str
    device: str = "auto"

    @property
    def evaluation(self) -> Path:
        return self.output / f"evaluation-{self.split}.json"

    @property
    def ranks(self) -> Path:
        return self.output / f"{RANKS}-{self.split}.npz"


@dataclass(frozen=True)
class Failure:
    title: str
    reason: str


def make_job(trial: Trial, seed: int, folder: Path, *, split: str, device: str) -> Job:
    """Make the job of a trial with a seed, with its folder in the campaign."""
    training = dataclasses.replace(trial.experiment.training, seed=seed)
    experiment = dataclasses.replace(trial.experiment, training=training)
    output = folder / slug(trial.label) / f"seed-{seed}"
    return Job(f"{trial.label}, seed {seed}", experiment, output, split, device)


def slug(label: str) -> str:
    """Turn a label into a file name."""
    return "".join(char if char.isalnum() or char in "+-._" else "-" for char in label)


def run_job(job: Job, progress: Progress | None = None) -> SeedRun:
    """Train and evaluate a run, or read the results of a finished run."""
    run = train(job.experiment, job.output, device=job.device, progress=progress)
    if job.evaluation.exists():
        evaluation = read_json(job.evaluation)
    else:
        options = EvaluationOptions(ranks_file=job.ranks)
        result = evaluate_run(job.output, split=job.split, options=options, device=job.device)
        evaluation = result.to_dict()
        write_json(job.evaluation, evaluation)
    return SeedRun(job.experiment.training.seed, evaluation, run.result)


def is_finished(job: Job) -> bool:
    """Return whether a run is trained and evaluated, so that no process need be started for it."""
    try:
        return job.evaluation.exists() and find_result(job.experiment, job.output) is not None
    except ConfigError:
        return False  # The folder contains another experiment; starting the run raises the error.


def run_jobs(
    jobs: Sequence[Job],
    processes: int,
    announce: Callable[[str], Progress | None],
) -> dict[Path, SeedRun | Failure]:
    """Run all jobs, ``processes`` at a time; return their outcomes by output folder.

    With one process, errors are raised. With several, failed jobs run again at the end, one at a
    time, in case memory was short.
    """
    if processes == 1 or not jobs:
        return {job.output: run_job(job, announce(job.title)) for job in jobs}
    unfinished_jobs = [job for job in jobs if not is_finished(job)]
    # The first run decodes the frames, so that the others need not wait for its lock.
    spec = SOURCES[jobs[0].experiment.data.dataset]
    first = unfinished_jobs[:1] if spec.keeps_frames and not spec.gives_features else []
    progress = announce("")
    failed_jobs = _run_in_processes(first, 1, progress) if first else []
    failed_jobs += _run_in_processes(unfinished_jobs[len(first) :], processes, progress)
    if failed_jobs:
        logger.warning("%d runs failed; trying again, one at a time", len(failed_jobs))
        _run_in_processes(failed_jobs, 1, progress)
    return {job.output: _outcome(job) for job in jobs}


def _run_in_processes(jobs: Sequence[Job], processes: int, progress: Progress | None) -> list[Job]:
    """Run jobs in ``processes`` child processes; return the jobs that failed."""
    queue, failed_jobs = list(jobs), list[Job]()
    children: dict[Any, tuple[ChildProcess, Job]] = {}
    num_done = 0
    modules = imported_modules()
    try:
        while queue or children:
            while queue and len(children) < processes:
                job = queue.pop(0)
                # Not forked: a forked process cannot use a GPU that its parent has used.
                child = start_child(_run_child, job, os.getpid(), processes, modules)
                children[child.connection] = (child.process, job)
            for connection in wait(list(children)):
                process, job = children.pop(connection)
                process.join()
                num_done += 1
                is_done = process.exitcode == 0
                outcome = "done" if is_done else f"FAILED (see {job.output / WORKER_LOG})"
                detail = f"{job.title} {outcome}"
                report_progress(progress, "runs", num_done, len(jobs), detail, is_notable=True)
                if not is_done:
                    failed_jobs.append(job)
    finally:
        # Interrupted: those that train save their step, those that start end at once.
        for process, _ in children.values():
            process.terminate()
        for process, _ in children.values():
            process.join()
    return failed_jobs


def _run_child(
    connection: Connection, job: Job, parent: int, processes: int, modules: Sequence[str]
) -> None:
    """Run a job in a child process, with its output in a log in the run folder."""
    exit_with_parent(parent)
    job.output.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(max(1, num_cores() // processes))
    for module in modules:
        import_plugin(module)
    log = job.output.parent / f".{job.output.name}.log"
    with (
        log.open("a") as stream,
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        try:
            run_job(job)
            code = 0
        except BaseException as error:
            traceback.print_exc()
            if isinstance(error, EagleNetError):
                # The last line is the reason in the report.
                stream.write(f"{error}\n")
            code = 1
    if job.output.is_dir():
        log.replace(job.output / WORKER_LOG)
    raise SystemExit(code)


def _outcome(job: Job) -> SeedRun | Failure:
    """Return the result of a finished run, or a failure with the last line of its log."""
    try:
        result = find_result(job.experiment, job.output)
    except ConfigError as error:
        return Failure(job.title, str(error))
    if result is not None and job.evaluation.exists():
        return SeedRun(job.experiment.training.seed, read_json(job.evaluation), result)
    logs = (job.output / WORKER_LOG, job.output.parent / f".{job.output.name}.log")
    log = next((path for path in logs if path.exists()), None)
    lines = log.read_text(errors="replace").strip().splitlines() if log is not None else []
    return Failure(job.title, lines[-1] if lines else "the process ended without a message")


SEARCH_FOLDER = "search"


@dataclass(frozen=True)
class Search:
    """Candidate values of a setting, such as ``training.lr_head``; each trial uses the best."""

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
    """Return the trials, each with the value that has the best validation R@1 with ``seed``.

    The best run is also used as the trial's run with that seed. ``search.json`` lists the score of
    each value.
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
            # Not those of the result, which are on the test split for runs that select on it.
            value: outcome.evaluation["t2v"]["R@1"]
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
            with atomic_folder(output) as partial:
                source = candidates[trial.label, best].output
                shutil.copytree(source, partial, dirs_exist_ok=True)
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
    """Results of a trial over its seeds: mean and deviation of metrics, median times.

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
        """Format a recall as mean +- deviation; without the deviation for one seed."""
        mean, deviation = self.mean[direction][name], self.std[direction][name]
        return format_spread(mean, deviation, len(self.seeds))


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
    if runnable:
        check_split(runnable[0].experiment.data, split)
    if search is not None:
        runnable = search_setting(
            runnable, search, seeds[0], folder, device=device, jobs=jobs, announce=announce
        )
    jobs_of = {
        trial.label: [make_job(trial, seed, folder, split=split, device=device) for seed in seeds]
        for trial in runnable
    }
    # Seed by seed, so that runs of the largest method are not on a device at the same time.
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


def check_split(data: DataChoice, split: str) -> None:
    """Raise before training if the data lacks the split that is to be evaluated."""
    spec = SOURCES[data.dataset]
    if spec.splits:
        check_split_name(data.dataset, split, spec.splits)
    if spec.inspect is not None:
        spec.inspect(data, split)
    elif spec.is_features and split == "test" and default_split(data) != "test":
        raise UsageError(
            "the features have no test split; name its folder with --set "
            "data.options.test_root=FOLDER, or leave out --split"
        )


def summarise_trial(trial: Trial, records: Sequence[SeedRun]) -> TrialRow:
    """Summarise the runs of a trial over its seeds."""
    evaluations = [record.evaluation for record in records]
    results = [record.result for record in records]
    metrics = [{name: entry[name] for name in ("t2v", "v2t", "Rsum")} for entry in evaluations]
    summary = mean_and_spread(metrics)
    experiment, protocol = trial.experiment, str(evaluations[0]["protocol"])
    peaks = [run["peak_memory_bytes"] for run in results if run["peak_memory_bytes"] is not None]
    epochs = [run["epoch_seconds"] for run in results if run.get("epoch_seconds") is not None]
    return TrialRow(
        label=trial.label,
        method=experiment.method,
        protocol=protocol,
        seeds=tuple(record.seed for record in records),
        mean=summary["mean"],
        std=summary["std"],
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


def check_trials(
    trials: Sequence[Trial], device: str, folder: Path
) -> dict[str, ExperimentCheck | str]:
    """Check every trial without training; return the check or the problem by label.

    folder: the output, which may have decoded frames and features.

    Raises:
        EagleNetError: data or weights are missing, which affects all trials.
    """
    checks: dict[str, ExperimentCheck | str] = {}
    with join(device) as world:
        for trial in trials:
            try:
                checks[trial.label] = check_experiment(trial.experiment, world, folder / "frames")
            except ConfigError as error:
                checks[trial.label] = str(error)
    return checks


def finished_rows(rows: Sequence[CampaignRow]) -> list[TrialRow]:
    return [row for row in rows if isinstance(row, TrialRow)]


def remarks(folder: Path, rows: Sequence[CampaignRow]) -> list[str]:
    """List differences between the rows, rows that could not run, and runs without a row."""
    return [
        *size_lines(rows),
        *budget_lines(rows),
        *conditions_lines([row.conditions for row in finished_rows(rows)]),
        *approximate_lines(rows),
        *cannot_run_lines(rows),
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
    """Write ``name.json``, ``name.md`` and the longer ``report/`` into ``folder``.

    table: header and cells; :func:`campaign_table` by default. split: the evaluated split. paper:
    numbers of the paper, by label.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / f"{name}.json",
        {"title": title, "split": split, **describe_environment(), "rows": plain_rows(rows, paper)},
    )
    trial_rows = finished_rows(rows)
    blocks = [make_table(*(table or campaign_table(rows)))]
    if trial_rows:
        budgets = [
            [row.label, *("-" if n is None else f"{n:,}" for n in row.budget.values())]
            for row in trial_rows
        ]
        blocks += [
            f"Split: {split}. Protocol: {trial_rows[0].protocol}; {trial_rows[0].selection}.",
            "## Budget",
            make_table(["", *BUDGET.values()], budgets),
        ]
    blocks += remarks(folder, rows)
    write_text(folder / f"{name}.md", to_markdown(title, blocks))
    if trial_rows:
        runs = [folder / slug(row.label) for row in trial_rows]
        report.write_report(runs, folder / "report", title=title, first_split=split)


def written_files(folder: Path, name: str) -> list[str]:
    """List the files of :func:`write_report` that a reader opens first."""
    report_folder = folder / "report"
    names = [folder / f"{name}.md", folder / f"{name}.json"]
    names += [report_folder / "report.md", report_folder / TABLES]
    return [str(path) for path in names if path.exists()]


def plain_rows(
    rows: Sequence[CampaignRow], paper: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Convert rows to dictionaries, each with the paper's numbers if ``paper`` has them."""
    additions = {} if paper is None else {row.label: {"paper": paper[row.label]} for row in rows}
    return [{**to_plain(row), **additions.get(row.label, {})} for row in rows]


def campaign_table(rows: Sequence[CampaignRow]) -> tuple[list[str], list[list[str]]]:
    """Make a table of recalls, times and sizes: the header, and the cells of each row."""
    header = [
        "", *(f"{direction} {name}" for direction in ("t2v", "v2t") for name in METRICS),
        "Rsum", "train s", "epoch s", "test s", "scoring s", "head params", "peak MiB",
    ]  # fmt: skip
    sizes = sorted({size for row in finished_rows(rows) for size in row.pair_seconds}, key=int)
    header += [f"{int(size):,} x {int(size):,} s" for size in sizes]
    return header, [_cells(row, sizes) for row in rows]


def cannot_run_lines(rows: Sequence[CampaignRow]) -> list[str]:
    """Name the rows that could not run, with the reason."""
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
        *(row.recall_text(direction, name) for direction in ("t2v", "v2t") for name in METRICS),
        format_spread(row.mean["Rsum"], row.std["Rsum"], len(row.seeds)),
        f"{row.train_seconds:.0f}",
        "-" if row.epoch_seconds is None else f"{row.epoch_seconds:.1f}",
        f"{row.test_seconds:.1f}",
        f"{row.score_seconds:.3f}",
        f"{row.parameters['head']:,}",
        f"{peak / 2**20:.0f}" if peak is not None else "-",
        *(f"{row.pair_seconds[size]:.3f}" if size in row.pair_seconds else "-" for size in sizes),
    ]
