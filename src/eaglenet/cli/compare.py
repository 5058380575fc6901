"""``eaglenet compare``, ``ablate`` and ``report``: train several methods, and report on runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglenet.cli.options import (
    AsJson,
    Data,
    Device,
    DryRun,
    Output,
    Protocol,
    Root,
    Seeds,
    Settings,
    Tower,
    argument,
    check_output_folder,
    print_table,
    root_setting,
)
from eaglenet.cli.terminal import print_line, print_record
from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.progress import activity, show_progress
from eaglenet.core.settings import option
from eaglenet.core.text import format_hours, pluralize
from eaglenet.models.files import WHOLE_MODEL
from eaglenet.research.names import refuse_unknown_names, unknown_choice

if TYPE_CHECKING:
    from eaglenet.research.evaluation.figures import QualitativeExample
    from eaglenet.research.evaluation.run_records import RunRecord
    from eaglenet.research.experiments.build import ExperimentCheck
    from eaglenet.research.experiments.campaign import CampaignRow


def compare(
    methods: list[str] = argument(
        "Methods; add choices to one of them after colons: "
        "clip4clip:head=lstm, xpool:protocol=original."
    ),
    *,
    output: Output,
    data: Data = "demo",
    tower: Tower = "",
    protocol: Protocol = "",
    root: Root = "",
    split: str | None = option(
        None,
        "Report this split; default: test, or val if the data has no test split.",
        group="Runs",
    ),
    seeds: Seeds = 3,
    jobs: int = option(
        1, "Train this many runs at a time, each in its own process.", min=1, group="Runs"
    ),
    search: str = option(
        "",
        "Let every method first choose among these values on validation.",
        metavar="SETTING=A,B",
        group="Runs",
    ),
    time_pairs: int = option(
        0,
        "Also time the scoring of this many texts and videos.",
        name="--time",
        min=0,
        group="Runs",
    ),
    settings: Settings = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate methods with the same data and seeds.

    Writes compare.json and compare.md (recalls with mean and spread, test time, parameters, memory
    and budgets), and report/, which says which differences are significant and has the tables as
    LaTeX. On demo, features,
    frames and experts all methods have the same budget; with --protocol original each has that of
    its authors, and the report lists the differences. The epoch is chosen on validation. A method
    that cannot run gets a row with the reason. Run the same command again to continue.
    """
    refuse_unknown_names(
        methods=[label.partition(":")[0] for label in methods],
        data=data,
        tower=tower,
        protocol=protocol,
        settings=settings,
    )
    root_settings = root_setting(root)
    with show_progress(quiet=as_json) as announce:
        with activity("loading PyTorch"):
            from eaglenet.research.experiments import campaign
            from eaglenet.research.recipes import Recipe
            from eaglenet.research.recipes.comparison import compare as run_comparison
            from eaglenet.research.recipes.comparison import find_trials

        if dry_run:
            base = Recipe("", data, tower, protocol)
            trials, failures = find_trials(methods, base, [*root_settings, *(settings or ())])
            checks = campaign.check_trials(trials, device, output)
            print_checks(checks, campaign.cannot_run_lines(failures), seeds, as_json)
            return
        comparison = run_comparison(
            methods,
            data,
            output,
            tower=tower,
            protocol=protocol,
            root=root,
            settings=settings or (),
            split=split,
            seeds=seeds,
            jobs=jobs,
            search=search,
            time_pairs=time_pairs,
            device=device,
            announce=announce,
        )
    title, rows = comparison.title, comparison.rows
    if as_json:
        print(json.dumps({"title": title, "rows": campaign.plain_rows(rows)}, indent=2))
        return
    print_table(title, *campaign.campaign_table(rows))
    for line in campaign.remarks(output, rows):
        print_line(line)
    print_line(f"written: {', '.join(campaign.written_files(output, 'compare'))}")


def print_checks(
    checks: Mapping[str, ExperimentCheck | str], failures: list[str], seeds: int, as_json: bool
) -> None:
    """Print the trained parameters and the estimated cost of every row, for `--dry-run`."""
    from eaglenet.research.experiments.estimate import Estimate

    if as_json:
        plain = {
            label: {"cannot_run": check} if isinstance(check, str) else check.to_dict()
            for label, check in checks.items()
        }
        print(json.dumps(plain, indent=2))
        return
    seconds = 0.0
    parts: dict[str, float] = {}
    for label, check in checks.items():
        if isinstance(check, str):
            print_line(f"{label}: {check}")
            continue
        print(f"{label}: {check.parameters['trained']:,} trained parameters; {check.cost}")
        if isinstance(check.estimate, Estimate):
            seconds += seeds * check.estimate.seconds
        # Rows that read the same frames or features share them.
        parts |= check.preparation.parts
    for line in failures:
        print_line(line)
    costs = []
    if parts:
        costs.append(f"preparing videos once in about {format_hours(sum(parts.values()) / 3600)}")
    if seconds:
        length = format_hours(seconds / 3600)
        costs.append(f"training in about {length}, without evaluation")
    cost = f": {', then '.join(costs)}" if costs else ""
    print(f"all rows with {pluralize(seeds, 'seed')}{cost}; nothing was trained (--dry-run)")


