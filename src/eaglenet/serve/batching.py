"""Queries that come at the same time are answered together.

One thread talks to the engine, so the matrix products have the cores to themselves. While it
works, queries wait in line; when it is free it takes all that fit into one call. An idle engine
waits a few milliseconds for company, which costs less than it saves under load.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from eaglenet.search.filters import Filters
from eaglenet.serve.settings import SHORTLIST
from eaglenet.types import Hit

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class Searcher(Protocol):
    """What is asked of an engine."""

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        shortlist: int = 100,
        filters: Filters | None = None,
        negatives: Sequence[str] = (),
        group_files: bool = False,
    ) -> list[list[Hit]]: ...


@dataclass(frozen=True)
class SearchOptions:
    """What queries must have in common to be answered together."""

    filters: Filters = field(default_factory=Filters)
    negatives: tuple[str, ...] = ()
    group_files: bool = False
    shortlist: int = SHORTLIST


@dataclass(frozen=True, eq=False)
class _Asked:
    queries: tuple[str, ...]
    k: int
    options: SearchOptions
    answer: asyncio.Future[list[list[Hit]]]


class Batcher:
    """The line in front of one engine. Make, use and close it in one event loop."""

    def __init__(
        self,
        engine: Searcher,
        *,
        window: float = 0.003,
        max_batch: int = 32,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self.engine = engine
        self.window = window
        self.max_batch = max_batch
        self.on_batch = on_batch
        self.waiting: list[_Asked] = []
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._filled = asyncio.Event()
        self._closed = False
        self._loop = asyncio.create_task(self._work(), name="batcher")

    async def search(
        self, queries: Sequence[str], k: int, options: SearchOptions
    ) -> list[list[Hit]]:
        """Hits of each query; the queries must have been cleaned."""
        if self._closed:
            raise RuntimeError("the service is shutting down")
        # The shortlist is at least k wide; queries of one width give what they would alone.
        width = max(k, options.shortlist)
        options = SearchOptions(options.filters, options.negatives, options.group_files, width)
        answer: asyncio.Future[list[list[Hit]]] = asyncio.get_running_loop().create_future()
        self.waiting.append(_Asked(tuple(queries), k, options, answer))
        self._filled.set()
        return await answer

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run anything else that keeps the cores busy in the engine's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

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
            batch = self._take()
            if batch:
                await self._answer(batch)
            if not self.waiting:
                if self._closed:
                    return
                self._filled.clear()

    def _take(self) -> list[_Asked]:
        """The longest waiting request, and those after it that go with it."""
        # Whoever gave up waiting (timeout, closed connection) costs nothing.
        self.waiting = [asked for asked in self.waiting if not asked.answer.done()]
        batch: list[_Asked] = []
        size = 0
        for asked in self.waiting:
            fits = size + len(asked.queries) <= self.max_batch
            if not batch or (fits and asked.options == batch[0].options):
                batch.append(asked)
                size += len(asked.queries)
        self.waiting = [asked for asked in self.waiting if asked not in batch]
        return batch

    async def _answer(self, batch: list[_Asked]) -> None:
        if self.on_batch is not None:
            self.on_batch(sum(len(asked.queries) for asked in batch))
        try:
            found = await self.call(lambda: self._search(batch))
        except Exception as error:
            if len(batch) == 1:
                _settle(batch[0], error)
                return
            logger.warning("a batch of %d failed (%s); each is asked alone", len(batch), error)
            for asked in batch:
                await self._answer([asked])
            return
        place = 0
        for asked in batch:
            hits = found[place : place + len(asked.queries)]
            place += len(asked.queries)
            _settle(asked, [each[: asked.k] for each in hits])

    def _search(self, batch: list[_Asked]) -> list[list[Hit]]:
        options = batch[0].options
        return self.engine.search_many(
            [query for asked in batch for query in asked.queries],
            max(asked.k for asked in batch),
            shortlist=options.shortlist,
            filters=options.filters or None,
            negatives=options.negatives,
            group_files=options.group_files,
        )


def _settle(asked: _Asked, result: list[list[Hit]] | Exception) -> None:
    if asked.answer.done():
        return
    if isinstance(result, Exception):
        asked.answer.set_exception(result)
    else:
        asked.answer.set_result(result)
