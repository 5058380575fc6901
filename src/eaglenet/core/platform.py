"""How many processors there are for this process, which may be fewer than the machine has."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
THREADS = "OMP_NUM_THREADS"


def num_cores() -> int:
    """Processors that this process may keep busy.

    A container or `taskset` gives a process some of a machine's, or a share of its time
    (`docker run --cpus 2`, a limit of Kubernetes); as many workers and threads as the machine has
    would only wait for each other there. A part of a processor counts as one.
    """
    if hasattr(os, "sched_getaffinity"):  # Linux has it.
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, time_limit())))


def time_limit() -> float:
    """Processors' worth of time that the control groups of this process grant it."""
    try:
        own = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf  # No Linux.
    return min(
        (_granted(*line.split(":", 2)) for line in own if line.count(":") > 1), default=math.inf
    )


def limit_threads() -> None:
    """Have torch take as many threads as there is time for, unless it was told a number.

    It finds out by itself which processors it may run on, but not how much of their time.
    To be called before torch is imported.
    """
    if time_limit() < math.inf:
        os.environ.setdefault(THREADS, str(num_cores()))


def _granted(_: str, controllers: str, group: str) -> float:
    """The smallest limit of a group and of those around it."""
    if not controllers:
        root, read = CONTROL_GROUPS, _second_version
    elif "cpu" in controllers.split(","):
        root, read = CONTROL_GROUPS / controllers, _first_version
        if not root.is_dir():
            root = CONTROL_GROUPS / "cpu"
    else:
        return math.inf
    # In a container the name may be that of the machine's tree, of which the container sees its
    # own part as the root: what is not there has no limit.
    inner = root / group.strip("/")
    folders = [inner, *inner.parents][: len(inner.parts) - len(root.parts) + 1]
    return min(read(folder) for folder in folders)


def _second_version(folder: Path) -> float:
    return _share(_words(folder / "cpu.max"))


def _first_version(folder: Path) -> float:
    return _share(_words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us"))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def _share(words: list[str]) -> float:
    """Microseconds of processors' time in a period of so many; "max" and -1 are no limit."""
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return math.inf
    granted, period = (int(word) for word in words)
    return granted / period if granted and period else math.inf


# What becomes of memory that a computation has freed, to be said before torch is imported.

KEPT_MILLISECONDS = 1000


def keep_freed_memory() -> None:
    """Have torch use freed memory again for a second before the system gets it back.

    Its allocator (mimalloc, on ARM at least) gives memory back after 10 ms. A tower frees and asks
    for the same megabytes at every step, and each time the system clears them page by page: a
    tenth of what encoding `small` in int8 takes (``benchmarks/film.py``). Processes that are
    started from here have it too; what the user has set stays.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(KEPT_MILLISECONDS))


# Where things of a user are kept unless they say where: the store, the history of questions.

STORE_VARIABLE = "EAGLENET_STORE"
"""Names the store of every command that is not given one."""
CACHE_VARIABLE = "EAGLENET_CACHE"


def data_folder() -> Path:
    """The user's folder for data of this program, as each system has it; not made here."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        # The XDG rules: a path that is not absolute is to be ignored.
        given = Path(os.environ.get("XDG_DATA_HOME", ""))
        base = given if given.is_absolute() else Path.home() / ".local" / "share"
    return base / "eaglenet"


def cache_folder() -> Path:
    """Copies of what lies elsewhere; all of it may be removed at any time."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser() if given else data_folder() / "cache"


def default_store() -> str:
    """The store where none is named: that of ``EAGLENET_STORE``, or one in the data folder."""
    return os.environ.get(STORE_VARIABLE) or str(data_folder() / "store")
