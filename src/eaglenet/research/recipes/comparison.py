"""Comparison of methods: ``eaglenet compare`` for Python."""

from __future__ import annotations

import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eaglenet.core.errors import ConfigError, EagleNetError, UsageError
from eaglenet.core.files import expand_home, read_json, write_json
from eaglenet.core.progress import Progress
from eaglenet.core.settings import split_assignment
from eaglenet.methods.base import evaluating
from eaglenet.research.data.sources import selection_note
from eaglenet.research.experiments.build import default_split, load_source
from eaglenet.research.experiments.campaign import (
    CampaignRow,
    CannotRun,
    Search,
    Trial,
    TrialRow,
    run_campaign,
    slug,
    write_report,
)
from eaglenet.research.experiments.experiment import Experiment, NoEffectError
from eaglenet.research.experiments.runs import frames_folder, load_run
from eaglenet.research.recipes.recipe import Recipe
from eaglenet.research.training.distributed import join
from eaglenet.scoring import score_all

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Comparison:
    """Title and rows of the table of a comparison."""

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
) -> Comparison:
    """Train and evaluate methods with the same data and seeds, and write a report.

    methods: rows of the table, see :func:`parse_row`. search: a setting with candidate values
    (``training.lr_head=1e-4,1e-3``); each method uses the one that is best on validation.
    time_pairs: also time scoring this number of texts with as many videos.
    """
    folder = expand_home(output)
    base = Recipe("", data, tower, protocol)
    root_settings = [f"data.root={expand_home(root).absolute()}"] if root else []
    trials, failures = find_trials(methods, base, [*root_settings, *settings])
    split = split or default_split(trials[0].experiment.data)
    rows = run_campaign(
        trials,
        range(seeds),
        folder,
        split=split,
        device=device,
        jobs=jobs,
        search=Search.parse(search) if search else None,
        announce=announce,
    )
    rows += failures
    if time_pairs:
        rows = time_scoring(rows, folder, time_pairs, split=split, device=device)
    training = trials[0].experiment.training
    notes = [selection_note(training.select, is_choice=True)] if training.chooses_epoch else []
    if search:
        notes.append(f"{search} searched on validation for each")
    setup = replace(parse_row(trials[0].label, base), variants=()).name.partition("/")[2]
    conditions = f"{setup}, {split} split, {seeds} seed{'s' * (seeds != 1)}"
    title = "; ".join([conditions, *notes])
    write_report(folder, "compare", title, rows, split=split)
    return Comparison(title, rows)


def find_trials(
    methods: Sequence[str], base: Recipe, settings: Sequence[str]
) -> tuple[list[Trial], list[CannotRun]]:
    """Return the trials of the rows, and the rows that cannot be combined with the data.

    A setting that changes nothing in some rows, such as the size of batches of a stage that they
    lack, is left out there.

    Raises:
        NoEffectError: a setting changes nothing in any row.
        UnknownNameError: a name is on no axis.
        UsageError: no row can be trained.
    """
    trials: list[Trial] = []
    failures: list[CannotRun] = []
    unused: dict[str, list[NoEffectError]] = {}
    for label in dict.fromkeys(methods):
        recipe = parse_row(label, base)
        try:
            recipe.resolve()
        except ConfigError as error:
            failures.append(CannotRun(label, str(error)))
            continue
        trials.append(Trial(label, _override(recipe.build(), settings, unused)))
    if not trials:
        reasons = "; ".join(f"{row.label}: {row.cannot_run}" for row in failures) or "none given"
        raise UsageError(f"no method to compare on {base.data}: {reasons}")
    for errors in unused.values():
        if len(errors) == len(trials):
            raise errors[0]
    return trials, failures


def _override(
    experiment: Experiment, settings: Sequence[str], unused: dict[str, list[NoEffectError]]
) -> Experiment:
    """Apply the settings that have an effect; add the others to ``unused``, by path."""
    settings = list(settings)
    while True:
        try:
            return experiment.override(settings)
        except NoEffectError as error:
            unused.setdefault(error.path, []).append(error)
            settings = [each for each in settings if each.partition("=")[0] != error.path]


def parse_row(text: str, base: Recipe) -> Recipe:
    """Parse ``METHOD[:NAME=VALUE]...``; NAME is a variant, ``tower`` or ``protocol``.

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


REPEATS = 3


def time_scoring(
    rows: Sequence[CampaignRow], folder: Path, pairs: int, *, split: str, device: str
) -> list[CampaignRow]:
    """Time ``pairs`` x ``pairs`` scores of the first seed's model, and add it to each row."""
    timed_rows: list[CampaignRow] = []
    for row in rows:
        if isinstance(row, TrialRow):
            run = folder / slug(row.label) / f"seed-{row.seeds[0]}"
            try:
                seconds = scoring_seconds(run, pairs, split=split, device=device)
                row = dataclasses.replace(row, pair_seconds={str(pairs): seconds})
            except (EagleNetError, torch.OutOfMemoryError) as error:
                logger.warning("%s: not timed (%s)", row.label, error)
        timed_rows.append(row)
    return timed_rows


def scoring_seconds(run: Path, pairs: int, *, split: str, device: str) -> float:
    """Return the median time of scoring ``pairs`` encoded texts with as many encoded videos.

    Texts and videos are repeated if the split has fewer.
    """
    path = run / f"scoring-{pairs}.json"
    with join(device) as world:
        record = read_json(path) if path.exists() else {}
        if record.get("device") == str(world.device):
            return float(record["seconds"])
        experiment, method = load_run(run)
        method = method.to(world.device)
        source = load_source(
            experiment.data, split, method, cache=frames_folder(run), device=world.device
        )
        texts = torch.arange(pairs) % source.num_texts
        videos = torch.arange(pairs) % source.num_videos
        with evaluating(method), torch.no_grad():
            text = method.encode_text(source.texts(texts).to(world.device))
            batches = [
                method.encode_video(source.videos(indices).to(world.device))
                for indices in videos.split(100)
            ]
            video = type(batches[0]).concatenate(batches)
            times = [_time(lambda: score_all(method, text, video)) for _ in range(REPEATS + 1)]
    seconds = statistics.median(times[1:])
    write_json(path, {"pairs": pairs, "seconds": seconds, "device": str(world.device)})
    return seconds


def _time(function: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