PAPER_COLUMNS = {"msrvtt": "MSR-VTT", "didemo": "DiDeMo"}
"""Names of datasets in the columns of the paper's ablation tables, by value of ``--data``."""
PaperNumbers = dict[str, dict[str, float | None]]
"""Recalls in percent, by dataset and then by name (R@1)."""
RECALLS = ("R@1", "R@5", "R@10")


def ablate(
    table: str = argument("Table: components, energy, pooling, graph, coefficient or edges."),
    *,
    output: Output,
    data: Data = "demo",
    tower: Tower = "",
    protocol: Protocol = "",
    root: Root = "",
    seeds: Seeds = 1,
    split: str | None = option(
        None, "Report this split; default: test, or val if the data has no test split."
    ),
    settings: Settings = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train every row of an ablation table and print it beside the paper's numbers.

    Columns are labelled ours or paper. The numbers are comparable on MSR-VTT and DiDeMo; on other
    data compare only the order of the rows.
    """
    refuse_unknown_names(data=data, tower=tower, protocol=protocol, table=table, settings=settings)
    with show_progress(quiet=as_json) as announce:
        with activity("loading PyTorch"):
            from eaglenet.research.experiments import campaign
            from eaglenet.research.experiments.build import default_split
            from eaglenet.research.experiments.campaign import Trial
            from eaglenet.research.recipes import TABLES, Recipe

        if table not in TABLES:
            raise unknown_choice("table", table, TABLES)
        changes = [*root_setting(root), *(settings or [])]
        recipes = {
            value: Recipe("eaglenet", data, tower, protocol, (f"{table}={value}",))
            for value in TABLES[table]
        }
        trials = [
            Trial(value, recipe.build().override(changes)) for value, recipe in recipes.items()
        ]
        if dry_run:
            checks = campaign.check_trials(trials, device, output)
            print_checks(checks, [], seeds, as_json)
            return
        reported_split = split or default_split(trials[0].experiment.data)
        rows = campaign.run_campaign(
            trials, range(seeds), output, split=reported_split, device=device, announce=announce
        )
    paper = {row.label: paper_numbers(table, row.label, data) for row in rows}
    setup = Recipe("eaglenet", data, tower, protocol).name.partition("/")[2]
    count = pluralize(seeds, "seed")
    title = f"{table}: ours on {setup} ({reported_split} split, {count}) beside the paper"
    campaign.write_report(
        output, "ablate", title, rows, beside_paper(rows, paper), split=reported_split, paper=paper
    )
    if as_json:
        print(json.dumps({"title": title, "rows": campaign.plain_rows(rows, paper)}, indent=2))
        return
    print_table(title, *beside_paper(rows, paper))
    for line in [*campaign.cannot_run_lines(rows), *campaign.left_out_lines(output, rows)]:
        print_line(line)
    print_line(f"written: {', '.join(campaign.written_files(output, 'ablate'))}")


def paper_numbers(table: str, label: str, data: str) -> PaperNumbers:
    """Return the paper's text-to-video recalls of a row, on ``data`` or on all its datasets."""
    from eaglenet.research.evaluation.paper import paper_tables

    datasets = [PAPER_COLUMNS[data]] if data in PAPER_COLUMNS else list(PAPER_COLUMNS.values())
    table_data = paper_tables()[table]
    if f"average {RECALLS[0]}" in table_data.columns:
        datasets = [*datasets, "average"]
    return {
        dataset: {name: table_data.value(label, f"{dataset} {name}") for name in RECALLS}
        for dataset in datasets
    }


def beside_paper(
    rows: Sequence[CampaignRow], paper: Mapping[str, PaperNumbers]
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table with our recalls beside the paper's."""
    from eaglenet.research.experiments.campaign import TrialRow

    datasets = list(paper[rows[0].label])
    header = ["", *(f"{name} (ours)" for name in RECALLS)]
    header += [f"{dataset} {name} (paper)" for dataset in datasets for name in RECALLS]
    cells = []
    for row in rows:
        ours = ["cannot run", "", ""]
        if isinstance(row, TrialRow):
            ours = [row.recall_text("t2v", name) for name in RECALLS]
        theirs = [str(paper[row.label][dataset][name]) for dataset in datasets for name in RECALLS]
        cells.append([row.label, *ours, *theirs])
    return header, cells


MAX_METHODS = 4
"""Methods in the figure of example queries."""
TOP_VIDEOS = 3
"""Videos per method and example query."""


def report(
    runs: list[Path] = argument("Run folders, or folders that contain them."),
    output: Path = option(
        ..., "Write into this folder.", name="--output/-o", check=check_output_folder
    ),
    examples: int = option(0, "Show what each model finds for this many example queries.", min=0),
    split: str = option("val", "Take the example queries from this split."),
    as_json: AsJson = False,
) -> None:
    """Write report.md: tables with mean and spread over seeds, curves, times.

    The first table is that of the test split. Scoring times come from `eaglenet evaluate RUN`.
    tables.tex has the tables for a paper, with the best in bold; figures are also PDF.
    """
    qualitative: list[QualitativeExample] = []
    notes: list[str] = []
    with show_progress(quiet=as_json):
        with activity("loading PyTorch"):
            from eaglenet.research.evaluation.report import write_report
            from eaglenet.research.evaluation.run_records import read_runs
        if examples:
            finished_runs = [run for run in read_runs(runs)[0] if run.is_finished]
            qualitative = _examples(finished_runs, split, examples, notes)
        with activity("drawing the figures"):
            report = write_report(runs, output, examples=qualitative, notes=notes)
    problems = [(str(run.folder), run.problem or "no result") for run in report.unfinished_runs]
    problems += [(str(entry.folder), entry.reason) for entry in report.unreadable_runs]
    record = {
        "markdown": str(report.markdown),
        "latex": str(report.latex),
        "runs": report.num_runs,
        "unfinished_or_unreadable": [{"folder": folder, "why": why} for folder, why in problems],
        "notes": list(report.notes),
    }
    print_record(
        record, as_json, f"{pluralize(report.num_runs, 'run')}: {report.markdown}, {report.latex}"
    )
    if not as_json:
        for line in [f"{folder}: {why}" for folder, why in problems] + list(report.notes):
            print_line(f"note: {line}", is_error=True)


def _examples(
    runs: Sequence[RunRecord], split: str, count: int, notes: list[str]
) -> list[QualitativeExample]:
    """Run example queries on one run per recipe; skip runs on other data than the first."""
    from eaglenet.research.evaluation.figures import best_videos, make_examples
    from eaglenet.research.evaluation.run_records import group_runs
    from eaglenet.research.training.epochs import index_chunks

    best: dict[str, Any] = {}
    first = None
    groups = group_runs(runs)[:MAX_METHODS]
    titles = [group.method_title for group in groups]
    for group, title in zip(groups, titles, strict=True):
        # Short labels, because they stand beside rows of frames.
        label = title if titles.count(title) == 1 else group.label
        try:
            with activity(f"opening {label}"):
                method, source = _open(group.runs[0].folder, split)
        except EagleNetError as error:
            notes.append(f"No examples of {label}: {error}")
            continue
        first = first or source
        if list(first.captions) != list(source.captions):
            notes.append(f"No examples of {label}: it was trained on other data")
            continue
        texts = (source.texts(chunk) for chunk in index_chunks(source.num_texts, 256))
        videos = (source.videos(chunk) for chunk in index_chunks(source.num_videos, 32))
        with activity(f"example queries of {label}"):
            best[label] = best_videos(method, texts, videos, top_k=TOP_VIDEOS)
    return make_examples(best, first, count) if first is not None else []


def _open(folder: Path, split: str) -> tuple[Any, Any]:
    """Open the model and the data of a run."""
    from eaglenet.models.folder import load
    from eaglenet.research.data import SOURCES
    from eaglenet.research.experiments.build import load_source
    from eaglenet.research.experiments.runs import frames_folder, load_run

    experiment, method = load_run(folder)
    data = experiment.data
    if SOURCES[data.dataset].is_features:
        raise UsageError("stored features have no frames to show")
    if method.tokenizer is None:
        # A head over features that the run computed from videos; its towers read the frames.
        if not (folder / WHOLE_MODEL).is_dir():
            raise UsageError(f"{folder} has no towers, which read frames")
        method = load(str(folder / WHOLE_MODEL))
    cache = frames_folder(folder)
    return method, load_source(data, split, method, cache=cache, device=method.device)
