"""Shortlists: the clips whose vectors are nearest to a query.

All vectors are compared while that is fast; in larger stores their codes are (see
:func:`approximate_shortlists`).
"""

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

from eaglenet.search.options import Filters
from eaglenet.search.store.base import Store
from eaglenet.search.store.near_codes import Near
from eaglenet.search.store.snapshot import Snapshot

EXACT_BYTES = 1 << 30
"""Size up to which all vectors are compared: half a million of 512 numbers, about 50 ms on two
cores."""
QUERY_BATCH = 32
"""Limits the score matrix: 32 queries x 1 million clips take 128 MB."""
NARROW_BATCH = 4
"""Queries below which matrix-vector products are faster than one matrix product."""
ROUNDING = 3e-5
"""Largest error of a cosine computed in single precision from 512 numbers."""
MAX_TIES = 10_000
"""Clips within rounding of the last clip of a shortlist that are compared exactly."""
CHUNK = 4096
SPARSE_FRACTION = 0.25
"""Fraction of allowed clips up to which copying their vectors beats comparing all vectors."""
CANDIDATES = 2048
"""Codes whose vectors are compared exactly, plus one per ``CLIPS_PER_CANDIDATE`` clips."""
CLIPS_PER_CANDIDATE = 8192
CANDIDATES_PER_RESULT = 16
"""Minimum number of such codes per clip of the shortlist."""


@dataclass(frozen=True)
class Shortlist:
    """Rows of a snapshot and their cosines, best first.

    If the store has hubness offsets, they are subtracted from the cosines.
    """

    rows: NDArray[np.int64]
    cosines: NDArray[np.float32]

    def first(self, k: int) -> Shortlist:
        return Shortlist(self.rows[:k], self.cosines[:k])

    def without(self, row: int) -> Shortlist:
        others = self.rows != row
        return Shortlist(self.rows[others], self.cosines[others])

    def with_rows(
        self,
        snapshot: Snapshot,
        query: Float[Tensor, "dim"],
        rows: Sequence[int],
        hubness_weight: float = 0.0,
    ) -> Shortlist:
        """Add rows, sorted in by their cosines."""
        present = set(self.rows.tolist())
        more = np.array([row for row in rows if row not in present], np.int64)
        if not len(more):
            return self
        cosines = (snapshot.vectors_of(more) @ query.to("cpu", torch.float32)).numpy()
        offsets = hubness_offsets(snapshot, more, hubness_weight)
        if offsets is not None:
            cosines = (cosines - offsets).astype(np.float32)
        all_cosines = np.concatenate([self.cosines, cosines])
        order = np.argsort(-all_cosines, kind="stable")
        return Shortlist(np.concatenate([self.rows, more])[order], all_cosines[order])


EMPTY = Shortlist(np.zeros(0, np.int64), np.zeros(0, np.float32))


class Scan(Protocol):
    """Makes shortlists on other machines."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the shards of the store that cannot be reached now."""
        ...

    def shortlists(
        self,
        snapshot: Snapshot,
        queries: Tensor,
        k: int,
        filters: Filters | None,
        hubness_weights: Sequence[float] | None = None,
    ) -> list[Shortlist]:
        """Make the shortlists of :func:`make_shortlists` from the shards that can be reached."""
        ...


def make_shortlists(
    snapshot: Snapshot,
    queries: Float[Tensor, "queries dim"],
    k: int,
    filters: Filters | None,
    scan: Scan | None = None,
    hubness_weights: Sequence[float] | None = None,
) -> list[Shortlist]:
    """Find the k nearest clips per query that the filters allow.

    ``scan`` does it on other machines. ``hubness_weights``: multiple of the clips' hubness offsets
    to subtract, per query.
    """
    if snapshot.levels is None or not any(hubness_weights or ()):
        hubness_weights = None
    if scan is not None:
        return scan.shortlists(snapshot, queries, k, filters, hubness_weights)
    allowed = snapshot.rows_of(filters.allowed(snapshot.files)) if filters else None
    if allowed is not None and allowed.all():
        allowed = None
    if uses_exact_scan(snapshot):
        return exact_shortlists(snapshot, queries, k, allowed, hubness_weights=hubness_weights)
    return approximate_shortlists(snapshot, queries, k, allowed, hubness_weights)


def uses_exact_scan(snapshot: Snapshot) -> bool:
    """Whether all vectors are compared: there are few of them, or they have no codes."""
    return fits_exact_scan(len(snapshot), snapshot.dim) or not snapshot.has_codes


def scan_name(snapshot: Snapshot) -> str:
    """``exact scan`` or ``codes``, for people."""
    return "exact scan" if uses_exact_scan(snapshot) else "codes"


def fits_exact_scan(num_clips: int, dim: int) -> bool:
    """Whether comparing so many vectors is fast enough."""
    return num_clips * dim * 4 <= EXACT_BYTES


