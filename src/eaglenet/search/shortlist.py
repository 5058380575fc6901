"""The shortlist: cosine of the coarse vectors, exact while that is fast."""

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
from eaglenet.search.store.base import Store
from eaglenet.search.store.near_codes import Near
from eaglenet.search.store.snapshot import Snapshot

EXACT_BYTES = 1 << 30
"""Coarse vectors up to this size are scanned whole: half a million of 512 numbers, about 50 ms on
two cores. Beyond it the codes of the vectors are scanned (``approximate``)."""
QUERIES_AT_ONCE = 32
"""Bounds the score matrix: 32 queries x 1 million clips take 128 MB."""
NARROW = 4
"""Queries up to which one product after the other is faster than one of all."""
ROUNDING = 3e-5
"""By which the cosine of a single-precision product of 512 numbers may be wrong, at most."""
MANY_ALIKE = 10_000
"""Clips within rounding of the last of a shortlist that are looked at closely."""
CHUNK = 4096
FEW = 0.25
"""Share of allowed clips up to which picking their vectors out beats scanning all of them."""


@dataclass(frozen=True)
class Shortlist:
    """Rows of a snapshot and their cosines, best first.

    Where the store has a bank, a cosine is less its clip's level (``Snapshot.levels``), as far as
    the query takes it off.
    """

    rows: NDArray[np.int64]
    cosines: NDArray[np.float32]

    def first(self, k: int) -> Shortlist:
        return Shortlist(self.rows[:k], self.cosines[:k])

    def without(self, row: int) -> Shortlist:
        kept = self.rows != row
        return Shortlist(self.rows[kept], self.cosines[kept])

    def extended(
        self,
        snapshot: Snapshot,
        query: Float[Tensor, "dim"],
        rows: Sequence[int],
        share: float = 0.0,
    ) -> Shortlist:
        """With these rows too, wherever their cosines put them."""
        known = set(self.rows.tolist())
        more = np.array([row for row in rows if row not in known], np.int64)
        if not len(more):
            return self
        cosines = (snapshot.vectors_of(more) @ query.to("cpu", torch.float32)).numpy()
        taken = levels_taken(snapshot, more, share)
        if taken is not None:
            cosines = (cosines - taken).astype(np.float32)
        all_cosines = np.concatenate([self.cosines, cosines])
        order = np.argsort(-all_cosines, kind="stable")
        return Shortlist(np.concatenate([self.rows, more])[order], all_cosines[order])


EMPTY = Shortlist(np.zeros(0, np.int64), np.zeros(0, np.float32))


def is_exact(num_clips: int, dim: int) -> bool:
    """Whether a store of this size is scanned whole."""
    return num_clips * dim * 4 <= EXACT_BYTES


@torch.no_grad()
def exact_shortlists(
    snapshot: Snapshot,
    queries: Float[Tensor, "queries dim"],
    k: int,
    allowed: NDArray[np.bool_] | None = None,
    part: tuple[int, int] = (1, 1),
    shares: Sequence[float] | None = None,
) -> list[Shortlist]:
    """The k best allowed clips of each query, by scanning all of them.

    ``part`` (number, of how many) scans that part of the slots alone. The cosines and the order of
    equal ones are the same in whichever part a clip is, so that the best of all parts together are
    the best of the whole, to the bit. ``shares``: how much of the clips' levels each query takes
    off, where the store has any; None: nothing.
    """
    first, end = snapshot.part(*part)
    rows, places = _rows_between(snapshot, first, end, allowed)
    if not len(rows) or k < 1:
        return [EMPTY] * len(queries)
    vectors = snapshot.vectors_between(first, end)
    picked: Tensor | None = None
    if allowed is not None and len(rows) <= FEW * (end - first):
        vectors = vectors[torch.from_numpy(places)]
        places = np.arange(len(rows))
    elif allowed is not None or not snapshot.is_dense:
        picked = torch.from_numpy(places)
    results = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        batch = queries[start : start + QUERIES_AT_ONCE].to("cpu", torch.float32)
        # A matrix-vector product reads the vectors at full memory speed, a narrow matrix does not.
        is_narrow = len(batch) < NARROW
        products = [vectors @ one for one in batch] if is_narrow else []
        scores = torch.stack(products) if is_narrow else (vectors @ batch.T).T
        if picked is not None:
            scores = scores[:, picked]
        for number, (query, row_scores) in enumerate(zip(batch, scores, strict=True), start):
            taken = levels_taken(snapshot, rows, shares[number] if shares else 0.0)
            if taken is not None:
                row_scores = row_scores - torch.from_numpy(taken).float()
            chosen = _near_best(row_scores, k)
            cosines = _cosines(
                vectors[torch.from_numpy(places[chosen])],
                query,
                None if taken is None else taken[chosen],
            )
            results.append(merged([Shortlist(rows[chosen], cosines)], k))
    return results


