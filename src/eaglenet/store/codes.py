"""One-bit codes of coarse vectors, for scanning large stores.

A code has one bit per coordinate of the rotated vector, set if it is positive. The fraction of bits
in which the codes of two unit vectors differ estimates their angle / pi (Charikar 2002, eq. 3), so
vectors with the nearest codes are the nearest vectors, with some noise. These are ranked by the sum
of the coordinates q_i of the rotated query over the set bits i, and the best by their exact
similarity (by the caller). Codes need no training and depend only on their vector; a vector of 512
numbers (2,048 bytes) has a code of 64 bytes.

The parts of a store can be searched on several machines: each part returns the rows that may be
among the nearest (:meth:`Codes.best_in_part`), and :func:`merge_best` selects from all of them.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64
SCAN_BLOCK = 131_072
"""Codes scanned at a time: one word of each (1 MiB) fits into the cache of a core, and is large
compared with the cost of a NumPy call. With blocks of 32,768, ten million codes take 1.4 times as
long (``benchmarks/shortlists.py``)."""
SAMPLE_STEP = 64
"""Step of the sample of distances that estimates the distance of the nearest codes."""
RANKED_FACTOR = 4
"""Number of codes that are ranked by the coordinates of the query, per row of the result."""
MAX_SUM = 2**24
"""Maximum sum of weights."""
BYTE_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.int32)
"""``[256, 8]``: the bits of every value of a byte."""
PREFIX_ROWS = 2**20
"""Number of rows from which codes are compared in full only if their prefixes are near."""
PREFIX_FRACTION, PREFIX_FACTOR = 128, 8
"""Codes compared in full: one in 128 of all, at least 8 per code that is ranked."""

Block = NDArray[np.uint64]
"""``[words, codes]``: the first words of all codes, then the second words, and so on."""
Distances = NDArray[np.uint8] | NDArray[np.uint16]
"""Numbers of differing bits, in the narrower type if they fit."""


def num_bits(dim: int) -> int:
    """Return the number of bits of a code: the next power of two, at least 64.

    >>> num_bits(512), num_bits(768), num_bits(24)
    (512, 1024, 64)
    """
    return max(WORD_BITS, 1 << (dim - 1).bit_length())


def code_bytes(dim: int) -> int:
    return num_bits(dim) // 8


@cache
def rotation(dim: int) -> NDArray[np.float32]:
    """Return ``[bits, dim]`` with orthonormal columns: H D1 H D2, with signs D from SHA-256.

    It must never change: codes of different rotations cannot be compared.
    """
    bits = num_bits(dim)
    hadamard = np.ones((1, 1), np.float32)
    while len(hadamard) < bits:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    hadamard /= np.float32(bits**0.5)
    matrix: NDArray[np.float32] = (hadamard * _signs(bits, "first")) @ (
        hadamard * _signs(bits, "second")
    )
    return np.ascontiguousarray(matrix[:, :dim])


def _signs(count: int, name: str) -> NDArray[np.float32]:
    blocks = [hashlib.sha256(f"{name} {n}".encode()).digest() for n in range(-(-count // 256))]
    bits = np.unpackbits(np.frombuffer(b"".join(blocks), np.uint8))[:count]
    return 2 * bits.astype(np.float32) - 1


def codes_of(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the codes of vectors, ``[vectors, bytes]``."""
    return np.packbits(vectors @ rotation(vectors.shape[1]).T > 0, axis=1)


