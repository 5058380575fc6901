"""How many processors there are for this process, which may be fewer than the machine has."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Processors that this process may run on.

    A container or `taskset` gives a process some of a machine's; as many workers and threads as
    the machine has would only wait for each other there.
    """
    if hasattr(os, "sched_getaffinity"):  # Linux has it.
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