@torch.no_grad()
def exact_shortlists(
    snapshot: Snapshot,
    queries: Float[Tensor, "queries dim"],
    k: int,
    allowed: NDArray[np.bool_] | None = None,
    shard: tuple[int, int] = (1, 1),
    hubness_weights: Sequence[float] | None = None,
) -> list[Shortlist]:
    """Find the k best allowed clips per query by comparing all vectors.

    ``shard`` (number, count) compares one shard of the store only. Cosines, and the order of equal
    ones, do not depend on the shard: the best of all shards are the best of the store, bit by bit.
    """
    first, end = snapshot.part(*shard)
    rows, positions = _rows_between(snapshot, first, end, allowed)
    if not len(rows) or k < 1:
        return [EMPTY] * len(queries)
    vectors = snapshot.vectors_between(first, end)
    columns: Tensor | None = None
    if allowed is not None and len(rows) <= SPARSE_FRACTION * (end - first):
        vectors = vectors[torch.from_numpy(positions)]
        positions = np.arange(len(rows))
    elif allowed is not None or not snapshot.is_dense:
        columns = torch.from_numpy(positions)
    results = []
    for start in range(0, len(queries), QUERY_BATCH):
        batch = queries[start : start + QUERY_BATCH].to("cpu", torch.float32)
        # A matrix-vector product reads the vectors at full memory speed, a narrow matrix does not.
        is_narrow = len(batch) < NARROW_BATCH
        products = [vectors @ query for query in batch] if is_narrow else []
        scores = torch.stack(products) if is_narrow else (vectors @ batch.T).T
        if columns is not None:
            scores = scores[:, columns]
        for number, (query, row_scores) in enumerate(zip(batch, scores, strict=True), start):
            weight = hubness_weights[number] if hubness_weights else 0.0
            offsets = hubness_offsets(snapshot, rows, weight)
            if offsets is not None:
                row_scores = row_scores - torch.from_numpy(offsets).float()
            best = _near_best(row_scores, k)
            cosines = _cosines(
                vectors[torch.from_numpy(positions[best])],
                query,
                None if offsets is None else offsets[best],
            )
            results.append(merge_shortlists([Shortlist(rows[best], cosines)], k))
    return results


def rank_rows(
    vectors: Float[Tensor, "rows dim"],
    rows: NDArray[np.int64],
    query: Float[Tensor, "dim"],
    k: int,
    offsets: NDArray[np.float64] | None = None,
) -> Shortlist:
    """Rank a few rows, whose vectors are given; cosines equal those of an exact scan."""
    if not len(rows) or k < 1:
        return EMPTY
    scores = vectors @ query
    if offsets is not None:
        scores = scores - torch.from_numpy(offsets).float()
    best = _near_best(scores, k)
    cosines = _cosines(
        vectors[torch.from_numpy(best)], query, None if offsets is None else offsets[best]
    )
    return merge_shortlists([Shortlist(rows[best], cosines)], k)


def hubness_offsets(
    snapshot: Snapshot, rows: NDArray[np.int64], weight: float
) -> NDArray[np.float64] | None:
    """Weighted hubness offsets to subtract from the scores of rows; None if there are none."""
    if snapshot.levels is None or not weight:
        return None
    offsets: NDArray[np.float64] = weight * snapshot.levels[rows].astype(np.float64)
    return offsets


