"""State shared by the routes of one app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from eaglenet.search.engine import Engine
from eaglenet.search.grammar import AnyQuery
from eaglenet.search.hit import Hit
from eaglenet.search.judge import TIMEOUT, Judge, Judgement
from eaglenet.serve.batching import Batcher
from eaglenet.serve.library import Libraries
from eaglenet.serve.limits import ServiceMetrics
from eaglenet.serve.media import Streams, VideoFiles
from eaglenet.serve.readers import FrameDecoders, TimelineExports, UploadFolder
from eaglenet.serve.security import TokenCheck
from eaglenet.serve.settings import Settings


class State:
    """Engine and components of one service; some of them exist only while the app runs."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = ServiceMetrics()
        self.tokens = (
            None if settings.token is None else TokenCheck(settings.token, settings.session)
        )
        self.videos = VideoFiles(engine)
        self.streams = Streams(settings.max_conversions, settings.timeout)
        self.frames = FrameDecoders(self.videos, settings.timeout)
        self.exports = TimelineExports(self.videos, settings.timeout)
        self.libraries = Libraries()
        self.uploads: UploadFolder | None = None
        self.judge: ServiceJudge | None = None
        self._batcher: Batcher | None = None

    @property
    def batcher(self) -> Batcher:
        if self._batcher is None:
            raise RuntimeError("the app has not been started; enter its lifespan first")
        return self._batcher

    def start(self) -> None:
        """Create the batcher, the upload folder and the judge; needs a running event loop."""
        if self.settings.allow_uploads:
            self.uploads = UploadFolder(self.settings.timeout)
            self.uploads.start()
        if self.settings.judge is not None:
            self.judge = ServiceJudge(self.engine, self.settings.judge, self.settings.timeout)
        self._batcher = Batcher(
            self.engine,
            window=self.settings.batch_window,
            max_batch=self.settings.max_batch,
            workers=self.settings.workers,
            on_batch=self.metrics.batch_queries.observe,
        )

    async def stop_decoding(self) -> None:
        """End all decoding and conversion of videos; their requests fail."""
        if self.uploads is not None:
            await run_in_threadpool(self.uploads.stop)
        await self.streams.close()
        await run_in_threadpool(self.frames.close)
        await run_in_threadpool(self.exports.close)

    async def stop(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
            self._batcher = None
        await self.stop_decoding()
        self.videos.close()
        if self.judge is not None:
            self.judge.close()
        if self.uploads is not None:
            self.uploads.close()
            self.uploads = None


def state_of(request: Request) -> State:
    return cast(State, request.app.state.service)


MAX_JUDGED = 2
"""Simultaneous searches with a judge, which is far slower than the engine."""
BUSY = "the judge is busy with other searches; hits keep their usual order"


class ServiceJudge:
    """Judge of a service; rates at most ``MAX_JUDGED`` searches at once.

    A slow judge delays neither the engine nor searches that it does not rate. Only the operator of
    the service can set its address.
    """

    def __init__(self, engine: Engine, address: str, timeout: float) -> None:
        """``timeout`` is the time limit of a request; the judge may use half of it per search."""
        self.engine = engine
        self.judge = Judge(address, timeout=min(TIMEOUT, timeout / 4), budget=timeout / 2)
        self._executor = ThreadPoolExecutor(MAX_JUDGED, thread_name_prefix="judge")
        self._num_running = 0

    async def rank(self, query: AnyQuery, hits: Sequence[Hit]) -> Judgement:
        """Order the first hits; see :meth:`Judge.rank`."""
        if self._num_running >= MAX_JUDGED:
            return Judgement(list(hits), BUSY)
        self._num_running += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._executor, self.judge.rank, query, list(hits), self.engine
        )
        # Not in a finally clause: the thread continues if the client disconnects.
        future.add_done_callback(self._release)
        return await asyncio.shield(future)

    def _release(self, future: asyncio.Future[Judgement]) -> None:
        self._num_running -= 1
        if not future.cancelled():
            future.exception()  # Marks the exception as retrieved, even if nobody waits for it.

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
