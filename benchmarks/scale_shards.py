"""The parts of a store, asked one after the other as shards are; used by ``scale.py query``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from eaglenet.search.approximate import (
    best_candidates,
    coded_shortlists,
    is_scanned,
    near_in_part,
    num_candidates,
)
from eaglenet.search.shortlist import Shortlist, exact_shortlists, merged
from eaglenet.search.store.codes import codes_of
from eaglenet.search.store.near_codes import Near, nearest_of
from eaglenet.search.store.snapshot import Snapshot

Part = Shortlist | Near
Result = TypeVar("Result")


def timed_shards(
    snapshot: Snapshot, queries: torch.Tensor, parts: int, k: int
) -> tuple[list[float], list[float], bool]:
    """Seconds of the whole, of the slowest part and what the front does, and if hits are equal."""
    is_exact = is_scanned(snapshot)
    count = num_candidates(snapshot, k)

    def whole(query: torch.Tensor) -> Shortlist:
        shortlists = exact_shortlists if is_exact else coded_shortlists
        return shortlists(snapshot, query[None], k)[0]

    def part(query: torch.Tensor, number: int) -> Part:
        if is_exact:
            return exact_shortlists(snapshot, query[None], k, None, (number, parts))[0]
        codes = codes_of(query[None].numpy())
        return near_in_part(snapshot, codes, count, (number, parts))[0]

    def front(query: torch.Tensor, found: Sequence[Part]) -> Shortlist:
        if is_exact:
            return merged([each for each in found if isinstance(each, Shortlist)], k)
        near = [each for each in found if isinstance(each, Near)]
        rows = nearest_of(near, count, snapshot.num_slots)
        return best_candidates(snapshot, rows, query, k)

    one, several, is_same = [], [], True
    for query in queries:
        seconds, expected = timed(lambda query=query: whole(query))
        one.append(seconds)
        asked = [timed(lambda q=query, n=number: part(q, n)) for number in range(1, parts + 1)]
        pieces = [piece for _, piece in asked]
        seconds, together = timed(lambda q=query, found=pieces: front(q, found))
        several.append(max(taken for taken, _ in asked) + seconds)
        is_same &= together.cosines.tobytes() == expected.cosines.tobytes()
        is_same &= together.rows.tolist() == expected.rows.tolist()
    return one, several, is_same


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """What a function takes and gives."""
    begun = time.perf_counter()
    result = function()
    return time.perf_counter() - begun, result
