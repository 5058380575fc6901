"""Paired bootstrap: is the difference between two models more than chance?

Captions of one video are not independent, so videos are drawn, each with all its queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError

DRAWS = 2000
CONFIDENCE = 0.95
CHUNK = 100  # draws at once: bounds the memory, not the result
RANKS = "ranks"
"""Files of ranks beside an evaluation: ``ranks-val.npz`` beside ``evaluation-val.json``."""


@dataclass(frozen=True)
class Difference:
    """A recall of one model minus that of another, in points.

    low, high: limits of the middle 95% of the draws.
    """

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """The interval leaves out 0."""
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
    r"""Confidence interval of ``mean(first) - mean(second)`` over resampled groups.

    .. math:: d_b = \frac{\sum_g n_{bg} \sum_{q \in g} (x_q - y_q)}{\sum_g n_{bg} |g|}, \quad
        n_b \sim \mathrm{Multinomial}(G, 1/G)

    ``first`` and ``second`` hold the score of each query (the percentage of seeds that were right),
    ``groups`` the video of each query.
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
    """Read the ``t2v`` and ``v2t`` ranks of a run, and the video of each text."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in ("t2v", "v2t", "video_of_text")}
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{path}: ranks cannot be read ({error}); delete it and evaluate again"
        ) from error


def compare_ranks(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    direction: str = "t2v",
) -> Difference:
    """Compare R@1 of two models; each query counts with its mean over the seeds."""
    queries = {len(record[direction]) for record in (*first, *second)}
    owners = first[0]["video_of_text"]
    same = all(np.array_equal(record["video_of_text"], owners) for record in (*first, *second))
    if len(queries) != 1 or not same:
        raise UsageError("the two models answered different queries: no paired comparison")
    groups = owners if direction == "t2v" else np.arange(queries.pop())
    sides = [
        100.0 * np.mean([record[direction] <= 1 for record in records], axis=0)
        for records in (first, second)
    ]
    return paired_bootstrap(sides[0], sides[1], groups)
