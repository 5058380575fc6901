"""The judge of a service: a few searches at a time, in threads of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from eaglenet.core.hits import Hit
from eaglenet.search.engine import Engine
from eaglenet.search.grammar import AnyQuery
from eaglenet.search.judge import TIMEOUT, Judge, Judgement

SLOTS = 2
"""Searches that are judged at once; a judge is far slower than the engine."""
BUSY = "the judge is busy with other searches; this is the usual order"


class ServiceJudge:
    """Judges searches while it has time, and leaves the others as they are.

    A slow judge delays neither the engine nor searches that it does not judge. The address is that
    of the service's operator: no request can name another.
    """

    def __init__(self, engine: Engine, address: str, timeout: float) -> None:
        """``timeout`` is that of a request; a judge gets half of it, a question a quarter."""
        self.engine = engine
        self.judge = Judge(address, timeout=min(TIMEOUT, timeout / 4), budget=timeout / 2)
        self._executor = ThreadPoolExecutor(SLOTS, thread_name_prefix="judge")
        self._num_running = 0

    async def rank(self, query: AnyQuery, hits: Sequence[Hit]) -> Judgement:
        """Order the first hits; see :meth:`Judge.rank`."""
        if self._num_running >= SLOTS:
            return Judgement(list(hits), BUSY)
        self._num_running += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._executor, self.judge.rank, query, list(hits), self.engine
        )
        # Not in a finally clause: the thread works on when a client hangs up.
        future.add_done_callback(self._release)
        return await asyncio.shield(future)

    def _release(self, future: asyncio.Future[Judgement]) -> None:
        self._num_running -= 1
        if not future.cancelled():
            future.exception()  # Retrieved, also where nobody waits for it any more.

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
