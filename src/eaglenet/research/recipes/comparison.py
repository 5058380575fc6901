"""A comparison of methods by their names: what `eaglenet compare` does, without a terminal.

from eaglenet.research.recipes.comparison import compare
compare(["clip4clip", "xpool"], "frames", "OUT", root="FOLDER", seeds=3, jobs=12, say=print)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress
from eaglenet.methods import METHODS
from eaglenet.research.experiments.build import default_split
from eaglenet.research.experiments.campaign import (
    CampaignRow,
    CannotRun,
    Search,
    run_campaign,
    write_report,
)
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.runs import SELECTION_NOTES
from eaglenet.research.experiments.timing import time_scoring
from eaglenet.research.experiments.trials import Trial
from eaglenet.research.recipes.registry import RECIPES, build_recipe


@dataclass(frozen=True)
class Comparison:
    """What was compared, under which title."""

    title: str
    rows: list[CampaignRow]


def compare(
    methods: Sequence[str],
    dataset: str,
    output: str | Path,
    *,
    root: str = "",
    settings: Sequence[str] = (),
    split: str | None = None,
    seeds: int = 3,
    jobs: int = 1,
    search: str = "",
    time_pairs: int = 0,
    device: str = "auto",
    announce: Callable[[str], Progress | None] = lambda title: None,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Train and evaluate methods with the same data and seeds and write the report.

    ``search``: a setting with values that every method tries on validation first
    (``training.lr_head=1e-4,1e-3``). ``time_pairs``: in the end, one model at a time, also time the
    scores of so many texts with as many videos.
    """
    folder = Path(output).expanduser()
    changes = [*([f"data.root={root}"] if root else []), *settings]
    # A name given twice is one row.
    names = dict.fromkeys(name for given in methods for name in given.split(",") if name)
    found = {name: find_trial(name, dataset, changes) for name in names}
    trials = [Trial(name, given) for name, given in found.items() if given is not None]
    if not trials:
        listed = ", ".join(names) or "none"
        raise UsageError(
            f"no method to compare on {dataset}: {listed} given; see `eaglenet recipes`"
        )
    reported = split or default_split(trials[0].experiment.data)
    rows = run_campaign(
        trials,
        range(seeds),
        folder,
        split=reported,
        device=device,
        jobs=jobs,
        search=Search.parse(search) if search else None,
        announce=announce,
        say=say,
    )
    unset = f"its authors gave no settings for {dataset}, and there is no recipe"
    rows += [CannotRun(name, unset) for name, given in found.items() if given is None]
    if time_pairs:
        rows = time_scoring(rows, folder, time_pairs, split=reported, device=device, say=say)
    note = SELECTION_NOTES[trials[0].experiment.training.select]
    tried = f"; {search} searched on validation for each" if search else ""
    title = f"{dataset}, {reported} split, {seeds} seeds; {note}{tried}"
    write_report(folder, "compare", title, rows)
    return Comparison(title, rows)


def find_trial(name: str, dataset: str, changes: Sequence[str]) -> Experiment | None:
    """The experiment of a method on a dataset, or None where that method has no recipe there.

    A name that is no method, and a dataset that has no recipes, are told what there is.
    """
    known = sorted(
        {prefix for prefix, _, last in (r.rpartition("/") for r in RECIPES) if last in METHODS}
    )
    if dataset not in known:
        raise UsageError(f"--dataset {dataset}; choose one of {', '.join(known)}")
    recipe = recipe_name(name, dataset)
    method = name.split("-")[0]
    if recipe not in RECIPES and "/" not in name and method not in METHODS:
        METHODS[name]  # raises: it lists the methods and near names
    if recipe not in RECIPES and method in METHODS:
        return None
    return build_recipe(recipe).override(changes)


def recipe_name(method: str, dataset: str) -> str:
    """The recipe of a method (or of a table's row) on a dataset."""
    if dataset in ("demo", "features", "frames", "frames-tuned") or dataset.endswith("experts"):
        return f"{dataset}/{method}"
    if "/" in method:
        return method if dataset == "msrvtt-b16" else f"{dataset}/{method}"
    return dataset if method == "eaglenet" else f"{dataset}/{method}"
