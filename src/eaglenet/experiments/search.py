"""The same small search for every method of a comparison: a setting, its values, one seed."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglenet.errors import UsageError
from eaglenet.experiments.trials import Job, SeedRun, Trial, make_job, run_jobs, slug
from eaglenet.files import write_json
from eaglenet.progress import Progress
from eaglenet.settings import split_assignment

FOLDER = "search"


@dataclass(frozen=True)
class Search:
    """A setting such as ``training.lr_head`` and the values that every method tries."""

    setting: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Search:
        """Read ``training.lr_head=1e-4,3e-4``."""
        setting, listed = split_assignment(text, "training.lr_head=1e-4,3e-4")
        values = tuple(dict.fromkeys(value.strip() for value in listed.split(",") if value.strip()))
        if len(values) < 2:
            raise UsageError(f"--search {text}: give two values or more, separated by commas")
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
    say: Callable[[str], None],
) -> list[Trial]:
    """The trials with the value that gave the best validation R@1 with ``seed``.

    The best run itself is kept as that seed's run. ``search.json`` lists what each value gave.
    """
    wanted: dict[str, dict[str, Job]] = {}
    for trial in trials:
        wanted[trial.label] = {}
        for value in search.values:
            changed = trial.experiment.override([f"{search.setting}={value}"])
            subfolder = f"{FOLDER}/{slug(trial.label)}/{slug(value)}"
            job = make_job(
                Trial(trial.label, changed),
                seed,
                folder,
                split="val",
                device=device,
                subfolder=subfolder,
            )
            title = f"{trial.label}, {search.setting}={value}"
            wanted[trial.label][value] = dataclasses.replace(job, title=title)
    everything = [wanted[trial.label][value] for value in search.values for trial in trials]
    done = run_jobs(everything, jobs, announce, say)
    chosen, table = [], {}
    for trial in trials:
        found = {
            value: outcome.result["metrics"]["t2v"]["R@1"]
            for value, job in wanted[trial.label].items()
            if isinstance(outcome := done[job.output], SeedRun)
        }
        table[trial.label] = found
        if not found:
            chosen.append(trial)
            continue
        best = max(found, key=lambda value: found[value])
        say(f"{trial.label}: {search.setting}={best} is best of {found}")
        changed = trial.experiment.override([f"{search.setting}={best}"])
        chosen.append(Trial(trial.label, changed))
        own = make_job(chosen[-1], seed, folder, split="val", device=device).output
        if not own.exists():
            shutil.copytree(wanted[trial.label][best].output, own)
    write_json(folder / "search.json", {"setting": search.setting, "val t2v R@1": table})
    return chosen
