"""Codes of coarse vectors, scanned where the vectors themselves are too many.

A code has one bit for each coordinate of the turned vector: whether it is positive. Of two unit
vectors, the share of bits that differ estimates their angle / pi (Charikar 2002, eq. 3), so the
nearest codes hold the nearest vectors but for some noise; the exact cosines of a few thousand of
them decide. Codes need no training and depend on nothing but their vector: they are appended as
clips come, and 64 bytes stand for a vector of 512 numbers (2048 bytes).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

WORD = 64
BLOCK = 32_768
"""Codes that are scanned at a time: their words fit the second cache of a core."""
SAMPLE = 64
"""One in so many distances is looked at to guess how far the nearest reach."""
MANY = 2**20
"""Codes from which on the second half of the words is looked at where the first half is near."""
ONE_IN = 128
"""The share of many codes whose second half is looked at; at least ``WIDER`` for one wanted."""
WIDER = 8
FAR = np.iinfo(np.uint16).max
"""A distance that no two codes have: of slots that are not wanted."""

Block = NDArray[np.uint64]
"""``[words, codes]``: the first words of all codes, then the second ones, and so on."""


def num_bits(dim: int) -> int:
    """Of a code: the next power of two, 64 at least.

    >>> num_bits(512), num_bits(768), num_bits(24)
    (512, 1024, 64)
    """
    return max(WORD, 1 << (dim - 1).bit_length())


def code_bytes(dim: int) -> int:
    return num_bits(dim) // 8


@cache
def turning(dim: int) -> NDArray[np.float32]:
    """``[bits, dim]`` with orthonormal columns: H D1 H D2, the signs D from SHA-256.

    The same for ever and on every machine, as codes that were turned in another way are noise.
    """
    bits = num_bits(dim)
    hadamard = np.ones((1, 1), np.float32)
    while len(hadamard) < bits:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    hadamard /= np.float32(bits**0.5)
    turned: NDArray[np.float32] = (hadamard * _signs(bits, "first")) @ (
        hadamard * _signs(bits, "second")
    )
    return np.ascontiguousarray(turned[:, :dim])


def _signs(count: int, name: str) -> NDArray[np.float32]:
    blocks = [hashlib.sha256(f"{name} {n}".encode()).digest() for n in range(-(-count // 256))]
    bits = np.unpackbits(np.frombuffer(b"".join(blocks), np.uint8))[:count]
    return 2 * bits.astype(np.float32) - 1


def codes_of(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """``[vectors, bytes]``."""
    return np.packbits(vectors @ turning(vectors.shape[1]).T > 0, axis=1)


@dataclass(frozen=True)
class Codes:
    """The codes of the first slots of a file of vectors."""

    blocks: Sequence[Block]
    dim: int
    num_slots: int

    def nearest(
        self, query: NDArray[np.float32], count: int, wanted: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Slots (ascending) of the ``count`` nearest codes; of equal ones the first slots.

        Of many codes, those whose first half is among the nearest are compared whole: half the
        work, and what it loses is far down the list (recall in ``benchmarks/scale.py query``).
        """
        words = codes_of(query[None]).view(np.uint64)[0]
        half = len(words) // 2
        is_halved = self.num_slots >= MANY and half > 0
        distances = self._scan(words[:half] if is_halved else words)
        if wanted is not None:
            distances[~wanted] = FAR
            count = min(count, int(wanted.sum()))
        count = min(count, self.num_slots)
        if count < 1:
            return np.zeros(0, np.int64)
        if not is_halved:
            near = _reached(distances, count)
            found = distances[near]
        else:
            near = _reached(distances, max(WIDER * count, self.num_slots // ONE_IN))
            near = near[distances[near] != FAR]
            found = distances[near] + self._rest(words, half, near)
            nearer = _reached(found, count)
            near, found = near[nearer], found[nearer]
        return np.sort(near[np.argsort(found, kind="stable")[:count]])

    def distances(self, query: NDArray[np.float32]) -> NDArray[np.uint16]:
        """``[slots]``: bits in which each code differs from that of a vector."""
        return self._scan(codes_of(query[None]).view(np.uint64)[0])

    def _scan(self, words: NDArray[np.uint64]) -> NDArray[np.uint16]:
        """``[slots]``: bits in which the first words of each code differ from these."""
        found = np.empty(self.num_slots, np.uint16)

        def scan(numbers: Iterable[int]) -> None:
            differing, counts = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint8)
            for number in numbers:
                block = self.blocks[number]
                size = block.shape[1]
                total = found[number * BLOCK : number * BLOCK + size]
                total[:] = 0
                for mine, theirs in zip(words, block, strict=False):
                    np.bitwise_xor(theirs, mine, out=differing[:size])
                    np.bitwise_count(differing[:size], out=counts[:size])
                    np.add(total, counts[:size], out=total)

        self._in_threads(scan)
        return found

    def _rest(
        self, words: NDArray[np.uint64], first: int, slots: NDArray[np.int64]
    ) -> NDArray[np.uint16]:
        """Bits in which the words from ``first`` on differ, of some slots (ascending)."""
        found = np.empty(len(slots), np.uint16)
        edges = np.searchsorted(slots, np.arange(len(self.blocks) + 1) * BLOCK)

        def compare(numbers: Iterable[int]) -> None:
            for number in numbers:
                low, high = edges[number], edges[number + 1]
                if low < high:
                    theirs = self.blocks[number][first:, slots[low:high] - number * BLOCK]
                    differing = np.bitwise_count(theirs ^ words[first:, None])
                    found[low:high] = differing.sum(axis=0, dtype=np.uint16)

        self._in_threads(compare)
        return found

    def _in_threads(self, work: Callable[[Iterable[int]], None]) -> None:
        """Do something with all blocks, a share of their numbers a thread."""
        count = len(self.blocks)
        threads = max(1, min(torch.get_num_threads(), count))
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, (range(first, count, threads) for first in range(threads))))


