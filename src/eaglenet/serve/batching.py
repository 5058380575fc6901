"""Batching of queries that arrive at the same time.

Queries wait in a queue while the worker threads are busy; a free worker answers several of them in
one call of the engine. A single query uses all cores. Several workers use separate cores, because
matrix products that share cores wait for each other. An idle engine waits a few milliseconds for
more queries, which saves more under load than it costs. If the queue grows long, shortlists are
shortened: fewer clips are ranked exactly, and the response says how many. No request is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from eaglenet.core.platform import num_cores
from eaglenet.search.grammar import AnyQuery
from eaglenet.search.hit import Hit
from eaglenet.search.options import SearchOptions

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

SHORTLIST_DIVISORS = ((1, 0.1), (2, 2.0), (4, 4.0), (8, float("inf")))
"""Divisor of the shortlist, and the seconds of queued work up to which it applies."""
SMOOTHING = 0.2
"""Weight of the newest batch in the moving average of the time per query."""


class Searcher(Protocol):
    """Methods of an engine that a batcher calls."""

    def search_many(
        self, queries: Sequence[AnyQuery], k: int = 10, *, options: SearchOptions | None = None
    ) -> Sequence[list[Hit]]: ...


@dataclass(frozen=True)
class BatchResult:
    """Hits of each query, and the number of clips ranked exactly per query."""

    hits: Sequence[list[Hit]]
    shortlist: int


@dataclass(frozen=True, eq=False)
class _Request:
    queries: tuple[AnyQuery, ...]
    k: int
    options: SearchOptions
    answer: asyncio.Future[BatchResult]


class Batcher:
    """Queue of the queries for one engine. Create, use and close it in one event loop."""

    def __init__(
        self,
        engine: Searcher,
        *,
        window: float = 0.003,
        max_batch: int = 32,
        workers: int = 1,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self.engine = engine
        self.window = window
        self.max_batch = max_batch
        self.workers = workers
        self.on_batch = on_batch
        self.queue: list[_Request] = []
        self.seconds_per_query: dict[int, float] = {}
        """Moving average per divisor of the shortlist."""
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="engine")
        self._cores = num_cores()
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls = 0
        self._has_work = asyncio.Event()
        self._is_closed = False
        self._loop = asyncio.create_task(self._work(), name="batcher")

    async def search(
        self, queries: Sequence[AnyQuery], k: int, options: SearchOptions
    ) -> BatchResult:
        """Search in one batch with other requests that have the same options."""
        if self._is_closed:
            raise RuntimeError("the service is shutting down")
        # Requests in a batch have equal shortlists, so that hits do not depend on the batch.
        options = replace(options, shortlist=options.shortlist_size(k))
        answer: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        self.queue.append(_Request(tuple(queries), k, options, answer))
        self._has_work.set()
        return await answer

    async def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in a worker thread of the engine."""
        self._calls += 1
        is_alone = max(self._calls, len(self._tasks)) <= 1 and not self.queue
        cores = self._cores if is_alone else max(1, self._cores // self.workers)

        def run() -> Result:
            # Applies to this thread only; new threads inherit the last value.
            set_threads(cores)
            return function()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, run)
        finally:
            self._calls -= 1

    async def close(self) -> None:
        """Answer the queued requests, then stop."""
        self._is_closed = True
        self._has_work.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._loop
        self._executor.shutdown(wait=True)

    async def _work(self) -> None:
        while True:
            await self._has_work.wait()
            if not self._is_closed:
                await asyncio.sleep(self.window)
            while batch := self._take():
                task = asyncio.create_task(self._answer(batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                if len(self._tasks) >= self.workers:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._is_closed:
                if self._tasks:
                    await asyncio.wait(self._tasks)
                return
            self._has_work.clear()

    def _take(self) -> list[_Request]:
        """Remove the oldest request, and later ones with the same options, from the queue."""
        # Drop requests that were cancelled (timeout, closed connection).
        self.queue = [request for request in self.queue if not request.answer.done()]
        batch: list[_Request] = []
        size = 0
        queries = sum(len(request.queries) for request in self.queue)
        fair_size = math.ceil(queries / max(1, self.workers - len(self._tasks)))
        limit = min(self.max_batch, fair_size)
        for request in self.queue:
            fits = size + len(request.queries) <= limit
            if not batch or (fits and request.options == batch[0].options):
                batch.append(request)
                size += len(request.queries)
        self.queue = [request for request in self.queue if request not in batch]
        return batch

    async def _answer(self, batch: list[_Request]) -> None:
        size = sum(len(request.queries) for request in batch)
        if self.on_batch is not None:
            self.on_batch(size)
        k = max(request.k for request in batch)
        divisor = self._divisor(size)
        shortlist = max(k, batch[0].options.shortlist // divisor)
        start = time.perf_counter()
        try:
            hits_per_query = await self.call(lambda: self._search(batch, k, shortlist))
        except Exception as error:
            if len(batch) == 1:
                _settle(batch[0], error)
                return
            logger.warning(
                "a batch of %d failed (%s); retrying each query alone", len(batch), error
            )
            for request in batch:
                await self._answer([request])
            return
        seconds = (time.perf_counter() - start) / size
        mean = self.seconds_per_query.get(divisor, seconds)
        self.seconds_per_query[divisor] = mean + SMOOTHING * (seconds - mean)
        offset = 0
        for request in batch:
            hits = hits_per_query[offset : offset + len(request.queries)]
            offset += len(request.queries)
            _settle(request, BatchResult([each[: request.k] for each in hits], shortlist))

    def _divisor(self, size: int) -> int:
        queries = size + sum(len(request.queries) for request in self.queue)
        seconds = 0.0
        for divisor, limit in SHORTLIST_DIVISORS:
            seconds = self.seconds_per_query.get(divisor, seconds)
            if queries * seconds / self.workers <= limit:
                break
        return divisor

    def _search(self, batch: list[_Request], k: int, shortlist: int) -> Sequence[list[Hit]]:
        queries = [query for request in batch for query in request.queries]
        options = replace(batch[0].options, shortlist=shortlist)
        return self.engine.search_many(queries, k, options=options)


def set_threads(count: int) -> None:
    """Set the number of threads of torch, if it is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def _settle(request: _Request, result: BatchResult | Exception) -> None:
    if request.answer.done():
        return
    if isinstance(result, Exception):
        request.answer.set_exception(result)
    else:
        request.answer.set_result(result)
