"""Pool of workers that may be lost at any time; every item gets exactly one outcome.

    for outcome in WorkerPool(backend, size=4).map(items): ...   # Success or Failure, in any order

A lost worker is replaced, and its items go to other workers, a few times each.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from eaglenet.core.errors import EagleNetError
from eaglenet.video.pool import Failure, Success

logger = logging.getLogger(__name__)

DEPTH = 2
"""Items assigned to each worker at a time, so that none waits for its next item."""
ATTEMPTS = 8
"""Number of workers that must be lost with an item for the item to fail."""
MAX_FAILED_STARTS = 8
"""Consecutive workers that must be lost before they are ready for the run to fail."""
POLL_SECONDS = 0.2
START_TIMEOUT = 30.0
"""Seconds without a ready worker until a warning; also how long to wait for the item reader."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class LostWorkerError(Exception):
    """A worker was lost, together with its current call."""


class WorkerBackend(Protocol):
    """Interface to workers. A call is any hashable object."""

    def start(self) -> Any: ...

    def is_ready(self, worker: Any) -> Any:
        """Return a call that ends when the worker is ready."""
        ...

    def call(self, worker: Any, item: Any) -> Any: ...

    def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        """Return some calls that have ended; none after ``seconds``."""
        ...

    def result(self, call: Any) -> Any:
        """Return the result of a call that has ended, or raise :class:`LostWorkerError`."""
        ...

    def end(self, worker: Any) -> None: ...


class WorkerPool(Generic[Item, Result]):
    """Pool of up to ``size`` workers."""

    def __init__(self, backend: WorkerBackend, size: int) -> None:
        self.backend = backend
        self.size = size
        self._starting: dict[Any, Any] = {}
        """Workers by readiness call."""
        self._load: dict[Any, set[Any]] = {}
        """Open calls by ready worker."""
        self._open: dict[Any, tuple[Any, int]] = {}
        """Worker and item number by call."""
        self._items: dict[int, Item] = {}
        self._retries: deque[int] = deque()
        self._losses: Counter[int] = Counter()
        self._failed_starts = 0

    def map(
        self, items: Iterable[Item]
    ) -> Generator[Success[Item, Result] | Failure[Item], None, None]:
        """Yield the outcome of every item as it arrives. ``items`` is read in another thread."""
        feed: _Feed[Item] = _Feed(items, 2 * self.size)
        waiting_since = time.monotonic()
        try:
            while True:
                self._assign(feed)
                if not self._items and feed.is_exhausted:
                    return
                calls = [*self._starting, *self._open]
                if not calls:
                    time.sleep(POLL_SECONDS / 10)  # The feed is slow.
                    continue
                for call in self.backend.wait(calls, POLL_SECONDS):
                    if call in self._starting:
                        self._add_worker(call)
                    elif call in self._open:
                        yield from self._finish(call)
                if self._load or not self._starting:
                    waiting_since = time.monotonic()
                elif time.monotonic() - waiting_since > START_TIMEOUT:
                    waiting_since = time.monotonic()
                    logger.warning("no worker has started yet: the cluster has no free resources")
        finally:
            feed.close()
            for worker in [*self._starting.values(), *self._load]:
                self.backend.end(worker)

    def _assign(self, feed: _Feed[Item]) -> None:
        """Assign items to workers, and start more workers if items remain."""
        for depth in range(1, DEPTH + 1):
            for worker, calls in self._load.items():
                if len(calls) < depth and (number := self._next(feed)) is not None:
                    call = self.backend.call(worker, self._items[number])
                    calls.add(call)
                    self._open[call] = worker, number
        num_waiting = len(self._retries) + feed.num_waiting
        for _ in range(min(num_waiting, self.size - len(self._load)) - len(self._starting)):
            worker = self.backend.start()
            self._starting[self.backend.is_ready(worker)] = worker

    def _next(self, feed: _Feed[Item]) -> int | None:
        if self._retries:
            return self._retries.popleft()
        entry = feed.take()
        if entry is None:
            return None
        number, item = entry
        self._items[number] = item
        return number

    def _add_worker(self, call: Any) -> None:
        worker = self._starting.pop(call)
        try:
            self.backend.result(call)
        except LostWorkerError as error:
            self._failed_starts += 1
            logger.warning("a worker could not start (%s)", error)
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise EagleNetError(
                    f"no worker of the cluster can start ({error}); install the same version of "
                    "eaglenet on every machine, and see the logs of the cluster"
                ) from error
            return
        self._failed_starts = 0
        self._load[worker] = set()

    def _finish(self, call: Any) -> Iterator[Success[Item, Result] | Failure[Item]]:
        worker, number = self._open.pop(call)
        try:
            result: Result = self.backend.result(call)
        except LostWorkerError as error:
            if self._load.pop(worker, None) is not None:
                logger.warning("a worker was lost (%s); other workers take over its items", error)
            self._losses[number] += 1
            if self._losses[number] < ATTEMPTS:
                self._retries.append(number)
            else:
                yield Failure(
                    self._items.pop(number), f"{ATTEMPTS} workers were lost while processing it"
                )
            return
        self._load.get(worker, set()).discard(call)
        yield Success(self._items.pop(number), result)


class _Feed(Generic[Item]):
    """Iterator that is read ahead in a thread."""

    def __init__(self, items: Iterable[Item], ahead: int) -> None:
        self._queue: queue.Queue[tuple[int, Item]] = queue.Queue(ahead)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(items,), daemon=True)
        self._thread.start()

    def _read(self, items: Iterable[Item]) -> None:
        try:
            for entry in enumerate(items):
                while not self._stop.is_set():
                    try:
                        self._queue.put(entry, timeout=POLL_SECONDS)
                        break
                    except queue.Full:
                        continue
                if self._stop.is_set():
                    return
        except BaseException as error:
            self._error = error
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    @property
    def num_waiting(self) -> int:
        return self._queue.qsize()

    @property
    def is_exhausted(self) -> bool:
        """True if every item was taken; raises the error of the iterator, if any."""
        if self._thread.is_alive() or not self._queue.empty():
            return False
        if self._error is not None:
            raise self._error
        return True

    def take(self) -> tuple[int, Item] | None:
        """Return the next item with its number; None if there is none yet."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop reading and wait for the thread, which may use what the caller closes next."""
        self._stop.set()
        self._thread.join(START_TIMEOUT)
