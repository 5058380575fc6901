"""Which vectors of a file this process has compared with their checksums already.

A file of vectors only grows, and a publication adds a little to it: what was compared for the
version before need not be compared again, in whatever parts it is read. Known by device and inode
for as long as a snapshot has the file open, so that no later file can take its place.
"""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

FileKey = tuple[int, int]
"""Device and inode."""


class CheckedSlots:
    """Slots of one file that were compared; shared by all snapshots that read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def are_new(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of those that were not compared yet."""
        done = self._done
        is_new = np.ones(len(slots), np.bool_)
        known = slots < len(done)
        is_new[known] = ~done[slots[known]]
        return is_new

    def add(self, slots: NDArray[np.int64]) -> None:
        if not len(slots):
            return
        with self._lock:
            more = int(slots.max()) + 1 - len(self._done)
            if more > 0:
                self._done = np.concatenate([self._done, np.zeros(more, np.bool_)])
            self._done[slots] = True


_lock = threading.Lock()
_files: WeakValueDictionary[FileKey, CheckedSlots] = WeakValueDictionary()


def checked_slots(file: FileKey) -> CheckedSlots:
    """Those of a file that the caller has open, and keeps open for as long as it holds them."""
    with _lock:
        found = _files.get(file)
        if found is None:
            found = _files[file] = CheckedSlots()
        return found
