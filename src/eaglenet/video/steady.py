"""One process with limits that serves many calls, each of some requests: it starts only once."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from eaglenet.video.pool import Budget, Done, Failed, map_ahead

Request = TypeVar("Request")
Result = TypeVar("Result")


class SteadyProcess(Generic[Request, Result]):
    """Does ``work`` in a process of its own, which is replaced when it dies; see ``map_ahead``."""

    def __init__(
        self, work: Callable[[Request], Result], budget: Budget[Request], *, prefetch: int = 4
    ) -> None:
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        taken: Iterator[Request] = iter(self._requests.get, None)
        # One: a second would wait for answers while the first waits for requests.
        self._outcomes = map_ahead(work, taken, workers=1, prefetch=prefetch, budget=budget)

    def __call__(
        self, requests: Sequence[Request]
    ) -> Iterator[Done[Request, Result] | Failed[Request]]:
        """An outcome for each request, in order. All have to be taken before the next call."""
        for request in requests:
            self._requests.put(request)
        for _ in requests:
            yield next(self._outcomes)
