"""Shortlists of very large stores from the store's approximate index, and its recall."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from eaglenet.search.filters import Filters
from eaglenet.search.shortlist import Shortlist, exact_shortlists, is_exact
from eaglenet.search.store.base import Store
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.tables import ClipStore

EFFORT = 256
"""Partitions looked into, of about 1000 in a store of a million clips.

Of 100,000 clips, 64 found 0.73 of the exact shortlist of 100 and 256 found 0.98, in little more
time (``benchmarks/search.py``).
"""


class Scan(Protocol):
    """Who makes the shortlists in the place of this machine."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts of the store that cannot be reached now, in words."""
        ...

    def shortlists(
        self, snapshot: Snapshot, queries: Tensor, k: int, filters: Filters | None
    ) -> list[Shortlist]:
        """As :func:`exact_shortlists`, of the parts of the store that can be reached."""
        ...


class Approximate:
    """Asks the durable store, which is imported and opened only when a search needs it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._tables: ClipStore | None = None

    def kind(self, snapshot: Snapshot) -> str | None:
        """Name of the index that answers; None where all clips are scanned."""
        if is_exact(len(snapshot), snapshot.dim):
            return None
        return snapshot.index

    @property
    def tables(self) -> ClipStore:
        with self._lock:
            if self._tables is None:
                self._tables = self.store.tables()
            return self._tables

    def shortlists(
        self, snapshot: Snapshot, queries: Tensor, k: int, effort: int = EFFORT
    ) -> list[Shortlist] | None:
        """None where the store has no index (yet): the caller scans."""
        if snapshot.index is None:
            return None
        results = []
        for keys, cosines in self.tables.nearest(queries.float().cpu().numpy(), k, effort=effort):
            # The table may be ahead of the snapshot, and hold clips of unfinished files.
            rows = np.array(
                [-1 if (row := snapshot.row_of_key(key)) is None else row for key in keys]
            )
            known = rows >= 0
            results.append(Shortlist(rows[known].astype(np.int64), cosines[known]))
        return results


@dataclass(frozen=True)
class Recall:
    """How much of the exact shortlist an index finds."""

    index: str
    k: int
    queries: int
    recall: float
    milliseconds: float
    exact_milliseconds: float


def measure_recall(
    store: Store,
    *,
    k: int = 100,
    num_queries: int = 100,
    effort: int = EFFORT,
    seed: int = 0,
) -> Recall:
    """Compare with the exact scan, with clips of the store, slightly moved, as queries."""
    import time

    snapshot = store.snapshot()
    generator = torch.Generator().manual_seed(seed)
    num_queries = min(num_queries, len(snapshot))
    rows = torch.randperm(len(snapshot), generator=generator)[:num_queries]
    slots = torch.from_numpy(snapshot.columns["slot"])[rows]
    queries = snapshot.vectors[slots]
    noise = torch.randn(queries.shape, generator=generator) / queries.shape[1] ** 0.5
    queries = torch.nn.functional.normalize(queries + 0.5 * noise, dim=-1)
    approximate = Approximate(store)
    found, hits = 0, 0
    spent = exact_spent = 0.0
    for query in queries:
        started = time.perf_counter()
        truth = exact_shortlists(snapshot, query[None], k)[0]
        exact_spent += time.perf_counter() - started
        started = time.perf_counter()
        answer = approximate.shortlists(snapshot, query[None], k, effort)
        spent += time.perf_counter() - started
        rows_found = truth.rows if answer is None else answer[0].rows
        found += len(truth.rows)
        hits += len(np.intersect1d(truth.rows, rows_found))
    count = max(1, num_queries)
    exact_ms = 1000 * exact_spent / count
    return Recall(
        index=snapshot.index or "exact scan",
        k=k,
        queries=num_queries,
        recall=hits / found if found else 1.0,
        milliseconds=exact_ms if snapshot.index is None else 1000 * spent / count,
        exact_milliseconds=exact_ms,
    )
