"""Queries that come at the same time are answered together.

As many threads talk to the engine as there are workers. While they work, queries wait in line; one
that is free takes its share of them into one call. A query that is alone has all cores; where there
are several, each worker has its own, for products that share cores wait for each other. An idle
engine waits a few milliseconds for company, which costs less than it saves under load. Where the
line would still take long, shortlists are cut: fewer clips are ranked exactly, nobody is refused,
and the answer says how many it was.
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

from eaglenet.core.hits import Hit
from eaglenet.core.platform import num_cores
from eaglenet.search.grammar import AnyQuery
from eaglenet.search.options import SearchOptions

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

CUTS = ((1, 0.1), (2, 2.0), (4, 4.0), (8, float("inf")))
"""By what a shortlist is divided, and up to how many seconds of work in line."""
SMOOTHING = 0.2
"""Weight of the newest batch in the mean time of a query."""


class Searcher(Protocol):
    """What is asked of an engine."""

    def search_many(
        self, queries: Sequence[AnyQuery], k: int = 10, *, options: SearchOptions | None = None
    ) -> Sequence[list[Hit]]: ...


@dataclass(frozen=True)
class Found:
    """Hits of each query, and how many clips were ranked exactly for each."""

    hits: Sequence[list[Hit]]
    shortlist: int


@dataclass(frozen=True, eq=False)
class _Asked:
    queries: tuple[AnyQuery, ...]
    k: int
    options: SearchOptions
    answer: asyncio.Future[Found]


class Batcher:
    """The line in front of one engine. Make, use and close it in one event loop."""

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
        self.waiting: list[_Asked] = []
        self.seconds_a_query: dict[int, float] = {}
        """By what the shortlist was divided: a cut one says little of what a whole one takes."""
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="engine")
        self._cores = num_cores()
        self._working: set[asyncio.Task[None]] = set()
        self._calls = 0
        self._filled = asyncio.Event()
        self._closed = False
        self._loop = asyncio.create_task(self._work(), name="batcher")

    async def search(self, queries: Sequence[AnyQuery], k: int, options: SearchOptions) -> Found:
        """Search, together with other requests that have the same options."""
        if self._closed:
            raise RuntimeError("the service is shutting down")
        # The shortlist is as wide as k needs; queries of one width give what they would alone.
        options = replace(options, shortlist=options.shortlist_size(k))
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self.waiting.append(_Asked(tuple(queries), k, options, answer))
        self._filled.set()
        return await answer

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run anything that keeps the cores busy in a thread of the engine."""
        self._calls += 1
        is_alone = max(self._calls, len(self._working)) <= 1 and not self.waiting
        cores = self._cores if is_alone else max(1, self._cores // self.workers)

        def run() -> Result:
            # Of this thread alone; a thread that is new takes what was set last.
            set_threads(cores)
            return function()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, run)
        finally:
            self._calls -= 1

    async def close(self) -> None:
        """Answer what is waiting, then stop."""
        self._closed = True
        self._filled.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._loop
        self._executor.shutdown(wait=True)

    async def _work(self) -> None:
        while True:
            await self._filled.wait()
            if not self._closed:
                await asyncio.sleep(self.window)
            while batch := self._take():
                task = asyncio.create_task(self._answer(batch))
                self._working.add(task)
                task.add_done_callback(self._working.discard)
                if len(self._working) >= self.workers:
                    await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
            if self._closed:
                if self._working:
                    await asyncio.wait(self._working)
                return
            self._filled.clear()

    def _take(self) -> list[_Asked]:
        """The longest waiting request, and those after it that go with it."""
        # Whoever gave up waiting (timeout, closed connection) costs nothing.
        self.waiting = [asked for asked in self.waiting if not asked.answer.done()]
        batch: list[_Asked] = []
        size = 0
        queries = sum(len(asked.queries) for asked in self.waiting)
        share = math.ceil(queries / max(1, self.workers - len(self._working)))
        most = min(self.max_batch, share)
        for asked in self.waiting:
            fits = size + len(asked.queries) <= most
            if not batch or (fits and asked.options == batch[0].options):
                batch.append(asked)
                size += len(asked.queries)
        self.waiting = [asked for asked in self.waiting if asked not in batch]
        return batch

    async def _answer(self, batch: list[_Asked]) -> None:
        size = sum(len(asked.queries) for asked in batch)
        if self.on_batch is not None:
            self.on_batch(size)
        k = max(asked.k for asked in batch)
        divisor = self._divisor(size)
        shortlist = max(k, batch[0].options.shortlist // divisor)
        began = time.perf_counter()
        try:
            found = await self.call(lambda: self._search(batch, k, shortlist))
        except Exception as error:
            if len(batch) == 1:
                _settle(batch[0], error)
                return
            logger.warning("a batch of %d failed (%s); each is asked alone", len(batch), error)
            for asked in batch:
                await self._answer([asked])
            return
        taken = (time.perf_counter() - began) / size
        known = self.seconds_a_query.get(divisor, taken)
        self.seconds_a_query[divisor] = known + SMOOTHING * (taken - known)
        place = 0
        for asked in batch:
            hits = found[place : place + len(asked.queries)]
            place += len(asked.queries)
            _settle(asked, Found([each[: asked.k] for each in hits], shortlist))

    def _divisor(self, size: int) -> int:
        queries = size + sum(len(asked.queries) for asked in self.waiting)
        seconds = 0.0
        for divisor, most in CUTS:
            seconds = self.seconds_a_query.get(divisor, seconds)
            if queries * seconds / self.workers <= most:
                break
        return divisor

    def _search(self, batch: list[_Asked], k: int, shortlist: int) -> Sequence[list[Hit]]:
        queries = [query for asked in batch for query in asked.queries]
        options = replace(batch[0].options, shortlist=shortlist)
        return self.engine.search_many(queries, k, options=options)


def set_threads(count: int) -> None:
    """Set the number of threads that torch computes with, if the model has loaded it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def _settle(asked: _Asked, result: Found | Exception) -> None:
    if asked.answer.done():
        return
    if isinstance(result, Exception):
        asked.answer.set_exception(result)
    else:
        asked.answer.set_result(result)
