"""Codes of coarse vectors, scanned where the vectors themselves are too many.

A code has one bit for each coordinate of the turned vector: whether it is positive. Of two unit
vectors, the share of bits that differ estimates their angle / pi (Charikar 2002, eq. 3), so the
nearest codes hold the nearest vectors but for some noise; the exact cosines of a few thousand of
them decide. Codes need no training and depend on nothing but their vector: they are appended as
clips come, and 64 bytes stand for a vector of 512 numbers (2048 bytes).
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from eaglenet.search.store.near_codes import Near, is_halved, nearest_of, width

WORD = 64
BLOCK = 32_768
"""Codes that are scanned at a time: their words fit the second cache of a core."""
SAMPLE = 64
"""One in so many distances is looked at to guess how far the nearest reach."""
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
    """The codes of a stretch of the slots of a file of vectors.

    ``blocks``: those in which the stretch lies. ``num_slots``: of the whole file, which decides how
    codes are compared, so that the parts of a store are compared as the whole is.
    """

    blocks: Sequence[Block]
    dim: int
    num_slots: int
    stretch: tuple[int, int]
    """The first slot, and the one after the last."""

    def nearest(
        self, query: NDArray[np.float32], count: int, wanted: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Slots (ascending) of the ``count`` nearest codes; of equal ones the first slots.

        Of many codes, those whose first half is among the nearest are compared whole: half the
        work, and what it loses is far down the list (recall in ``benchmarks/scale.py query``).
        """
        code = codes_of(query[None])[0]
        return nearest_of([self.near(code, count, wanted)], count, self.num_slots)

    def near(
        self, code: NDArray[np.uint8], count: int, wanted: NDArray[np.bool_] | None = None
    ) -> Near:
        """What of this stretch may be among the ``count`` nearest of the whole file to a code.

        ``wanted``: which slots of the stretch may be found.
        """
        words = code.view(np.uint64)
        first = len(words) // 2 if is_halved(self.num_slots, len(words)) else len(words)
        distances = self._scan(words[:first])
        if wanted is not None:
            distances[~wanted] = FAR
        if first == len(words):
            places = _reached(distances, count)
            found = distances[places]
            kept = np.sort(np.argsort(found, kind="stable")[:count])
            return Near(places[kept] + self.stretch[0], found[kept])
        places = _reached(distances, width(count, self.num_slots))
        halves, slots = distances[places], places + self.stretch[0]
        return Near(slots, halves + self._rest(words, first, slots), halves)

    def distances(self, query: NDArray[np.float32]) -> NDArray[np.uint16]:
        """``[slots]``: bits in which each code differs from that of a vector."""
        return self._scan(codes_of(query[None]).view(np.uint64)[0])

    def _scan(self, words: NDArray[np.uint64]) -> NDArray[np.uint16]:
        """``[slots]``: bits in which the first words of each code differ from these."""
        found = np.empty(sum(block.shape[1] for block in self.blocks), np.uint16)

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
        first, end = self.stretch
        return found[first - self._begin : end - self._begin]

    @property
    def _begin(self) -> int:
        """The first slot of the first block."""
        return self.stretch[0] // BLOCK * BLOCK

    def _rest(
        self, words: NDArray[np.uint64], first: int, slots: NDArray[np.int64]
    ) -> NDArray[np.uint16]:
        """Bits in which the words from ``first`` on differ, of some slots (ascending)."""
        found = np.empty(len(slots), np.uint16)
        places = slots - self._begin
        edges = np.searchsorted(places, np.arange(len(self.blocks) + 1) * BLOCK)

        def compare(numbers: Iterable[int]) -> None:
            for number in numbers:
                low, high = edges[number], edges[number + 1]
                if low < high:
                    theirs = self.blocks[number][first:, places[low:high] - number * BLOCK]
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
    """Positions (ascending) of the ``count`` smallest, with all that are equal to the last.

    Those that are ``FAR`` are none of them.
    """
    limit = FAR - 1
    if count < len(distances):
        sample = np.sort(distances[::SAMPLE])
        limit = min(limit, int(sample[min(len(sample) - 1, 2 * count // SAMPLE)]))
    near = np.flatnonzero(distances <= limit)
    while len(near) < count and limit < FAR - 1:  # The guess was too low.
        limit = min(limit + 1 + limit // 4, FAR - 1)
        near = np.flatnonzero(distances <= limit)
    if len(near) > count:
        found = distances[near]
        near = near[found <= np.partition(found, count - 1)[count - 1]]
    return near


@dataclass(frozen=True)
class _Read:
    """What was read of a file that only grows: whole blocks, and checksums up to their ends."""

    blocks: Mapping[int, Block]
    checks: Sequence[int]


_READ: dict[tuple[int, int], _Read] = {}
"""By device and inode: a newer version of a store reads what was added alone."""
_KEPT_FILES = 4


def load_codes(
    path: Path, dim: int, num_slots: int, check: int, stretch: tuple[int, int] | None = None
) -> Codes:
    """The codes of a file, compared with their checksum; a ``ValueError`` where they differ.

    ``stretch`` (the first slot, the one after the last) keeps these alone in memory; the checksum
    is that of all, so that the others are read too, once.
    """
    first, end = stretch or (0, num_slots)
    kept, size = range(first // BLOCK, -(-end // BLOCK)), code_bytes(dim)
    blocks: dict[int, Block] = {}
    with path.open("rb") as stream:
        status = os.fstat(stream.fileno())
        key = status.st_dev, status.st_ino
        known = _READ.get(key, _Read({}, ()))
        checks, running, is_sound = list(known.checks), 0, True
        for number in range(-(-num_slots // BLOCK)):
            count = min(BLOCK, num_slots - number * BLOCK)
            is_known = count == BLOCK and number < len(checks)
            if is_known and (number not in kept or number in known.blocks):
                running = checks[number]
                if number in kept:
                    blocks[number] = known.blocks[number]
                continue
            stream.seek(number * BLOCK * size)
            content = stream.read(count * size)
            running = zlib.crc32(content, running)
            is_sound &= len(content) == count * size and (not is_known or running == checks[number])
            if not is_sound:
                break
            if count == BLOCK and not is_known:
                checks.append(running)
            if number in kept:
                rows = np.frombuffer(content, np.uint64).reshape(-1, size // 8)
                blocks[number] = np.ascontiguousarray(rows.T)
    if not is_sound or running != check:
        if known.checks:
            # What was read may be another file's, whose inode this one has now.
            del _READ[key]
            return load_codes(path, dim, num_slots, check, stretch)
        raise ValueError(f"{path.name} is not as it was written")
    whole = {number: block for number, block in blocks.items() if block.shape[1] == BLOCK}
    _READ[key] = _Read(whole, tuple(checks))
    while len(_READ) > _KEPT_FILES:
        _READ.pop(next(iter(_READ)))
    return Codes(tuple(blocks.values()), dim, num_slots, (first, end))