def best_of(
    vectors: Float[Tensor, "rows dim"],
    rows: NDArray[np.int64],
    query: Float[Tensor, "dim"],
    k: int,
    taken: NDArray[np.float64] | None = None,
) -> Shortlist:
    """The k best of a few rows, whose vectors are given; cosines as in a scan of all.

    ``taken``: what is taken off each, see :func:`levels_taken`.
    """
    if not len(rows) or k < 1:
        return EMPTY
    scores = vectors @ query
    if taken is not None:
        scores = scores - torch.from_numpy(taken).float()
    chosen = _near_best(scores, k)
    less = None if taken is None else taken[chosen]
    cosines = _cosines(vectors[torch.from_numpy(chosen)], query, less)
    return merged([Shortlist(rows[chosen], cosines)], k)


def levels_taken(
    snapshot: Snapshot, rows: NDArray[np.int64], share: float
) -> NDArray[np.float64] | None:
    """What is taken off the scores of these rows; None: nothing."""
    if snapshot.levels is None or not share:
        return None
    taken: NDArray[np.float64] = share * snapshot.levels[rows].astype(np.float64)
    return taken


def _rows_between(
    snapshot: Snapshot, first: int, end: int, allowed: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Allowed rows whose slots are from ``first`` up to ``end``, and their places from there on."""
    if snapshot.is_dense:
        places = np.arange(end - first) if allowed is None else np.flatnonzero(allowed[first:end])
        return places + first, places
    slots = snapshot.columns["slot"]
    wanted = (slots >= first) & (slots < end)
    rows = np.flatnonzero(wanted if allowed is None else wanted & allowed)
    return rows, slots[rows] - first


def merged(parts: Sequence[Shortlist], k: int) -> Shortlist:
    """The k best of several shortlists of one snapshot; of equal ones the first row."""
    rows = np.concatenate([part.rows for part in parts])
    cosines = np.concatenate([part.cosines for part in parts])
    order = np.lexsort((rows, -cosines))[:k]
    return Shortlist(rows[order], cosines[order])


def _near_best(scores: Tensor, k: int) -> NDArray[np.int64]:
    """Places of the k best, and of all that rounding may have put behind them."""
    if len(scores) <= k:
        return np.arange(len(scores))
    threshold = scores.topk(k).values[-1] - ROUNDING
    places = (scores >= threshold).nonzero()[:, 0]
    if len(places) > k + MANY_ALIKE:
        best = scores[places].sort(descending=True, stable=True).indices[: k + MANY_ALIKE]
        places = places[best]
    return places.numpy()


def _cosines(
    vectors: Tensor, query: Tensor, taken: NDArray[np.float64] | None = None
) -> NDArray[np.float32]:
    """Dot products that do not depend on how many there are, as those of a matrix product do.

    Less what is ``taken`` off each.
    """
    exact = query.double().numpy()
    found = [(chunk.double().numpy() * exact).sum(axis=1) for chunk in vectors.split(CHUNK)]
    exact_cosines = np.concatenate(found)
    return (exact_cosines if taken is None else exact_cosines - taken).astype(np.float32)


# Shortlists of very large stores by the codes of their vectors, and how much these find.

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
