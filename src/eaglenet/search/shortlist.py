"""Shortlists: the clips whose vectors are nearest to a query.

All vectors are compared while that is fast. Larger stores compare binary codes first; see
:func:`approximate_shortlists`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.options import Filters
from eaglenet.search.reranking import unit_vectors
from eaglenet.store.base import Store
from eaglenet.store.codes import NearestRows
from eaglenet.store.records import FileTable
from eaglenet.store.snapshot import Snapshot

Vectors = NDArray[np.float32]

EXACT_BYTES = 1 << 30
"""Size of the vectors up to which all are compared: half a million vectors of 512 dimensions, which
take about 50 ms on two cores."""
QUERY_BATCH = 32
"""Queries per batch: 32 queries x 1 million clips need a score matrix of 128 MB."""
NARROW_BATCH = 4
"""Number of queries below which matrix-vector products are faster than one matrix product."""
ROUNDING = 3e-5
"""Largest error of a cosine in single precision with 512 dimensions."""
MAX_TIES = 10_000
"""Maximum clips within rounding of the last clip of a shortlist to compare exactly."""
CHUNK = 4096
SPARSE_FRACTION = 0.25
"""Fraction of allowed clips up to which copying their vectors beats comparing all vectors."""
CANDIDATES = 1024
"""Nearest codes whose vectors are compared exactly; one more per ``CLIPS_PER_CANDIDATE`` clips."""
CLIPS_PER_CANDIDATE = 16_384
CANDIDATES_PER_RESULT = 8
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

    def where(self, mask: NDArray[np.bool_]) -> Shortlist:
        return Shortlist(self.rows[mask], self.cosines[mask])

    def with_rows(
        self, snapshot: Snapshot, query: Vectors, rows: Sequence[int], hubness_weight: float = 0.0
    ) -> Shortlist:
        """Return a shortlist with additional rows, sorted by cosine."""
        present = set(self.rows.tolist())
        more = np.array([row for row in rows if row not in present], np.int64)
        if not len(more):
            return self
        cosines = snapshot.vectors_at(more) @ query
        offsets = hubness_offsets(snapshot, more, hubness_weight)
        if offsets is not None:
            cosines = (cosines - offsets).astype(np.float32)
        all_cosines = np.concatenate([self.cosines, cosines])
        order = np.argsort(-all_cosines, kind="stable")
        return Shortlist(np.concatenate([self.rows, more])[order], all_cosines[order])


EMPTY = Shortlist(np.zeros(0, np.int64), np.zeros(0, np.float32))


class Scan(Protocol):
    """Source of shortlists from other machines."""

    @property
    def missing_shards(self) -> tuple[str, ...]:
        """Names of the shards of the store that cannot be reached now."""
        ...

    def missing_shards_since(self, start: float) -> tuple[str, ...]:
        """Return the names of the shards that a search after ``start`` may have left out.

        ``start``: a value of ``time.perf_counter``.
        """
        ...

    def shortlists(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        k: int,
        filters: Filters | None,
        hubness_weights: Sequence[float] | None = None,
    ) -> list[Shortlist]:
        """Make the shortlists of :func:`make_shortlists` from the shards that can be reached."""
        ...


def make_shortlists(
    snapshot: Snapshot,
    queries: Vectors,
    k: int,
    filters: Filters | None,
    scan: Scan | None = None,
    hubness_weights: Sequence[float] | None = None,
    files: FileTable | None = None,
) -> list[Shortlist]:
    """Find the k nearest clips per query ``[queries, dim]`` that pass the filters.

    ``scan``: makes the shortlists on other machines. ``hubness_weights``: weight per query of the
    hubness offsets to subtract. ``files``: all files of the snapshot, if they have been read.
    """
    if snapshot.hubness_offsets is None or not any(hubness_weights or ()):
        hubness_weights = None
    if scan is not None:
        return scan.shortlists(snapshot, queries, k, filters, hubness_weights)
    row_mask = allowed_rows(snapshot, filters, files)
    if uses_exact_scan(snapshot):
        return exact_shortlists(snapshot, queries, k, row_mask, hubness_weights=hubness_weights)
    return approximate_shortlists(snapshot, queries, k, row_mask, hubness_weights)


def allowed_rows(
    snapshot: Snapshot, filters: Filters | None, files: FileTable | None = None
) -> NDArray[np.bool_] | None:
    """Return the mask of the rows that pass the filters; None: all."""
    if not filters:
        return None
    table = snapshot.files() if files is None else files
    is_allowed = filters.matches(table)
    return None if is_allowed.all() else snapshot.rows_of_contents(table.ids[is_allowed])


def uses_exact_scan(snapshot: Snapshot) -> bool:
    """Return whether all vectors of a snapshot are compared."""
    return len(snapshot) * snapshot.manifest.dim * 4 <= EXACT_BYTES


def scan_name(snapshot: Snapshot) -> str:
    """Return ``exact scan`` or ``codes``, for display."""
    return "exact scan" if uses_exact_scan(snapshot) else "codes"


def exact_shortlists(
    snapshot: Snapshot,
    queries: Vectors,
    k: int,
    row_mask: NDArray[np.bool_] | None = None,
    shard: tuple[int, int] = (1, 1),
    hubness_weights: Sequence[float] | None = None,
) -> list[Shortlist]:
    """Find the k best allowed clips per query by comparing all vectors.

    ``row_mask`` covers the rows of the snapshot; deleted clips are never returned. ``shard``
    (number, count) compares one shard of the store only. Cosines, and the order of equal cosines,
    do not depend on the shards: the best of all shards are bit-identical to the best of the store.
    """
    first, end = rows_of_shard(snapshot, shard)
    mask = _searched_rows(snapshot, first, end, row_mask)
    rows = np.arange(first, end) if mask is None else first + np.flatnonzero(mask)
    if not len(rows) or k < 1:
        return [EMPTY] * len(queries)
    blocks = [vectors for _, vectors in snapshot.vector_parts(first, end)]
    if mask is not None and len(rows) <= SPARSE_FRACTION * (end - first):
        blocks, mask = [_take(blocks, rows - first)], None
        positions = np.arange(len(rows))
    else:
        positions = rows - first

    def vectors_at(indices: NDArray[np.int64]) -> Vectors:
        return _take(blocks, positions[indices])

    results = []
    for start in range(0, len(queries), QUERY_BATCH):
        batch = queries[start : start + QUERY_BATCH]
        scores = _products(blocks, batch)
        if mask is not None:
            scores = scores[:, mask]
        for number, (query, row_scores) in enumerate(zip(batch, scores, strict=True), start):
            weight = hubness_weights[number] if hubness_weights else 0.0
            offsets = hubness_offsets(snapshot, rows, weight)
            results.append(_rank(row_scores, rows, vectors_at, query, k, offsets))
    return results


def rows_of_shard(snapshot: Snapshot, shard: tuple[int, int]) -> tuple[int, int]:
    """Return the first row of shard (number from 1, count), and the row after its last."""
    number, count = shard
    return (number - 1) * snapshot.num_rows // count, number * snapshot.num_rows // count


def _searched_rows(
    snapshot: Snapshot, first: int, end: int, row_mask: NDArray[np.bool_] | None
) -> NDArray[np.bool_] | None:
    """Return the mask of the visible and allowed rows in a range; None: all."""
    masks = [mask[first:end] for mask in (snapshot.visible, row_mask) if mask is not None]
    mask = masks[0] & masks[-1] if masks else None
    return None if mask is None or mask.all() else mask


def _products(blocks: Sequence[Vectors], queries: Vectors) -> Vectors:
    """Return the dot products ``[queries, rows]`` with all rows of several arrays."""
    scores = np.empty((len(queries), sum(map(len, blocks))), np.float32)
    start = 0
    for vectors in blocks:
        block_scores = scores[:, start : start + len(vectors)]
        if len(queries) < NARROW_BATCH:
            # Matrix-vector products read at full memory speed, narrow matrix products do not.
            for number, query in enumerate(queries):
                np.matmul(vectors, query, out=block_scores[number])
        else:
            block_scores[:] = (vectors @ queries.T).T
        start += len(vectors)
    return scores


def _take(blocks: Sequence[Vectors], indices: NDArray[np.int64]) -> Vectors:
    """Return rows of several arrays, indexed as if they were concatenated."""
    if len(blocks) == 1:
        return blocks[0][indices]
    edges = np.concatenate([[0], np.cumsum([len(block) for block in blocks])])
    numbers = np.searchsorted(edges, indices, side="right") - 1
    rows = np.empty((len(indices), blocks[0].shape[1]), np.float32)
    for number in sorted(set(numbers.tolist())):  # np.unique would import numpy.ma.
        is_here = numbers == number
        rows[is_here] = blocks[number][indices[is_here] - edges[number]]
    return rows


def hubness_offsets(
    snapshot: Snapshot, rows: NDArray[np.int64], weight: float
) -> NDArray[np.float64] | None:
    """Return weighted hubness offsets to subtract from the scores of rows; None if none apply."""
    if not weight or snapshot.hubness_offsets is None:
        return None
    offsets: NDArray[np.float64] = weight * snapshot.hubness_offsets[rows].astype(np.float64)
    return offsets


def merge_shortlists(shortlists: Sequence[Shortlist], k: int) -> Shortlist:
    """Return the k best of several shortlists of one snapshot; equal cosines rank by row."""
    rows = np.concatenate([shortlist.rows for shortlist in shortlists])
    cosines = np.concatenate([shortlist.cosines for shortlist in shortlists])
    order = np.lexsort((rows, -cosines))[:k]
    return Shortlist(rows[order], cosines[order])


def _near_best(scores: Vectors, k: int) -> NDArray[np.int64]:
    """Return the indices of the k best, and of those within rounding of them."""
    if len(scores) <= k:
        return np.arange(len(scores))
    threshold = np.partition(scores, -k)[-k] - np.float32(ROUNDING)
    indices = np.flatnonzero(scores >= threshold)
    if len(indices) > k + MAX_TIES:
        indices = indices[np.argsort(-scores[indices], kind="stable")[: k + MAX_TIES]]
    return indices


def _cosines(
    vectors: Vectors, query: Vectors, offsets: NDArray[np.float64] | None = None
) -> NDArray[np.float32]:
    """Return dot products minus offsets; unlike matrix products, independent of the batch."""
    exact = query.astype(np.float64)
    starts = range(0, len(vectors), CHUNK)
    chunks = [(vectors[start : start + CHUNK] * exact).sum(axis=1) for start in starts]
    cosines = np.concatenate([np.zeros(0), *chunks])
    return (cosines if offsets is None else cosines - offsets).astype(np.float32)


def num_candidates(snapshot: Snapshot, k: int) -> int:
    """Return the number of nearest codes whose vectors are compared for the k best clips."""
    num_codes = CANDIDATES + snapshot.num_rows // CLIPS_PER_CANDIDATE
    return max(num_codes, CANDIDATES_PER_RESULT * k)


def approximate_shortlists(
    snapshot: Snapshot,
    queries: Vectors,
    k: int,
    row_mask: NDArray[np.bool_] | None = None,
    hubness_weights: Sequence[float] | None = None,
) -> list[Shortlist]:
    """Find the k best allowed clips per query among those with the nearest codes.

    Cosines are bit-identical to those of :func:`exact_shortlists`. Clips with near vectors but
    distant codes may be missing.
    """
    mask = _searched_rows(snapshot, 0, snapshot.num_rows, row_mask)
    count = num_candidates(snapshot, k)
    codes = snapshot.codes()
    results = []
    for number, query in enumerate(queries):
        rows = codes.nearest(query, count, mask)
        weight = hubness_weights[number] if hubness_weights else 0.0
        results.append(rank_candidates(snapshot, rows, query, k, weight))
    return results


def rank_candidates(
    snapshot: Snapshot, rows: NDArray[np.int64], query: Vectors, k: int, hubness_weight: float = 0.0
) -> Shortlist:
    """Rank the rows with the nearest codes by cosines equal to those of an exact scan."""
    if not len(rows) or k < 1:
        return EMPTY
    vectors = snapshot.vectors_at(rows)
    return _rank(
        # One thread: those of a matrix product spin for a while, and slow the next scan down.
        np.vecdot(vectors, query),
        rows,
        vectors.__getitem__,
        query,
        k,
        hubness_offsets(snapshot, rows, hubness_weight),
    )


def _rank(
    scores: Vectors,
    rows: NDArray[np.int64],
    vectors_at: Callable[[NDArray[np.int64]], Vectors],
    query: Vectors,
    k: int,
    offsets: NDArray[np.float64] | None,
) -> Shortlist:
    """Choose the k best rows by score, and compute their cosines exactly.

    ``vectors_at`` returns the vectors at some indices into ``rows``.
    """
    if offsets is not None:
        scores = scores - offsets.astype(np.float32)
    best = _near_best(scores, k)
    cosines = _cosines(vectors_at(best), query, None if offsets is None else offsets[best])
    return merge_shortlists([Shortlist(rows[best], cosines)], k)


def nearest_in_shard(
    snapshot: Snapshot,
    weights: NDArray[np.int16],
    count: int,
    shard: tuple[int, int],
    row_mask: NDArray[np.bool_] | None = None,
) -> list[NearestRows]:
    """Find the allowed rows of a shard that may be among the ``count`` best codes of the store.

    ``weights``: query weights ``[queries, bits]``. ``shard``: as in :func:`exact_shortlists`.
    ``merge_best`` over all shards returns exactly the candidates of the whole store.
    """
    first, end = rows_of_shard(snapshot, shard)
    shard_codes = snapshot.codes(first, end)
    mask = _searched_rows(snapshot, first, end, row_mask)
    return [shard_codes.best_in_part(each, count, mask) for each in weights]


@dataclass(frozen=True)
class Recall:
    """Fraction of the exact shortlist that the codes find, and times per query."""

    index: str
    k: int
    queries: int
    recall: float
    milliseconds: float
    exact_milliseconds: float


def measure_recall(store: Store, *, k: int = 100, num_queries: int = 100) -> Recall:
    """Compare the codes with an exact scan; queries are vectors of clips with added noise."""
    snapshot = store.snapshot()
    generator = np.random.default_rng(0)
    rows = generator.permutation(snapshot.visible_rows())[:num_queries]
    noise = generator.standard_normal((len(rows), snapshot.manifest.dim), np.float32)
    scale = np.float32(0.5 / snapshot.manifest.dim**0.5)
    queries = unit_vectors(snapshot.vectors_at(rows) + scale * noise)
    num_exact, num_common = 0, 0
    seconds = exact_seconds = 0.0
    for query in queries:
        start = time.perf_counter()
        exact = exact_shortlists(snapshot, query[None], k)[0]
        exact_seconds += time.perf_counter() - start
        start = time.perf_counter()
        by_codes = approximate_shortlists(snapshot, query[None], k)[0]
        seconds += time.perf_counter() - start
        num_exact += len(exact.rows)
        num_common += len(np.intersect1d(exact.rows, by_codes.rows))
    count = max(1, len(rows))
    return Recall(
        index="codes",
        k=k,
        queries=len(rows),
        recall=num_common / num_exact if num_exact else 1.0,
        milliseconds=1000 * seconds / count,
        exact_milliseconds=1000 * exact_seconds / count,
    )
