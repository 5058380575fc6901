"""Which codes are the nearest, of a whole store or of parts that were looked at apart.

The nearest codes of a store are the same whoever looks at them: every part tells of those that may
be among them, and :func:`nearest_of` decides among all. One machine does it with one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

MANY = 2**20
"""Codes from which on the second half of the words is looked at where the first half is near."""
ONE_IN = 64
"""The share of many codes whose second half is looked at; at least ``WIDER`` for one wanted."""
WIDER = 16


def is_halved(num_slots: int, num_words: int) -> bool:
    """Whether codes are so many that the first half decides which are compared whole."""
    return num_slots >= MANY and num_words > 1


def width(count: int, num_slots: int) -> int:
    """How many of many codes are compared whole, for ``count`` that are wanted."""
    return max(WIDER * count, num_slots // ONE_IN)


@dataclass(frozen=True)
class Near:
    """Slots (or rows, whose order is the same), ascending, and the distances of their codes.

    ``halves``: distances of the first halves, where codes are many; then all slots of the part up
    to some distance of the first half are here, ``width`` of them or all that there are.
    """

    slots: NDArray[np.int64]
    distances: NDArray[np.uint16]
    halves: NDArray[np.uint16] | None = None
    counted: NDArray[np.int64] | None = None
    """As :attr:`counts`, where slots were left out since."""

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many first halves have distance 0, 1, and so on."""
        if self.counted is not None:
            return self.counted
        assert self.halves is not None
        return np.bincount(self.halves).astype(np.int64)

    def thinned(self, count: int) -> Near:
        """Without slots that cannot be among the ``count`` nearest, whatever other parts hold.

        How far the first halves reach is known when all parts are: but a slot that others with no
        greater first half keep out is kept out wherever that is.
        """
        if self.halves is None:
            return self
        keys = _keys(self.slots, self.distances)
        best, kept = keys[:0], np.zeros(len(keys), bool)
        order = np.argsort(self.halves, kind="stable")
        edges = np.cumsum(self.counts)
        for places in np.split(order, edges[:-1]):
            if not len(places):
                continue
            best = np.concatenate([best, keys[places]])
            if len(best) > count:
                best = np.partition(best, count - 1)[:count]
            kept[places] = keys[places] <= best.max()
        return Near(self.slots[kept], self.distances[kept], self.halves[kept], self.counts)


def nearest_of(parts: Sequence[Near], count: int, num_slots: int) -> NDArray[np.int64]:
    """Slots (ascending) of the ``count`` nearest of all parts; of equal ones the first slots.

    ``num_slots``: of the whole store.
    """
    slots = np.concatenate([part.slots for part in parts])
    distances = np.concatenate([part.distances for part in parts])
    if any(part.halves is not None for part in parts):
        within = _halves(parts) <= _reach(parts, width(count, num_slots))
        slots, distances = slots[within], distances[within]
    if len(slots) > count:
        keys = _keys(slots, distances)
        slots = slots[keys <= np.partition(keys, count - 1)[count - 1]]
    return np.sort(slots)


def _halves(parts: Sequence[Near]) -> NDArray[np.uint16]:
    return np.concatenate([part.halves for part in parts if part.halves is not None])


def _reach(parts: Sequence[Near], wanted: int) -> int:
    """The smallest distance of first halves within which so many are; that of all if fewer are.

    A part that holds so many alone tells nothing of what is beyond, and need not.
    """
    total = np.zeros(max(len(part.counts) for part in parts), np.int64)
    for part in parts:
        total[: len(part.counts)] += part.counts
    return int(np.searchsorted(np.cumsum(total), wanted))


def _keys(slots: NDArray[np.int64], distances: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Numbers in the order of nearness, no two of which are equal."""
    return (distances.astype(np.int64) << 44) + slots
