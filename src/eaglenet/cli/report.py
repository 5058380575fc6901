"""`eaglenet report`: tables, curves and examples of run folders, as Markdown and HTML."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.core.errors import EagleNetError

if TYPE_CHECKING:
    from eaglenet.research.evaluation.figures import QualitativeExample
    from eaglenet.research.evaluation.run_records import RunRecord

MAX_METHODS = 4  # rows per query of the qualitative figure


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")],
    title: Annotated[str, typer.Option(help="Heading of the report.")] = "Report",
    examples: Annotated[
        int,
        typer.Option(min=0, help="Draw this many example queries; loads the models; default 0."),
    ] = 0,
    split: Annotated[str, typer.Option(help="Split of the example queries; default val.")] = "val",
    top_k: Annotated[int, typer.Option(min=1, help="Videos per example query; default 3.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write report.md and report.html: tables with mean and spread over seeds, curves, times.

    The table of the test split comes first. With --examples the report also shows what each run
    retrieves for some queries.

    Scoring times come from `eaglenet evaluate RUN --output RUN/evaluation-test.json`.
    """
    from eaglenet.research.evaluation.report import write_report
    from eaglenet.research.evaluation.run_records import read_runs

    qualitative: list[QualitativeExample] = []
    notes: list[str] = []
    if examples:
        finished_runs = [run for run in read_runs(runs)[0] if run.is_finished]
        qualitative = _examples(finished_runs, split, examples, top_k, notes)
    report = write_report(runs, output, title=title, examples=qualitative, notes=notes)
    problems = [(str(run.folder), run.problem or "no result") for run in report.unfinished]
    problems += [(str(entry.folder), entry.reason) for entry in report.broken]
    if as_json:
        record = {
            "markdown": str(report.markdown),
            "html": str(report.html),
            "runs": report.num_runs,
            "unfinished_or_unreadable": [dict(zip(("folder", "why"), u, strict=True))
                                         for u in problems],
            "notes": list(report.notes),
        }  # fmt: skip
        print(json.dumps(record, indent=2))
        return
    print(f"{report.num_runs} runs: {report.markdown} and {report.html}")
    for line in [f"{folder}: {why}" for folder, why in problems] + list(report.notes):
        print(f"note: {line}", file=sys.stderr)


def _examples(
    runs: Sequence[RunRecord], split: str, count: int, top_k: int, notes: list[str]
) -> list[QualitativeExample]:
    """Query one run per recipe; runs on other data than the first are left out."""
    from eaglenet.research.evaluation.figures import best_videos, make_examples
    from eaglenet.research.evaluation.run_records import group_runs
    from eaglenet.research.training.epochs import index_chunks

    best: dict[str, Any] = {}
    gallery = None
    for group in group_runs(runs)[:MAX_METHODS]:
        try:
            method, source, candidate = _open(group.runs[0].folder, split)
        except EagleNetError as error:
            notes.append(f"No examples of {group.label}: {error}")
            continue
        if gallery is None:
            gallery = candidate
        elif list(gallery.sentences) != list(candidate.sentences):
            notes.append(f"No examples of {group.label}: it was trained on other data")
            continue
        texts = (source.texts(rows) for rows in index_chunks(source.num_texts, 256))
        videos = (source.videos(rows) for rows in index_chunks(source.num_videos, 32))
        best[group.label] = best_videos(method, texts, videos, top_k=top_k)
    return make_examples(best, gallery, count) if gallery is not None and best else []


def _open(folder: Path, split: str) -> tuple[Any, Any, Any]:
    """Open the model, data and gallery of a run."""
    from eaglenet.core.errors import UsageError
    from eaglenet.research.data import SOURCES
    from eaglenet.research.evaluation.figures import Gallery
    from eaglenet.research.experiments.build import load_source
    from eaglenet.research.experiments.runs import frames_folder, load_run

    experiment, method = load_run(folder)
    data = experiment.data
    if SOURCES[data.dataset].is_features:
        raise UsageError("stored features have no frames to show")
    cache = frames_folder(folder)
    source = load_source(data, split, method, cache=cache, device=method.device)
    clips: Any = source.videos
    gallery = Gallery(source.sentences, source.video_ids, source.video_of_text.cpu(), clips)
    return method, source, gallery
