"""Shortlists of very large stores by the codes of their vectors, and how much these find."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.search.filters import Filters
from eaglenet.search.shortlist import (
    Shortlist,
    best_of,
    exact_shortlists,
    is_exact,
    levels_taken,
)
from eaglenet.search.store.base import Store
from eaglenet.search.store.near_codes import Near
from eaglenet.search.store.snapshot import Snapshot

CANDIDATES = 2048
"""Clips whose exact cosines are computed, and one more for each ``ONE_IN`` clips of the store."""
ONE_IN = 8192
WIDER = 16
"""At least so many candidates for each clip of the shortlist."""


class Scan(Protocol):
    """Who makes the shortlists in the place of this machine."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts of the store that cannot be reached now, in words."""
        ...

    def shortlists(
        self,
        snapshot: Snapshot,
        queries: Tensor,
        k: int,
        filters: Filters | None,
        shares: Sequence[float] | None = None,
    ) -> list[Shortlist]:
        """Those of this machine, to the bit, of the parts of the store that can be reached."""
        ...


def is_scanned(snapshot: Snapshot) -> bool:
    """Whether the vectors themselves are scanned: they are few, or have no codes."""
    return is_exact(len(snapshot), snapshot.dim) or not snapshot.has_codes


def way_of(snapshot: Snapshot) -> str:
    """How a store is searched, in words."""
    return "exact scan" if is_scanned(snapshot) else "codes"


def num_candidates(snapshot: Snapshot, k: int) -> int:
    """How many of the nearest codes are looked at for the k best clips."""
    return max(CANDIDATES + snapshot.num_slots // ONE_IN, WIDER * k)


@torch.no_grad()
def coded_shortlists(
    snapshot: Snapshot,
    queries: Float[Tensor, "queries dim"],
    k: int,
    allowed: NDArray[np.bool_] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Shortlist]:
    """The k best allowed clips of each query among those with the nearest codes.

    Cosines are exact, and equal to those of :func:`exact_shortlists` to the bit; what may be
    missing are clips whose codes are far although their vectors are near.
    """
    wanted = _wanted(snapshot, (0, snapshot.num_slots), allowed)
    count = num_candidates(snapshot, k)
    results = []
    for number, query in enumerate(queries.to("cpu", torch.float32)):
        rows = snapshot.rows_at(snapshot.codes.nearest(query.numpy(), count, wanted))
        share = shares[number] if shares else 0.0
        results.append(best_candidates(snapshot, rows, query, k, share))
    return results


def best_candidates(
    snapshot: Snapshot,
    rows: NDArray[np.int64],
    query: Float[Tensor, "dim"],
    k: int,
    share: float = 0.0,
) -> Shortlist:
    """The k best of the rows with the nearest codes.

    Levels are taken off here, not off the distances of codes.
    """
    taken = levels_taken(snapshot, rows, share)
    return best_of(snapshot.vectors_of(rows), rows, query, k, taken)


def near_in_part(
    snapshot: Snapshot,
    codes: NDArray[np.uint8],
    count: int,
    part: tuple[int, int],
    allowed: NDArray[np.bool_] | None = None,
) -> list[Near]:
    """Of each code, the allowed rows of a part that may be among the ``count`` nearest of all.

    ``part`` as in :func:`exact_shortlists`. Those of all parts together, in ``nearest_of``, give
    the candidates of the whole store, to the last one.
    """
    first, end = snapshot.part(*part)
    stretch, wanted = snapshot.codes_between(first, end), _wanted(snapshot, (first, end), allowed)
    found = [stretch.near(code, count, wanted).thinned(count) for code in codes]
    return [replace(near, slots=snapshot.rows_at(near.slots)) for near in found]


def _wanted(
    snapshot: Snapshot, stretch: tuple[int, int], allowed: NDArray[np.bool_] | None
) -> NDArray[np.bool_] | None:
    """Which slots of a stretch hold a clip that may be found; None: all do."""
    if allowed is None and snapshot.is_dense:
        return None
    first, end = stretch
    slots = snapshot.columns["slot"]
    low, high = np.searchsorted(slots, [first, end])
    wanted = np.zeros(end - first, bool)
    wanted[slots[low:high] - first] = True if allowed is None else allowed[low:high]
    return wanted


def shortlists_of(
    snapshot: Snapshot,
    queries: Float[Tensor, "queries dim"],
    k: int,
    filters: Filters | None,
    scan: Scan | None = None,
    shares: Sequence[float] | None = None,
) -> list[Shortlist]:
    """The k nearest clips of each query that the filters leave, the way that suits the store.

    ``scan``: who makes the shortlists, where this machine does not. ``shares``: how much of the
    clips' levels each query takes off.
    """
    if snapshot.levels is None or not any(shares or ()):
        shares = None
    if scan is not None:
        return scan.shortlists(snapshot, queries, k, filters, shares)
    allowed = snapshot.rows_of(filters.allowed(snapshot.files)) if filters else None
    if allowed is not None and allowed.all():
        allowed = None
    if is_scanned(snapshot):
        return exact_shortlists(snapshot, queries, k, allowed, shares=shares)
    return coded_shortlists(snapshot, queries, k, allowed, shares)


@dataclass(frozen=True)
class Recall:
    """How much of the exact shortlist the codes find."""

    index: str
    k: int
    queries: int
    recall: float
    milliseconds: float
    exact_milliseconds: float


def measure_recall(store: Store, *, k: int = 100, num_queries: int = 100, seed: int = 0) -> Recall:
    """Compare with the exact scan, with clips of the store, slightly moved, as queries."""
    snapshot = store.snapshot()
    generator = torch.Generator().manual_seed(seed)
    num_queries = min(num_queries, len(snapshot))
    rows = torch.randperm(len(snapshot), generator=generator)[:num_queries]
    queries = snapshot.vectors_of(rows.numpy())
    noise = torch.randn(queries.shape, generator=generator) / queries.shape[1] ** 0.5
    queries = torch.nn.functional.normalize(queries + 0.5 * noise, dim=-1)
    found, hits = 0, 0
    spent = exact_spent = 0.0
    for query in queries:
        started = time.perf_counter()
        truth = exact_shortlists(snapshot, query[None], k)[0]
        exact_spent += time.perf_counter() - started
        started = time.perf_counter()
        answer = coded_shortlists(snapshot, query[None], k)[0] if snapshot.has_codes else truth
        spent += time.perf_counter() - started
        found += len(truth.rows)
        hits += len(np.intersect1d(truth.rows, answer.rows))
    count = max(1, num_queries)
    exact_ms = 1000 * exact_spent / count
    return Recall(
        index="codes" if snapshot.has_codes else "exact scan",
        k=k,
        queries=num_queries,
        recall=hits / found if found else 1.0,
        milliseconds=1000 * spent / count if snapshot.has_codes else exact_ms,
        exact_milliseconds=exact_ms,
    )
