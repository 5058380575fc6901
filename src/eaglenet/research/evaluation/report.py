"""Reports on run folders: tables, differences, curves, recall against time, examples.

Every table has one split and one protocol, and names both. Numbers of the paper are labelled
*paper*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.research.evaluation.conditions import (
    TITLES,
    as_cells,
    conditions_lines,
    run_conditions,
)
from eaglenet.research.evaluation.differences import difference_blocks
from eaglenet.research.evaluation.document import TABLES, Block, Figure, make_table, write_document
from eaglenet.research.evaluation.figures import (
    Curve,
    Picture,
    QualitativeExample,
    curves_figure,
    qualitative_figure,
    recall_against_time_figure,
)
from eaglenet.research.evaluation.paper import recall_against_time
from eaglenet.research.evaluation.result_tables import (
    dataset_blocks,
    evaluation_seconds,
    paper_blocks,
    result_blocks,
    time_blocks,
)
from eaglenet.research.evaluation.run_records import (
    BrokenRun,
    RecipeGroup,
    RunRecord,
    group_runs,
    read_runs,
)


@dataclass(frozen=True)
class Report:
    """The files of a report, and the runs that it could not include."""

    markdown: Path
    latex: Path
    num_runs: int
    unreadable_runs: tuple[BrokenRun, ...]
    unfinished_runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]


def write_report(
    folders: Sequence[Path],
    output: Path,
    *,
    title: str = "Report",
    first_split: str = "test",
    examples: Sequence[QualitativeExample] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Read the runs and write ``report.md`` into ``output``, with ``first_split`` first.

    Its tables of our results are also written as LaTeX, into :data:`TABLES`.
    """
    runs, unreadable_runs = read_runs(folders)
    if not runs:
        reasons = "; ".join(f"{entry.folder}: {entry.reason}" for entry in unreadable_runs)
        raise UsageError(f"no runs to report ({reasons or 'no folder given'})")
    groups = group_runs(runs)
    unfinished_runs = [run for run in runs if not run.is_finished]
    notes = list(notes)
    blocks = [*result_blocks(groups, first_split), *_conditions(groups)]
    blocks += difference_blocks(groups)
    blocks += [*dataset_blocks(groups), *time_blocks(groups), *paper_blocks(groups)]
    blocks += _figures(runs, groups, examples, notes)
    blocks += [*_provenance(runs), *_problems(runs, unreadable_runs), *notes]
    path = write_document(output, title, blocks)
    return Report(
        path,
        output / TABLES,
        len(runs),
        tuple(unreadable_runs),
        tuple(unfinished_runs),
        tuple(notes),
    )


