"""The shortlist: cosine of the coarse vectors, exact while that is fast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.search.store.snapshot import Snapshot

EXACT_BYTES = 1 << 30
"""Coarse vectors up to this size are scanned whole: half a million of 512 numbers, about 50 ms on
two cores. Beyond it the store's approximate index is asked."""
QUERIES_AT_ONCE = 32
"""Bounds the score matrix: 32 queries x 1 million clips take 128 MB."""
NARROW = 4
"""Queries up to which one product after the other is faster than one of all."""
FEW = 0.25
"""Share of allowed clips up to which picking their vectors out beats scanning all of them."""


@dataclass(frozen=True)
class Shortlist:
    """Rows of a snapshot and their cosines, best first."""

    rows: NDArray[np.int64]
    cosines: NDArray[np.float32]

    def first(self, k: int) -> Shortlist:
        return Shortlist(self.rows[:k], self.cosines[:k])

    def without(self, row: int) -> Shortlist:
        kept = self.rows != row
        return Shortlist(self.rows[kept], self.cosines[kept])


def is_exact(num_clips: int, dim: int) -> bool:
    """Whether a store of this size is scanned whole."""
    return num_clips * dim * 4 <= EXACT_BYTES


@torch.no_grad()
def exact_shortlists(
    snapshot: Snapshot,
    queries: Float[Tensor, "queries dim"],
    k: int,
    allowed: NDArray[np.bool_] | None = None,
) -> list[Shortlist]:
    """The k best allowed clips of each query, by scanning all of them."""
    slots = snapshot.columns["slot"]
    rows = np.arange(len(slots)) if allowed is None else np.flatnonzero(allowed)
    if not len(rows) or k < 1:
        empty = Shortlist(np.zeros(0, np.int64), np.zeros(0, np.float32))
        return [empty] * len(queries)
    vectors = snapshot.vectors
    picked: Tensor | None = None
    if allowed is not None and len(rows) <= FEW * snapshot.num_slots:
        vectors = vectors[torch.from_numpy(slots[rows])]
    elif allowed is not None or not snapshot.is_dense:
        picked = torch.from_numpy(slots[rows])
    results = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = queries[start : start + QUERIES_AT_ONCE].to("cpu", torch.float32)
        # A matrix-vector product reads the vectors at full memory speed, a narrow matrix does not.
        is_narrow = len(part) < NARROW
        scores = torch.stack([vectors @ one for one in part]) if is_narrow else (vectors @ part.T).T
        if picked is not None:
            scores = scores[:, picked]
        best = scores.topk(min(k, scores.shape[1]), dim=1)
        results += [
            Shortlist(rows[indices.numpy()], values.numpy())
            for values, indices in zip(best.values, best.indices, strict=True)
        ]
    return results
