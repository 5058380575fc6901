"""Comparison of methods: `eaglenet compare` without a terminal.

from eaglenet.research.recipes.comparison import compare
compare(["clip4clip", "xpool"], "frames", "OUT", root="FOLDER", seeds=3, jobs=12, say=print)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.progress import Progress
from eaglenet.core.settings import split_assignment
from eaglenet.research.experiments.build import default_split
from eaglenet.research.experiments.campaign import (
    CampaignRow,
    CannotRun,
    Search,
    run_campaign,
    write_report,
)
from eaglenet.research.experiments.runs import SELECTION_NOTES
from eaglenet.research.experiments.timing import time_scoring
from eaglenet.research.experiments.trials import Trial
from eaglenet.research.recipes.recipe import Recipe


@dataclass(frozen=True)
class Comparison:
    """Title and rows of a finished comparison."""

    title: str
    rows: list[CampaignRow]


def compare(
    methods: Sequence[str],
    data: str,
    output: str | Path,
    *,
    tower: str = "",
    protocol: str = "",
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
    """Train and evaluate methods with the same data and seeds, and write the report.

    methods: rows as :func:`parse_row` reads them. search: a setting with values that every method
    tries on validation first (``training.lr_head=1e-4,1e-3``). time_pairs: also time the scores of
    this many texts with as many videos, one model after another.
    """
    folder = Path(output).expanduser()
    base = Recipe("", data, tower, protocol)
    trials, refused = find_trials(methods, base, [*root_settings(root), *settings])
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
    rows += refused
    if time_pairs:
        rows = time_scoring(rows, folder, time_pairs, split=reported, device=device, say=say)
    note = SELECTION_NOTES[trials[0].experiment.training.select]
    searched = f"; {search} searched on validation for each" if search else ""
    where = replace(parse_row(trials[0].label, base), variants=()).name.partition("/")[2]
    title = f"{where}, {reported} split, {seeds} seeds; {note}{searched}"
    write_report(folder, "compare", title, rows, split=reported)
    return Comparison(title, rows)


def root_settings(root: str) -> list[str]:
    return [f"data.root={root}"] if root else []


def find_trials(
    methods: Sequence[str], base: Recipe, settings: Sequence[str]
) -> tuple[list[Trial], list[CannotRun]]:
    """The rows that can be trained, and those that cannot be combined with the data.

    Raises:
        UnknownNameError: a name that no axis has.
        UsageError: no row can be trained.
    """
    trials: list[Trial] = []
    refused: list[CannotRun] = []
    for label in dict.fromkeys(methods):  # a row given twice is one row
        recipe = parse_row(label, base)
        try:
            recipe.resolve()
        except ConfigError as error:
            refused.append(CannotRun(label, str(error)))
            continue
        trials.append(Trial(label, recipe.build().override(settings)))
    if not trials:
        reasons = "; ".join(f"{row.label}: {row.cannot_run}" for row in refused) or "none given"
        raise UsageError(f"no method to compare on {base.data}: {reasons}")
    return trials, refused


def parse_row(text: str, base: Recipe) -> Recipe:
    """``METHOD[:NAME=VALUE]...`` as a recipe; NAME is a variant, ``tower`` or ``protocol``.

    >>> parse_row("clip4clip:head=lstm:tower=clip-b32", Recipe("", "msrvtt")).tower
    'clip-b32'
    """
    method, *choices = text.split(":")
    recipe = replace(base, method=method)
    for choice in choices:
        name, value = split_assignment(choice, "head=lstm")
        if name == "tower":
            recipe = replace(recipe, tower=value)
        elif name == "protocol":
            recipe = replace(recipe, protocol=value)
        else:
            recipe = replace(recipe, variants=(*recipe.variants, choice))
    return recipe
