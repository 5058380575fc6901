"""Requests in pieces for workers of a cluster: large enough to be worth a call, soon done."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator

from eaglenet.search.indexing.decoding import ClipRequest

CALL_CLIPS = 32
"""Clips a call has at most."""
FIRST_CALL = 8
"""Clips a call has while nobody knows how fast the workers are."""
LEAST_CALL = 4
CALL_SECONDS = 15.0
"""What a call should take a worker: at the end of a run some wait so long for the others."""


class Pace:
    """How many clips the next call takes, by what the workers have done so far."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self._clock = clock
        self._since = 0.0
        self._clips = 0
        self._size = FIRST_CALL

    def done(self, clips: int) -> None:
        """So many clips came back now, of a call that is over."""
        now = self._clock()
        if not self._since:
            self._since = now  # What was done before is counted with the workers' start.
            return
        self._clips += clips
        seconds_a_clip = (now - self._since) * self.workers / self._clips if self._clips else 0.0
        wanted = round(CALL_SECONDS / seconds_a_clip) if seconds_a_clip else CALL_CLIPS
        self._size = min(max(wanted, LEAST_CALL), CALL_CLIPS)

    def size(self) -> int:
        return self._size


def calls_of(
    requests: Iterable[ClipRequest], size: Callable[[], int]
) -> Iterator[list[ClipRequest]]:
    """Every request in pieces of ``size()`` clips; short files share one."""
    call: list[ClipRequest] = []
    clips = 0
    for request in requests:
        start = 0
        while start < len(request.numbers):
            part = slice(start, start + max(size() - clips, 1))
            numbers, windows = request.numbers[part], request.windows[part]
            call.append(dataclasses.replace(request, numbers=numbers, windows=windows))
            clips += len(numbers)
            start += len(numbers)
            if clips >= size():
                yield call
                call, clips = [], 0
    if call:
        yield call
