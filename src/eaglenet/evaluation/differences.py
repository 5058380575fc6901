"""The part of a report that says which differences between recipes are clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eaglenet.errors import UsageError
from eaglenet.evaluation.bootstrap import RANKS, compare_ranks, read_ranks
from eaglenet.evaluation.document import Block, Heading, Paragraph, Table
from eaglenet.evaluation.run_records import RecipeGroup

SAYS = (
    "Paired bootstrap over queries (videos are drawn and bring their captions; 2,000 draws): R@1 "
    "minus that of {name}, in points, with the middle 95%. An interval that holds 0 claims nothing."
)


def difference_blocks(groups: Sequence[RecipeGroup]) -> list[Block]:
    """For every split with ranks: all recipes against the best, and against the first."""
    blocks: list[Block] = []
    names = sorted(
        {path.stem for group in groups for run in group.runs for path in _files(run.folder)}
    )
    for name in names:
        found = {
            group.label: [
                read_ranks(run.folder / f"{name}.npz")
                for run in group.runs
                if (run.folder / f"{name}.npz").exists()
            ]
            for group in groups
        }
        known = {label: records for label, records in found.items() if records}
        if len(known) < 2:
            continue
        best = max(known, key=lambda label: _recall(known[label]))
        blocks.append(Heading(f"Differences ({name.removeprefix(RANKS).lstrip('-')})"))
        for base in dict.fromkeys((best, next(iter(known)))):
            rows = difference_rows(known, base)
            if rows:
                blocks += [Paragraph(SAYS.format(name=base)), Table(["recipe", "t2v", "v2t"], rows)]
    return blocks


def difference_rows(known: Mapping[str, Sequence[Mapping[str, Any]]], base: str) -> list[list[str]]:
    """A row for each recipe but ``base``; * marks an interval without 0."""
    rows = []
    for label, records in known.items():
        if label == base:
            continue
        cells = []
        for direction in ("t2v", "v2t"):
            try:
                found = compare_ranks(records, known[base], direction)
            except UsageError:
                cells.append("other queries")
                continue
            cells.append(f"{found}{' *' if found.is_clear else ''}")
        rows.append([label, *cells])
    return rows


def _recall(records: Sequence[Mapping[str, Any]]) -> float:
    return float(np.mean([np.mean(record["t2v"] <= 1) for record in records]))


def _files(folder: Any) -> list[Any]:
    return sorted(folder.glob(f"{RANKS}-*.npz"))
