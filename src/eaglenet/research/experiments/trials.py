"""Runs of a campaign, in this process or in several child processes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import ConfigError
from eaglenet.core.files import read_json, write_json
from eaglenet.core.platform import num_cores
from eaglenet.core.process import ChildProcess, start_child
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.registry import import_plugin, imported_modules
from eaglenet.research.data import SOURCES
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.research.evaluation.report import RANKS
from eaglenet.research.experiments.evaluation import evaluate_run
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.runs import find_result, train

logger = logging.getLogger(__name__)
WORKER_LOG = ".worker.log"
"""Hidden, because a run does not start in a folder that has visible files."""


@dataclass(frozen=True)
class Trial:
    label: str
    experiment: Experiment


@dataclass(frozen=True)
class SeedRun:
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
        return False  # The folder holds another experiment; the run says which.


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
    # The first run decodes the frames, without a lock; then the others read them.
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
    while queue or children:
        while queue and len(children) < processes:
            job = queue.pop(0)
            # Not forked: a forked process cannot use a GPU that its parent has used.
            child = start_child(_run_child, job, processes, modules)
            children[child.connection] = (child.process, job)
        for connection in wait(list(children)):
            process, job = children.pop(connection)
            process.join()
            num_done += 1
            outcome = "done" if process.exitcode == 0 else f"FAILED (see {job.output / WORKER_LOG})"
            detail = f"{job.title} {outcome}"
            report_progress(progress, "runs", num_done, len(jobs), detail, is_notable=True)
            if process.exitcode != 0:
                failed_jobs.append(job)
    return failed_jobs


def _run_child(connection: Connection, job: Job, processes: int, modules: Sequence[str]) -> None:
    """Run a job in a child process, with its output in a log in the run folder."""
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
        except BaseException:
            traceback.print_exc()
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
