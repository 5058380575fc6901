"""Limits on the cost of an untrusted file: memory, time, packets and pixels.

The kernel limits the memory of the worker process, and its parent the time. Ordinary videos stay
far below all limits.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from eaglenet.core.settings import option

MAX_PIXELS = 2**27
"""Pixels per frame, for example 16384 x 8192. Decoders believe any size that a header claims."""
MAX_PACKETS = 10_000_000
"""Packets per file: more than a day at 100 frames per second."""
SECONDS_PER_MIB = 60.0
"""Maximum extra time per MiB of a file; a slideshow of 100 kbit/s takes less than 20 s per MiB."""
MAX_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Limits:
    """Budget of one file.

    memory: bytes per worker, in addition to its use when idle.
    seconds: time for any file.
    seconds_per_second: extra time per second of video that the file claims to have; limited by
        ``SECONDS_PER_MIB`` and ``MAX_SECONDS``.
    """

    memory: int = option(
        4 * 2**30,
        "Limit the memory for decoding one file; default 4 GiB.",
        name="--file-memory",
        group="Resources",
        metavar="GIB",
        type=float,
        parse=lambda gib: round(gib * 2**30),
        min=0.1,
    )
    seconds: float = option(
        600.0,
        "Limit the time for one file, plus 2 s per second of video.",
        name="--file-seconds",
        group="Resources",
        metavar="SECONDS",
        min=1,
    )
    seconds_per_second: float = 2.0

    def time_for(self, duration: float, path: str) -> float:
        """Return the time limit in seconds for a file that claims to last ``duration`` seconds."""
        extra = self.seconds_per_second * max(duration, 0.0)
        with contextlib.suppress(OSError):  # Remote files have no local size.
            extra = min(extra, SECONDS_PER_MIB * os.path.getsize(path) / 2**20)
        return min(self.seconds + extra, max(self.seconds, MAX_SECONDS))
