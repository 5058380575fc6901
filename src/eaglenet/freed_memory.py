"""What becomes of memory that a computation has freed, to be said before torch is imported."""

from __future__ import annotations

import os

KEPT_MILLISECONDS = 1000


def keep_freed_memory() -> None:
    """Have torch use freed memory again for a second before the system gets it back.

    Its allocator (mimalloc, on ARM at least) gives memory back after 10 ms. A tower frees and asks
    for the same megabytes at every step, and each time the system clears them page by page: a
    tenth of what encoding `small` in int8 takes (``benchmarks/film.py``). Processes that are
    started from here have it too; what the user has set stays.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(KEPT_MILLISECONDS))
