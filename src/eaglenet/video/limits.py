"""What a file may cost a decoder: memory, time, packets and pixels.

Limits are kept from outside: by the kernel in the worker process, and by the clock of the process
that handed the work out. No honest film meets them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

MAX_PIXELS = 2**27
"""Of one frame: 16384 x 8192. A header may claim any size, and decoders believe it."""
MAX_PACKETS = 10_000_000
"""Of one file: more than a day of 100 frames a second."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Limits:
    """Budget of one file. ``memory`` in bytes for one worker, on top of what it has when idle.

    A file has ``seconds``, and ``seconds_a_second`` more for each second it shows.
    """

    memory: int = 4 * 2**30
    seconds: float = 600.0
    seconds_a_second: float = 2.0

    def time_for(self, duration: float) -> float:
        return self.seconds + self.seconds_a_second * max(duration, 0.0)


def bound_memory(most: int) -> None:
    """Let this process have ``most`` bytes of data more than now; then allocations fail."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + most
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before it could be watched.
        os._exit(1)