def _conditions(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Tabulate the conditions of each recipe, and name the differences."""
    conditions = [
        run_conditions(
            group.runs[0].settings, str((group.runs[0].metrics or {}).get("protocol", ""))
        )
        for group in groups
    ]
    if not conditions:
        return []
    rows = [
        [group.label, *as_cells(entry)] for group, entry in zip(groups, conditions, strict=True)
    ]
    lines = conditions_lines(conditions)
    return ["## Conditions", make_table(["recipe", *TITLES.values()], rows), *lines]


def _figures(
    runs: Sequence[RunRecord],
    groups: Sequence[RecipeGroup],
    examples: Sequence[QualitativeExample],
    notes: list[str],
) -> list[Block]:
    blocks: list[Block] = []

    def add(name: str, caption: str, draw: Callable[[], Picture]) -> None:
        try:
            blocks.append(Figure(name, caption, draw()))
        except EagleNetError as error:
            notes.append(f"Left out: {caption}: {error}")

    losses, recalls = _loss_curves(runs), _recall_curves(runs)
    if losses:
        add("loss", "Training loss", lambda: curves_figure(
            losses, title="training loss", x_label="step", y_label="loss", log_y=True))  # fmt: skip
    if recalls:
        add("recall", "Text-to-video R@1 after each epoch, on the split used for selection",
            lambda: curves_figure(recalls, title="text-to-video R@1", x_label="epoch",
                                  y_label="R@1 (%)", is_percent=True))  # fmt: skip
    for number, (protocol, points) in enumerate(_time_points(groups).items()):
        name = "recall_against_time" + (f"_{number + 1}" if number else "")
        add(name, f"Recall against whole test time. Ours: {protocol}. Right panel: paper",
            lambda points=points, protocol=protocol: recall_against_time_figure(  # type: ignore[misc]
                points, recall_against_time(), protocol=protocol))  # fmt: skip
    if examples:
        caption = "Queries on which the runs disagree, with the best videos of each: right green, "
        add("examples", f"{caption}wrong red", lambda: qualitative_figure(examples))
    return ["## Figures", *blocks] if blocks else []


def _loss_curves(runs: Sequence[RunRecord]) -> list[Curve]:
    curves = []
    for run in runs:
        points = [
            (entry.step, _loss(entry.values))
            for entry in run.steps
            if _loss(entry.values) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            curves.append(Curve(_run_label(run), x, y))
    return curves


def _loss(step: Mapping[str, Any]) -> float | None:
    value = step.get("total", step.get("loss"))
    return float(value) if isinstance(value, int | float) else None


def _recall_curves(runs: Sequence[RunRecord]) -> list[Curve]:
    return [
        Curve(
            _run_label(run),
            [
                entry.values.get("epoch", number)
                for number, entry in enumerate(run.history, start=1)
            ],
            [entry.values["t2v"]["R@1"] for entry in run.history],
        )
        for run in runs
        if run.history
    ]


def _run_label(run: RunRecord) -> str:
    return f"{run.name}, seed {run.seed}" + ("" if run.is_finished else " (unfinished)")


def _time_points(groups: Sequence[RecipeGroup]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the mean seconds of the whole test and mean R@1, by protocol and recipe."""
    points: dict[str, dict[str, tuple[float, float]]] = {}
    for group in groups:
        by_protocol: dict[str, list[tuple[float, float]]] = {}
        for run in group.runs:
            for record in (run.metrics or {}, *run.evaluations.values()):
                seconds = evaluation_seconds(record)
                if seconds is not None:
                    point = (seconds[0], float(record["t2v"]["R@1"]))
                    by_protocol.setdefault(str(record.get("protocol", "?")), []).append(point)
        for protocol, pairs in by_protocol.items():
            mean = (sum(p[0] for p in pairs) / len(pairs), sum(p[1] for p in pairs) / len(pairs))
            points.setdefault(protocol, {})[group.label] = mean
    return points


def _provenance(runs: Sequence[RunRecord]) -> list[Block]:
    rows = []
    for run in runs:
        versions, hardware, data = (
            _mapping(run.manifest.get(name)) for name in ("versions", "hardware", "data")
        )
        device = ", ".join(hardware.get("gpus", [])) or hardware.get("processor", "?")
        videos = "; ".join(
            f"{name} {counts.get('videos_found', '?')} found, {counts.get('videos_missing', '?')} "
            "missing"
            for name, counts in ((name, _mapping(value)) for name, value in data.items())
        )
        commit = str(run.manifest.get("commit") or "?")[:12]
        # Runs of a campaign are called seed-N; the parent folder has the name of the recipe.
        short_folder = "/".join(run.folder.resolve().parts[-2:])
        rows.append([short_folder, str(run.seed), commit, str(versions.get("torch", "?")),
                     str(device), videos or "?"])  # fmt: skip
    return [
        "## Software and hardware",
        make_table(["run", "seed", "commit", "torch", "hardware", "videos"], rows),
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _problems(runs: Sequence[RunRecord], unreadable_runs: Sequence[BrokenRun]) -> list[Block]:
    rows = [[str(run.folder), run.problem] for run in runs if run.problem]
    rows += [[str(entry.folder), entry.reason] for entry in unreadable_runs]
    if not rows:
        return []
    return ["## Unfinished or unreadable runs", make_table(["folder", "problem"], rows)]
