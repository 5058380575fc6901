"""Shards of a store, scanned one after the other: ``scale.py shards``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common import percentiles
from eaglenet.search.shortlist import (
    Shortlist,
    approximate_shortlists,
    exact_shortlists,
    merge_shortlists,
    nearest_in_shard,
    num_candidates,
    rank_candidates,
    scan_name,
    uses_exact_scan,
)
from eaglenet.store.codes import NearestRows, merge_best, weights_of
from eaglenet.store.snapshot import Snapshot

Part = Shortlist | NearestRows
Taken = tuple[float, float]
Result = TypeVar("Result")


def measure_shards(
    snapshot: Snapshot, queries: NDArray[np.float32], parts: int, k: int, warm: int
) -> dict[str, Any]:
    """One machine, and the slowest of several parts with what the front does after it.

    Processor times are those of a single part and of the front. ``warm``: first queries that are
    not counted.
    """
    is_exact = uses_exact_scan(snapshot)
    count = num_candidates(snapshot, k)

    def whole(query: NDArray[np.float32]) -> Shortlist:
        shortlists = exact_shortlists if is_exact else approximate_shortlists
        return shortlists(snapshot, query[None], k)[0]

    def part(query: NDArray[np.float32], number: int) -> Part:
        if is_exact:
            return exact_shortlists(snapshot, query[None], k, None, (number, parts))[0]
        codes = weights_of(query)[None]
        return nearest_in_shard(snapshot, codes, count, (number, parts))[0]

    def front(query: NDArray[np.float32], found: Sequence[Part]) -> Shortlist:
        if is_exact:
            return merge_shortlists([each for each in found if isinstance(each, Shortlist)], k)
        near = [each for each in found if isinstance(each, NearestRows)]
        rows = merge_best(near, count, snapshot.num_rows)
        return rank_candidates(snapshot, rows, query, k)

    one, asked, merging, is_same = [], [], [], True
    for query in queries:
        expected = timed(lambda query=query: whole(query), one)
        taken: list[Taken] = []
        numbers = range(1, parts + 1)
        pieces = [timed(lambda q=query, n=number: part(q, n), taken) for number in numbers]
        asked.append(max(taken))
        together = timed(lambda q=query, found=pieces: front(q, found), merging)
        is_same &= together.cosines.tobytes() == expected.cosines.tobytes()
        is_same &= together.rows.tolist() == expected.rows.tolist()
    several = [slowest[0] + after[0] for slowest, after in zip(asked, merging, strict=True)]
    processor = {"one": one, "part": asked, "front": merging}
    return {
        "clips": len(snapshot),
        "searched_by": scan_name(snapshot),
        "parts": parts,
        "one": percentiles([wall for wall, _ in one[warm:]]),
        "parts_and_front": percentiles(several[warm:]),
        "processor_p50_ms": {
            name: percentiles([used for _, used in times[warm:]])["p50_ms"]
            for name, times in processor.items()
        },
        "are_bit_identical": is_same,
    }


def timed(function: Callable[[], Result], times: list[Taken]) -> Result:
    """What a function gives; notes the seconds it took, and those of all processors."""
    begun, used = time.perf_counter(), time.process_time()
    result = function()
    times.append((time.perf_counter() - begun, time.process_time() - used))
    return result