def _reached(distances: NDArray[np.uint16], count: int) -> NDArray[np.int64]:
    """Positions of at least the ``count`` smallest, with all that are equal to the last."""
    count = min(count, len(distances))
    sample = np.sort(distances[::SAMPLE])
    limit = int(sample[min(len(sample) - 1, 2 * count // SAMPLE)])
    while True:
        near = np.flatnonzero(distances <= limit)
        if len(near) >= count:
            return near
        limit += 1 + limit // 32  # The guess was too low.


@dataclass(frozen=True)
class _Read:
    """Whole blocks of a file that only grows, and the checksum up to there."""

    blocks: tuple[Block, ...]
    check: int


_READ: dict[tuple[int, int], _Read] = {}
"""By device and inode: a newer version of a store reads what was added alone."""
_KEPT_FILES = 4


def load_codes(path: Path, dim: int, num_slots: int, check: int) -> Codes:
    """The codes of a file, compared with their checksum; a ``ValueError`` where they differ."""
    with path.open("rb") as stream:
        status = path.stat()
        key, size = (status.st_dev, status.st_ino), code_bytes(dim)
        known = _READ.get(key, _Read((), 0))
        whole = min(len(known.blocks), num_slots // BLOCK)
        if whole < len(known.blocks):
            known, whole = _Read((), 0), 0  # An older version; its checksum is not kept.
        blocks, running = list(known.blocks), known.check
        kept = known
        stream.seek(whole * BLOCK * size)
        for first in range(whole * BLOCK, num_slots, BLOCK):
            content = stream.read(min(BLOCK, num_slots - first) * size)
            running = zlib.crc32(content, running)
            if len(content) % size:
                raise ValueError(f"{path.name} is shorter than it should be")
            rows = np.frombuffer(content, np.uint64).reshape(-1, size // 8)
            blocks.append(np.ascontiguousarray(rows.T))
            if len(rows) == BLOCK:
                kept = _Read(tuple(blocks), running)
    if running != check or sum(block.shape[1] for block in blocks) != num_slots:
        if known.blocks:
            # What was read may be another file's, whose inode this one has now.
            del _READ[key]
            return load_codes(path, dim, num_slots, check)
        raise ValueError(f"{path.name} is not as it was written")
    _READ[key] = kept
    while len(_READ) > _KEPT_FILES:
        _READ.pop(next(iter(_READ)))
    return Codes(tuple(blocks), dim, num_slots)
