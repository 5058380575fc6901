"""Differences between models, tested with a paired bootstrap over videos.

The captions of one video are not independent, so videos are resampled, each with its captions.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.research.evaluation.document import Block, plain_table
from eaglenet.research.evaluation.result_tables import split_title
from eaglenet.research.evaluation.run_records import RecipeGroup

DRAWS = 2000
"""Resamplings of the bootstrap."""
CONFIDENCE = 0.95
CHUNK = 100
"""Resamplings computed at a time, to limit memory."""
RANKS = "ranks"
"""Prefix of files with ranks: ``ranks-val.npz`` beside ``evaluation-val.json``."""


@dataclass(frozen=True)
class Difference:
    """Difference of the recalls of two models in percentage points, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def paired_bootstrap(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    groups: NDArray[np.int64],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Difference:
    r"""Compute the confidence interval of ``mean(first) - mean(second)`` over resampled groups.

    .. math:: d_b = \frac{\sum_g n_{bg} \sum_{q \in g} (x_q - y_q)}{\sum_g n_{bg} |g|}, \quad
        n_b \sim \mathrm{Multinomial}(G, 1/G)

    first, second: score of each query (percentage of seeds with a right answer). groups: video of
    each query.
    """
    if not len(first) == len(second) == len(groups) or len(groups) == 0:
        raise UsageError(
            f"{len(first)}, {len(second)} values and {len(groups)} groups: a paired comparison "
            "needs the same queries on both sides; evaluate both on the same split"
        )
    _, index = np.unique(groups, return_inverse=True)
    sums = np.bincount(index, weights=first - second)
    sizes = np.bincount(index).astype(np.float64)
    generator = np.random.default_rng(seed)
    probabilities = np.full(len(sums), 1 / len(sums))
    differences = []
    for start in range(0, draws, CHUNK):
        counts = generator.multinomial(len(sums), probabilities, size=min(CHUNK, draws - start))
        differences.append((counts @ sums) / (counts @ sizes))
    values = np.concatenate(differences)
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    mean = float(sums.sum() / sizes.sum())
    return Difference(mean, float(low), float(high))


def read_ranks(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read the ranks ``t2v`` and ``v2t`` of a run, and ``video_of_text``."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in ("t2v", "v2t", "video_of_text")}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise UsageError(
            f"{path}: ranks cannot be read ({error}); delete it and evaluate again"
        ) from error


def compare_ranks(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    direction: str = "t2v",
) -> Difference:
    """Compare R@1 of two models, with the mean over seeds of each query."""
    records = (*first, *second)
    counts = {len(record[direction]) for record in records}
    video_of_text = first[0]["video_of_text"]
    is_same = all(np.array_equal(record["video_of_text"], video_of_text) for record in records)
    if len(counts) != 1 or not is_same:
        raise UsageError("the two models were evaluated on different queries")
    groups = video_of_text if direction == "t2v" else np.arange(counts.pop())
    first_scores, second_scores = (
        100.0 * np.mean([record[direction] <= 1 for record in side], axis=0)
        for side in (first, second)
    )
    return paired_bootstrap(first_scores, second_scores, groups)


DIFFERENCE_NOTE = (
    "Differences of R@1 in percentage points, with 95% intervals (paired bootstrap, 2,000 "
    "resamplings of videos with their captions). If the interval contains 0 (no *), there is no "
    "clear difference."
)


Ranks = Mapping[str, Sequence[Mapping[str, Any]]]
"""Ranks of the runs of each recipe, by label."""


def difference_blocks(groups: Sequence[RecipeGroup]) -> list[Block]:
    """Compare all recipes with the best and with the first, on every split with ranks.

    Only results of one protocol are compared: other data may have as many queries.
    """
    blocks: list[Block] = []
    folders = [run.folder for group in groups for run in group.runs]
    for name in sorted({file.stem for path in folders for file in path.glob(f"{RANKS}-*.npz")}):
        suffix = name.removeprefix(RANKS)
        tables = [
            block
            for protocol, ranks in _ranks_by_protocol(groups, suffix).items()
            if len(ranks) > 1
            for block in (*([f"Protocol: {protocol}"] if protocol else []), *_differences(ranks))
        ]
        if tables:
            split = split_title(suffix.lstrip("-"))
            blocks += [f"## Differences on the {split}", DIFFERENCE_NOTE, *tables]
    return blocks


def _ranks_by_protocol(
    groups: Sequence[RecipeGroup], suffix: str
) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    """Read ``ranks`` files, by the protocol of the evaluation beside them, and by label."""
    ranks: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for group in groups:
        for run in group.runs:
            path = run.folder / f"{RANKS}{suffix}.npz"
            if path.exists():
                evaluation = run.evaluations.get(f"evaluation{suffix}", {})
                by_label = ranks.setdefault(str(evaluation.get("protocol", "")), {})
                by_label.setdefault(group.label, []).append(read_ranks(path))
    return ranks


def _differences(ranks: Ranks) -> list[Block]:
    """Compare all recipes of one protocol with the best and with the first."""
    recalls = {
        label: np.mean([np.mean(record["t2v"] <= 1) for record in records])
        for label, records in ranks.items()
    }
    best = max(recalls, key=lambda label: recalls[label])
    first = next(iter(ranks))
    # Without `best`, which the first table has with the opposite sign.
    others = {label: entry for label, entry in ranks.items() if label != best}
    blocks: list[Block] = []
    for base, compared in ((best, ranks), (first, others)):
        rows = difference_rows(compared, base) if base in compared else []
        if rows:
            text = f"R@1 minus that of {base}"
            caption = f"{text}. {DIFFERENCE_NOTE}"
            blocks += [f"{text}:", plain_table(caption, ["recipe", "t2v", "v2t"], rows)]
    return blocks


def difference_rows(ranks: Ranks, base: str) -> list[list[str]]:
    """Compare each recipe with ``base``, one row each; * marks an interval without 0."""
    rows = []
    for label, records in ranks.items():
        if label == base:
            continue
        cells = []
        for direction in ("t2v", "v2t"):
            try:
                difference = compare_ranks(records, ranks[base], direction)
            except UsageError:
                cells.append("other queries")
                continue
            cells.append(f"{difference}{' *' if difference.is_clear else ''}")
        rows.append([label, *cells])
    return rows