def weights_of(query: NDArray[np.float32]) -> NDArray[np.int16]:
    """Return the rotated query ``[bits]`` as integers, whose sums are equal on every machine."""
    coordinates = rotation(len(query)) @ query
    largest = max(float(np.abs(coordinates).max()), 1e-30)
    limit = min(MAX_SUM // len(coordinates) - 1, np.iinfo(np.int16).max)
    return np.round(coordinates * (limit / largest)).astype(np.int16)


def num_ranked(count: int) -> int:
    """Return the number of nearest codes to rank by weights to find ``count`` rows."""
    return RANKED_FACTOR * count


def scan_blocks(codes: NDArray[np.uint8]) -> list[Block]:
    """Copy codes ``[rows, bytes]`` into the order they are scanned in."""
    words = codes.view(np.uint64)
    starts = range(0, len(words), SCAN_BLOCK)
    return [np.ascontiguousarray(words[start : start + SCAN_BLOCK].T) for start in starts]


@dataclass(frozen=True)
class NearestRows:
    """Rows, ascending, and the distances of their codes from that of a query.

    ``prefix_distances``: distances of the prefixes, if codes are compared in two steps; the rows
    are then all rows of the part up to some distance of prefixes.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.uint16]
    prefix_distances: NDArray[np.uint16] | None = None
    prefix_counts: NDArray[np.int64] | None = None
    """Number of prefixes at distance 0, 1, ..., if rows were left out afterwards."""
    scores: NDArray[np.int32] | None = None
    """Sum of the query's weights over the set bits of the code; None until it is needed."""

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        if self.prefix_counts is not None:
            return self.prefix_counts
        assert self.prefix_distances is not None
        return np.bincount(self.prefix_distances).astype(np.int64)

    def prune(self, count: int) -> NearestRows:
        """Leave out rows that cannot be among the ``count`` nearest, whatever other parts have."""
        if self.prefix_distances is None:
            return self
        keys = _keys(self.rows, self.distances)
        best, is_candidate = keys[:0], np.zeros(len(keys), bool)
        order = np.argsort(self.prefix_distances, kind="stable")
        for indices in np.split(order, np.cumsum(self.counts)[:-1]):
            if not len(indices):
                continue
            best = np.concatenate([best, keys[indices]])
            if len(best) > count:
                best = np.partition(best, count - 1)[:count]
            is_candidate[indices] = keys[indices] <= best.max()
        return NearestRows(
            self.rows[is_candidate],
            self.distances[is_candidate],
            self.prefix_distances[is_candidate],
            self.counts,
        )


@dataclass(frozen=True)
class Codes:
    """Codes of the rows from ``first_row`` on.

    ``num_rows``: rows of the whole store, which determine how codes are compared, so that all parts
    are compared like the whole.
    """

    blocks: Sequence[Block]
    num_rows: int
    first_row: int = 0

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """First row of each block and the end of the last, counted from ``first_row``."""
        sizes = np.array([block.shape[1] for block in self.blocks], np.int64)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def nearest(
        self, query: NDArray[np.float32], count: int, row_mask: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Return the rows (ascending) of the ``count`` best codes; of equal ones the first."""
        weights = weights_of(query)
        part = self.nearest_in_part(weights, num_ranked(count), row_mask)
        rows = part.rows[_nearest([part], num_ranked(count), self.num_rows)]
        return _best(rows, self.scores(rows, weights), count)

    def best_in_part(
        self, weights: NDArray[np.int16], count: int, row_mask: NDArray[np.bool_] | None = None
    ) -> NearestRows:
        """Return rows of this part, with scores, that may be among the ``count`` best of all."""
        ranked_count = num_ranked(count)
        near = self.nearest_in_part(weights, ranked_count, row_mask).prune(ranked_count)
        return replace(near, scores=self.scores(near.rows, weights))

    def scores(self, rows: NDArray[np.int64], weights: NDArray[np.int16]) -> NDArray[np.int32]:
        """Return the sums of weights over the set bits of some rows (ascending)."""
        scores = np.zeros(len(rows), np.int32)
        if not len(rows):
            return scores
        indices = rows - self.first_row
        bounds = np.searchsorted(indices, self.edges)
        words = np.empty((len(self.blocks[0]), len(rows)), np.uint64)
        for number, (low, high) in enumerate(pairwise(bounds.tolist())):
            if low < high:
                words[:, low:high] = self.blocks[number][:, indices[low:high] - self.edges[number]]
        # For each byte of a code, the sum for each of its values.
        sums = weights.astype(np.int32).reshape(-1, 8) @ BYTE_BITS.T
        values = words.view(np.uint8).reshape(len(words), len(rows), -1).transpose(0, 2, 1)
        for table, column in zip(sums, values.reshape(len(sums), -1), strict=True):
            scores += table.take(column)
        return scores

    def nearest_in_part(
        self, weights: NDArray[np.int16], count: int, row_mask: NDArray[np.bool_] | None = None
    ) -> NearestRows:
        """Return the rows of this part that may be among the ``count`` nearest of the whole store.

        ``row_mask`` is a mask over the rows of this part.
        """
        words = np.packbits(weights > 0).view(np.uint64)
        prefix = prefix_words(self.num_rows, len(words))
        distances = self._scan(words[:prefix])
        if prefix == len(words):
            indices = self._smallest(distances, count, row_mask)
            values = distances[indices].astype(np.uint16)
            best = np.sort(np.argsort(values, kind="stable")[:count])
            return NearestRows(indices[best] + self.first_row, values[best])
        indices = self._smallest(distances, num_compared(count, self.num_rows), row_mask)
        first = distances[indices].astype(np.uint16)
        return NearestRows(
            indices + self.first_row, first + self._rest(words, prefix, indices), first
        )

    def _scan(self, words: NDArray[np.uint64]) -> Distances:
        """Return the number of differing bits in the first words of every code."""
        narrow = len(words) * WORD_BITS <= np.iinfo(np.uint8).max
        distances = np.empty(self.edges[-1], np.uint8 if narrow else np.uint16)

        def scan(numbers: Iterable[int]) -> None:
            differing, counts = np.empty(SCAN_BLOCK, np.uint64), np.empty(SCAN_BLOCK, np.uint8)
            for number in numbers:
                block, size = self.blocks[number], self.blocks[number].shape[1]
                total = distances[self.edges[number] : self.edges[number + 1]]
                np.bitwise_count(
                    np.bitwise_xor(block[0], words[0], out=differing[:size]), out=total
                )
                for mine, theirs in zip(words[1:], block[1:], strict=False):
                    np.bitwise_xor(theirs, mine, out=differing[:size])
                    np.bitwise_count(differing[:size], out=counts[:size])
                    np.add(total, counts[:size], out=total)

        self._in_threads(scan)
        return distances

    def _rest(
        self, words: NDArray[np.uint64], first: int, indices: NDArray[np.int64]
    ) -> NDArray[np.uint16]:
        """Return the number of differing bits from word ``first`` on, of some rows (ascending)."""
        distances = np.zeros(len(indices), np.uint16)
        bounds = np.searchsorted(indices, self.edges)

        def compare(numbers: Iterable[int]) -> None:
            for number in numbers:
                low, high = bounds[number], bounds[number + 1]
                if low < high:
                    columns = indices[low:high] - self.edges[number]
                    differing = self.blocks[number][first:].take(columns, axis=1)
                    differing ^= words[first:, None]
                    np.bitwise_count(differing).sum(axis=0, out=distances[low:high])

        self._in_threads(compare)
        return distances

    def _smallest(
        self, distances: Distances, count: int, row_mask: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Return the indices (ascending) of the ``count`` smallest under the mask, with ties."""
        largest = limit = int(np.iinfo(distances.dtype).max)
        if count < len(distances):
            every = slice(None, None, SAMPLE_STEP)
            sample = distances[every] if row_mask is None else distances[every][row_mask[every]]
            mean = count / SAMPLE_STEP
            # Three standard deviations more, so that a second pass is rare.
            limit = _reach(sample, math.ceil(mean + 3 * mean**0.5) + 1)
        near = self._at_most(distances, limit, row_mask)
        while len(near) < count and limit < largest:  # The estimate was too low.
            limit = min(limit + 1 + limit // 4, largest)
            near = self._at_most(distances, limit, row_mask)
        if len(near) > count:
            values = distances[near]
            near = near[values <= _reach(values, count)]
        return near

    def _at_most(
        self, distances: Distances, limit: int, row_mask: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Return the indices (ascending) under the mask of the distances up to ``limit``."""
        parts = [np.zeros(0, np.int64)] * (len(self.blocks) + 1)

        def select(numbers: Iterable[int]) -> None:
            for number in numbers:
                first, end = self.edges[number], self.edges[number + 1]
                is_near = distances[first:end] <= limit
                if row_mask is not None:
                    is_near &= row_mask[first:end]
                parts[number] = np.flatnonzero(is_near) + first

        self._in_threads(select)
        return np.concatenate(parts)

    def _in_threads(self, work: Callable[[Iterable[int]], None]) -> None:
        count = len(self.blocks)
        threads = max(1, min(os.cpu_count() or 1, count))
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, (range(first, count, threads) for first in range(threads))))


def prefix_words(num_rows: int, num_words: int) -> int:
    """Return the number of words that are compared first: three in eight, or all."""
    return -(-3 * num_words // 8) if num_rows >= PREFIX_ROWS else num_words


def has_prefixes(num_rows: int, num_words: int) -> bool:
    """Report whether codes are compared in two steps."""
    return prefix_words(num_rows, num_words) < num_words


def num_compared(count: int, num_rows: int) -> int:
    """Return the number of codes to compare in full after their prefixes, to find ``count``."""
    return max(PREFIX_FACTOR * count, num_rows // PREFIX_FRACTION)


def merge_best(parts: Sequence[NearestRows], count: int, num_rows: int) -> NDArray[np.int64]:
    """Return the rows (ascending) of the ``count`` best of all parts; of equal ones the first."""
    rows = np.concatenate([part.rows for part in parts])
    scores = np.concatenate([part.scores for part in parts if part.scores is not None])
    indices = _nearest(parts, num_ranked(count), num_rows)
    return _best(rows[indices], scores[indices], count)


def _nearest(parts: Sequence[NearestRows], count: int, num_rows: int) -> NDArray[np.int64]:
    """Return the indices (ascending) into all parts of the rows with the nearest codes."""
    rows = np.concatenate([part.rows for part in parts])
    distances = np.concatenate([part.distances for part in parts])
    indices = np.arange(len(rows))
    prefixes = [part.prefix_distances for part in parts if part.prefix_distances is not None]
    if prefixes:
        reach = _prefix_reach(parts, num_compared(count, num_rows))
        indices = np.flatnonzero(np.concatenate(prefixes) <= reach)
    if len(indices) > count:
        keys = _keys(rows[indices], distances[indices])
        indices = indices[keys <= np.partition(keys, count - 1)[count - 1]]
    return indices


def _reach(distances: Distances, count: int) -> int:
    """Return the smallest distance that ``count`` of these do not exceed, or the type's largest."""
    within = np.cumsum(np.bincount(distances, minlength=1))
    largest = int(np.iinfo(distances.dtype).max)
    return int(np.searchsorted(within, count)) if within[-1] >= count else largest


def _best(rows: NDArray[np.int64], scores: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Return the rows (ascending) of the ``count`` highest scores; of equal ones the first."""
    if len(rows) > count:
        keys = _keys(rows, np.int64(MAX_SUM) - scores)
        rows = rows[keys <= np.partition(keys, count - 1)[count - 1]]
    return np.sort(rows)


def _prefix_reach(parts: Sequence[NearestRows], count: int) -> int:
    """Return the smallest distance of prefixes that ``count`` rows, or all, do not exceed."""
    total = np.zeros(max(len(part.counts) for part in parts), np.int64)
    for part in parts:
        total[: len(part.counts)] += part.counts
    return int(np.searchsorted(np.cumsum(total), count))


def _keys(rows: NDArray[np.int64], distances: NDArray[Any]) -> NDArray[np.int64]:
    """Return sort keys: by distance (below 2**26), then by row."""
    return (distances.astype(np.int64) << 36) | rows
