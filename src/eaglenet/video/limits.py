"""Limits on what an untrusted file may cost: memory, time, packets and pixels.

The kernel limits memory in the worker process; the process that hands out work limits its time.
Ordinary videos stay far below all limits.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from eaglenet.core.settings import option

MAX_PIXELS = 2**27
"""Pixels per frame: 16384 x 8192. A header may claim any size, and decoders believe it."""
MAX_PACKETS = 10_000_000
"""Packets per file: more than a day at 100 frames per second."""
SECONDS_PER_MIB = 60.0
"""Extra time per MiB of file. Decoding a slideshow of 100 kbit/s takes less than 20 s per MiB."""
MAX_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Limits:
    """Budget of one file.

    memory: bytes per worker, in addition to what it uses when idle.
    seconds: time for any file.
    seconds_per_second: extra time per second of video. The length that a file claims counts
        only up to ``SECONDS_PER_MIB`` of its size, and in total up to ``MAX_SECONDS``.
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
        """Return the seconds for a file that claims to be ``duration`` seconds long."""
        extra = self.seconds_per_second * max(duration, 0.0)
        with contextlib.suppress(OSError):  # Remote files have no size here.
            extra = min(extra, SECONDS_PER_MIB * os.path.getsize(path) / 2**20)
        return min(self.seconds + extra, max(self.seconds, MAX_SECONDS))
