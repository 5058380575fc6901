"""Run folders: file names, log, environment, and records of runs with their problems."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from eaglenet.core import untrusted
from eaglenet.core.platform import PROC, read_proc
from eaglenet.methods.base import method_title
from eaglenet.models.files import EXPERIMENT
from eaglenet.version import __version__

MANIFEST = "manifest.json"
RESULT = "result.json"
LOG = "log.jsonl"
_FIXED_KEYS = ("step", "event")


@dataclass(frozen=True)
class LogEvent:
    """One line of a log.

    event: `start`, `step`, `evaluation` or `end`. step: optimizer steps so far. values: losses,
    recalls, seconds and other values by name.
    """

    event: str
    step: int
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "event": self.event, **self.values}

    @classmethod
    def parse(cls, line: str) -> LogEvent:
        """Parse one line; raise ``ValueError`` if it is not a log line."""
        record = untrusted.parse_json(line)
        if not isinstance(record, dict):
            raise ValueError(f"{line[:40]!r} is not a JSON object")
        values = {name: value for name, value in record.items() if name not in _FIXED_KEYS}
        return cls(str(record.get("event", "")), int(record.get("step", 0)), values)


@dataclass(frozen=True)
class RunRecord:
    """Contents of a run folder.

    metrics: record of the selected epoch; None if the run has no result.
    steps, history: events of the log for training steps and for evaluations during training.
    evaluations: later evaluations of the selected model, by the stem of their file name.
    epoch_seconds: seconds per epoch of training, without evaluations.
    problem: names the files that are missing or cannot be read; None if there are none.
    """

    folder: Path
    name: str
    method: str
    seed: int
    settings: Mapping[str, Any]
    metrics: Mapping[str, Any] | None
    steps: tuple[LogEvent, ...]
    history: tuple[LogEvent, ...]
    evaluations: Mapping[str, Mapping[str, Any]]
    manifest: Mapping[str, Any]
    selection: str
    epoch_seconds: float | None = None
    problem: str | None = None

    @property
    def is_finished(self) -> bool:
        return self.metrics is not None


@dataclass(frozen=True)
class BrokenRun:
    """A folder that a report leaves out, with the reason."""

    folder: Path
    reason: str


@dataclass(frozen=True)
class RecipeGroup:
    """Finished runs that differ only in their seed."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def method_title(self) -> str:
        """Name of the method, with a mark if it is approximate."""
        return method_title(self.method)


def read_runs(folders: Sequence[Path]) -> tuple[list[RunRecord], list[BrokenRun]]:
    """Read all runs in ``folders`` and up to four levels below, and list unusable folders."""
    runs: list[RunRecord] = []
    broken_runs: list[BrokenRun] = []
    known_folders: set[Path] = set()  # A folder may be given twice, or with the folder above it.
    for folder in folders:
        if not folder.is_dir():
            broken_runs.append(BrokenRun(folder, "no such folder"))
            continue
        run_folders = [folder] if _is_run(folder) else sorted(_runs_below(folder))
        if not run_folders:
            reason = "not a run folder: no experiment, manifest or log"
            broken_runs.append(BrokenRun(folder, reason))
        for run_folder in run_folders:
            if run_folder.resolve() in known_folders:
                continue
            known_folders.add(run_folder.resolve())
            try:
                runs.append(read_run(run_folder))
            except (OSError, ValueError, KeyError, TypeError) as error:
                broken_runs.append(BrokenRun(run_folder, f"{type(error).__name__}: {error}"))
    first_runs: dict[str, RunRecord] = {}
    for run in runs:
        key = json.dumps([run.name, run.settings], sort_keys=True, default=str)
        is_complete = run.is_finished and run.settings
        first = first_runs.setdefault(key, run) if is_complete else run
        if first is not run:
            # A copy would look like another seed and reduce the spread.
            reason = f"the same recipe, settings and seed as {first.folder}; left out"
            broken_runs.append(BrokenRun(run.folder, reason))
    broken_folders = {entry.folder for entry in broken_runs}
    return [run for run in runs if run.folder not in broken_folders], broken_runs