def _rows_between(
    snapshot: Snapshot, first: int, end: int, allowed: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Allowed rows whose slots are in ``[first, end)``, and their slots counted from ``first``."""
    if snapshot.is_dense:
        slots = np.arange(end - first) if allowed is None else np.flatnonzero(allowed[first:end])
        return slots + first, slots
    slots = snapshot.columns["slot"]
    is_inside = (slots >= first) & (slots < end)
    rows = np.flatnonzero(is_inside if allowed is None else is_inside & allowed)
    return rows, slots[rows] - first


def merge_shortlists(shortlists: Sequence[Shortlist], k: int) -> Shortlist:
    """Keep the k best of several shortlists of one snapshot; of equal cosines the first row."""
    rows = np.concatenate([shortlist.rows for shortlist in shortlists])
    cosines = np.concatenate([shortlist.cosines for shortlist in shortlists])
    order = np.lexsort((rows, -cosines))[:k]
    return Shortlist(rows[order], cosines[order])


def _near_best(scores: Tensor, k: int) -> NDArray[np.int64]:
    """Indices of the k best, and of all that may be among them but for rounding."""
    if len(scores) <= k:
        return np.arange(len(scores))
    threshold = scores.topk(k).values[-1] - ROUNDING
    indices = (scores >= threshold).nonzero()[:, 0]
    if len(indices) > k + MAX_TIES:
        best = scores[indices].sort(descending=True, stable=True).indices[: k + MAX_TIES]
        indices = indices[best]
    return indices.numpy()


def _cosines(
    vectors: Tensor, query: Tensor, offsets: NDArray[np.float64] | None = None
) -> NDArray[np.float32]:
    """Dot products minus offsets; unlike a matrix product's, independent of the batch size."""
    exact = query.double().numpy()
    chunks = [(chunk.double().numpy() * exact).sum(axis=1) for chunk in vectors.split(CHUNK)]
    cosines = np.concatenate(chunks)
    return (cosines if offsets is None else cosines - offsets).astype(np.float32)


def num_candidates(snapshot: Snapshot, k: int) -> int:
    """Number of nearest codes whose vectors are compared to find the k best clips."""
    num_codes = CANDIDATES + snapshot.num_slots // CLIPS_PER_CANDIDATE
    return max(num_codes, CANDIDATES_PER_RESULT * k)


@torch.no_grad()
def approximate_shortlists(
    snapshot: Snapshot,
    queries: Float[Tensor, "queries dim"],
    k: int,
    allowed: NDArray[np.bool_] | None = None,
    hubness_weights: Sequence[float] | None = None,
) -> list[Shortlist]:
    """Find the k best allowed clips per query among those with the nearest codes.

    Cosines equal those of :func:`exact_shortlists`, bit by bit. Clips whose codes are far although
    their vectors are near may be missing.
    """
    slots = _allowed_slots(snapshot, (0, snapshot.num_slots), allowed)
    count = num_candidates(snapshot, k)
    results = []
    for number, query in enumerate(queries.to("cpu", torch.float32)):
        rows = snapshot.rows_at(snapshot.codes.nearest(query.numpy(), count, slots))
        weight = hubness_weights[number] if hubness_weights else 0.0
        results.append(rank_candidates(snapshot, rows, query, k, weight))
    return results


def rank_candidates(
    snapshot: Snapshot,
    rows: NDArray[np.int64],
    query: Float[Tensor, "dim"],
    k: int,
    hubness_weight: float = 0.0,
) -> Shortlist:
    """Rank the rows with the nearest codes. Distances of codes are not corrected for hubness."""
    offsets = hubness_offsets(snapshot, rows, hubness_weight)
    return rank_rows(snapshot.vectors_of(rows), rows, query, k, offsets)


def nearest_in_shard(
    snapshot: Snapshot,
    codes: NDArray[np.uint8],
    count: int,
    shard: tuple[int, int],
    allowed: NDArray[np.bool_] | None = None,
) -> list[Near]:
    """Find the allowed rows of a shard that may be among the ``count`` nearest of the store.

    ``shard`` as in :func:`exact_shortlists`. ``nearest_of`` all shards gives exactly the candidates
    of the whole store.
    """
    first, end = snapshot.part(*shard)
    shard_codes = snapshot.codes_between(first, end)
    slots = _allowed_slots(snapshot, (first, end), allowed)
    nearest = [shard_codes.near(code, count, slots).thinned(count) for code in codes]
    return [replace(near, slots=snapshot.rows_at(near.slots)) for near in nearest]


def _allowed_slots(
    snapshot: Snapshot, span: tuple[int, int], allowed: NDArray[np.bool_] | None
) -> NDArray[np.bool_] | None:
    """Mask of the slots in a span that hold an allowed clip; None: all do."""
    if allowed is None and snapshot.is_dense:
        return None
    first, end = span
    slots = snapshot.columns["slot"]
    low, high = np.searchsorted(slots, [first, end])
    mask = np.zeros(end - first, bool)
    mask[slots[low:high] - first] = True if allowed is None else allowed[low:high]
    return mask


@dataclass(frozen=True)
class Recall:
    """Fraction of the exact shortlist that the codes find, and times per query."""

    index: str
    k: int
    queries: int
    recall: float
    milliseconds: float
    exact_milliseconds: float


def measure_recall(store: Store, *, k: int = 100, num_queries: int = 100, seed: int = 0) -> Recall:
    """Compare the codes with an exact scan; queries are vectors of clips with added noise."""
    snapshot = store.snapshot()
    generator = torch.Generator().manual_seed(seed)
    num_queries = min(num_queries, len(snapshot))
    rows = torch.randperm(len(snapshot), generator=generator)[:num_queries]
    queries = snapshot.vectors_of(rows.numpy())
    noise = torch.randn(queries.shape, generator=generator) / queries.shape[1] ** 0.5
    queries = torch.nn.functional.normalize(queries + 0.5 * noise, dim=-1)
    num_exact, num_common = 0, 0
    seconds = exact_seconds = 0.0
    for query in queries:
        started = time.perf_counter()
        exact = exact_shortlists(snapshot, query[None], k)[0]
        exact_seconds += time.perf_counter() - started
        started = time.perf_counter()
        by_codes = exact
        if snapshot.has_codes:
            by_codes = approximate_shortlists(snapshot, query[None], k)[0]
        seconds += time.perf_counter() - started
        num_exact += len(exact.rows)
        num_common += len(np.intersect1d(exact.rows, by_codes.rows))
    count = max(1, num_queries)
    exact_ms = 1000 * exact_seconds / count
    return Recall(
        index="codes" if snapshot.has_codes else "exact scan",
        k=k,
        queries=num_queries,
        recall=num_common / num_exact if num_exact else 1.0,
        milliseconds=1000 * seconds / count if snapshot.has_codes else exact_ms,
        exact_milliseconds=exact_ms,
    )