def is_unfinished(folder: Path) -> bool:
    """Return whether this is the folder of a training run that has no result yet."""
    return (folder / MANIFEST).is_file() and not (folder / RESULT).exists()


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; missing files are named in ``problem``."""
    problems: list[str] = []
    manifest = _read_object(folder / MANIFEST, problems)
    result = _read_object(folder / RESULT, problems)
    experiment = _read_object(folder / EXPERIMENT, problems, is_required=False)
    events = read_log(folder, problems)
    steps = [entry for entry in events if entry.event == "step"]
    history = [entry for entry in events if entry.event == "evaluation"]
    training = experiment.get("training", {})
    metrics = result.get("metrics")
    if result and not _has_metrics(metrics):
        problems.append(f"{RESULT} has no metrics")
    return RunRecord(
        folder=folder,
        name=str(result.get("experiment") or manifest.get("experiment") or folder.name),
        method=str(result.get("method") or experiment.get("method") or "unknown"),
        seed=int(result.get("seed", training.get("seed", 0))),
        settings=experiment,
        metrics=metrics if _has_metrics(metrics) else None,
        steps=tuple(steps),
        history=tuple(entry for entry in history if _has_metrics(entry.values)),
        evaluations=_read_evaluations(folder, problems),
        manifest=manifest,
        selection=str(result.get("selection") or manifest.get("selection") or ""),
        epoch_seconds=_number(result.get("epoch_seconds")),
        problem="; ".join(problems) or None,
    )


def group_runs(runs: Sequence[RunRecord]) -> list[RecipeGroup]:
    """Group finished runs by recipe and settings, ignoring seeds; labels show changed settings."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.is_finished:
            key = json.dumps([run.name, _without_seed(run.settings)], sort_keys=True, default=str)
            groups.setdefault(key, []).append(run)
    by_name: dict[str, list[list[RunRecord]]] = {}
    for members in groups.values():
        by_name.setdefault(members[0].name, []).append(members)
    groups_by_label: dict[str, RecipeGroup] = {}
    for name, variants in by_name.items():
        for members in variants:
            label = _label(name, members[0], variants[0][0], groups_by_label)
            groups_by_label[label] = RecipeGroup(label, tuple(members))
    return list(groups_by_label.values())


def _label(name: str, run: RunRecord, first: RunRecord, used_labels: Collection[str]) -> str:
    """Name the first three settings in which two runs differ; more if that label is used."""
    settings, base = _flat(_without_seed(run.settings)), _flat(_without_seed(first.settings))
    changes = [f"{key}={value}" for key, value in settings.items() if base.get(key) != value]
    changes += [f"no {key}" for key in base if key not in settings]
    for count in range(3, max(4, len(changes) + 1)):
        label = f"{name} [{', '.join(changes[:count])}]" if changes else name
        if label not in used_labels:
            return label
    return f"{label} ({run.folder})"


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in settings.items() if key != "training"}
    training = dict(settings.get("training", {}))
    training.pop("seed", None)
    return plain | {"training": training}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _has_metrics(record: Any) -> bool:
    return isinstance(record, Mapping) and all(
        isinstance(record.get(direction), Mapping) and "R@1" in record[direction]
        for direction in ("t2v", "v2t")
    )


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (EXPERIMENT, MANIFEST, LOG, RESULT))


def _runs_below(folder: Path, depth: int = 4) -> list[Path]:
    """Find run folders up to ``depth`` levels below, such as OUT/METHOD/seed-N."""
    runs = []
    for child in sorted(folder.iterdir()):
        if not child.is_dir():
            continue
        if _is_run(child):
            runs.append(child)
        elif depth > 1:
            runs += _runs_below(child, depth - 1)
    return runs


def _read_object(path: Path, problems: list[str], *, is_required: bool = True) -> dict[str, Any]:
    if not path.exists():
        if is_required:
            problems.append(f"no {path.name}")
        return {}
    try:
        value = untrusted.read_json(path, untrusted.MAX_ANNOTATIONS)
    except (ValueError, OSError) as error:
        problems.append(f"{path.name} cannot be read ({error})")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is not a JSON object")
        return {}
    return value


def read_log(folder: Path, problems: list[str] | None = None) -> list[LogEvent]:
    """Read the log of a run up to the first broken line, which is added to ``problems``."""
    path, events = folder / LOG, list[LogEvent]()
    problems = [] if problems is None else problems
    if not path.exists():
        problems.append(f"no {path.name}")
        return events
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            events.append(LogEvent.parse(line))
        except ValueError:
            problems.append(f"{path.name} line {number} is broken; later lines are ignored")
            break
    return events


def _read_evaluations(folder: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    evaluations = {}
    for path in sorted(folder.glob("evaluation*.json")):
        record = _read_object(path, problems)
        if _has_metrics(record):
            evaluations[path.stem] = record
    return evaluations


PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "av", "triton")


def describe_environment(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    versions = {"eaglenet": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "commit": git_commit(Path(__file__).parent),
        "hardware": describe_hardware(),
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "eaglenet"), *sys.argv[1:]],
    }


def describe_hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        hardware["memory_gib"] = round(total / 2**30, 1)
    if torch.cuda.is_available():
        hardware["gpus"] = [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ]
    return hardware


def git_commit(folder: Path) -> str | None:
    """Return the commit of the working tree of ``folder``, with ``+`` if files were changed.

    ``EAGLENET_COMMIT`` overrides it, for files that were copied without their history.
    """
    if "EAGLENET_COMMIT" in os.environ:
        return os.environ["EAGLENET_COMMIT"]
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return result.stdout.strip()


def _processor_name() -> str:
    for line in (read_proc("cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak to the memory in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # "5" resets the peak resident size of this process; Linux only.
        with contextlib.suppress(OSError):
            (PROC / "self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes, of the GPU or of this process; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    for line in (read_proc("self/status") or "").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
