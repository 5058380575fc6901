"""WorkerBackend work to workers that may be lost at any time, and gives every item's outcome once.

    for outcome in WorkerPool(hands, size=4).map(items): ...     # Success or Failure, in any order

A worker that is lost is replaced, and what it had in hand is given to another one, a few times.
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
from eaglenet.video.pool import Success, Failure

logger = logging.getLogger(__name__)

DEPTH = 2
"""Items a worker has in hand: the next one is there when one is done."""
ATTEMPTS = 8
"""Workers that may be lost over an item before it is given up."""
FAILED_STARTS = 8
"""Workers in a row that are lost before they are ready."""
POLL_SECONDS = 0.2
PATIENCE = 30.0
"""Seconds without any worker after which that is said."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class LostWorkerError(Exception):
    """The worker is gone, and what it was doing with it."""


class WorkerBackend(Protocol):
    """How workers are started, called and waited for. A call is any object that can be a key."""

    def start(self) -> Any: ...

    def is_ready(self, worker: Any) -> Any:
        """A call that is done once the worker can work."""
        ...

    def call(self, worker: Any, item: Any) -> Any: ...

    def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        """Some calls that are done; none where it takes longer."""
        ...

    def result(self, call: Any) -> Any:
        """Of a call that is done. Raises :class:`LostWorkerError`."""
        ...

    def end(self, worker: Any) -> None: ...


class WorkerPool(Generic[Item, Result]):
    """``size`` workers, where there is room for so many."""

    def __init__(self, hands: WorkerBackend, size: int) -> None:
        self.hands = hands
        self.size = size
        self._starting: dict[Any, Any] = {}
        self._load: dict[Any, set[Any]] = {}
        """Calls of each worker that is ready."""
        self._open: dict[Any, tuple[Any, int]] = {}
        """Worker and number of the item of each call."""
        self._items: dict[int, Item] = {}
        self._again: deque[int] = deque()
        self._lost: Counter[int] = Counter()
        self._failed_starts = 0

    def map(
        self, items: Iterable[Item]
    ) -> Generator[Success[Item, Result] | Failure[Item], None, None]:
        """The outcome of every item, as they come. ``items`` is read in another thread."""
        feed: _Feed[Item] = _Feed(items, 2 * self.size)
        waiting_since = time.monotonic()
        try:
            while True:
                self._hand_out(feed)
                if not self._items and feed.is_over:
                    return
                calls = [*self._starting, *self._open]
                if not calls:
                    time.sleep(POLL_SECONDS / 10)  # The feed is slow.
                    continue
                for call in self.hands.wait(calls, POLL_SECONDS):
                    if call in self._starting:
                        self._begin(call)
                    elif call in self._open:
                        yield from self._finish(call)
                if self._load or not self._starting:
                    waiting_since = time.monotonic()
                elif time.monotonic() - waiting_since > PATIENCE:
                    waiting_since = time.monotonic()
                    logger.warning("no worker could start yet: the cluster has no room for one")
        finally:
            feed.close()
            for worker in [*self._starting.values(), *self._load]:
                self.hands.end(worker)

    def _hand_out(self, feed: _Feed[Item]) -> None:
        """Give workers what there is to do; start some where that is more than they can take."""
        for depth in range(1, DEPTH + 1):
            for worker, calls in self._load.items():
                if len(calls) < depth and (number := self._next(feed)) is not None:
                    call = self.hands.call(worker, self._items[number])
                    calls.add(call)
                    self._open[call] = worker, number
        waiting = len(self._again) + feed.waiting
        for _ in range(min(waiting, self.size - len(self._load)) - len(self._starting)):
            worker = self.hands.start()
            self._starting[self.hands.is_ready(worker)] = worker

    def _next(self, feed: _Feed[Item]) -> int | None:
        if self._again:
            return self._again.popleft()
        taken = feed.take()
        if taken is None:
            return None
        number, item = taken
        self._items[number] = item
        return number

    def _begin(self, call: Any) -> None:
        worker = self._starting.pop(call)
        try:
            self.hands.result(call)
        except LostWorkerError as error:
            self._failed_starts += 1
            logger.warning("a worker could not start (%s)", error)
            if self._failed_starts >= FAILED_STARTS:
                raise EagleNetError(
                    f"no worker of the cluster can start ({error}); every machine of it needs the "
                    "same eaglenet, and its logs say more"
                ) from error
            return
        self._failed_starts = 0
        self._load[worker] = set()

    def _finish(self, call: Any) -> Iterator[Success[Item, Result] | Failure[Item]]:
        worker, number = self._open.pop(call)
        try:
            result: Result = self.hands.result(call)
        except LostWorkerError as error:
            if self._load.pop(worker, None) is not None:
                logger.warning("a worker was lost (%s); others do its work", error)
            self._lost[number] += 1
            if self._lost[number] < ATTEMPTS:
                self._again.append(number)
            else:
                yield Failure(self._items.pop(number), f"{ATTEMPTS} workers were lost over it")
            return
        self._load.get(worker, set()).discard(call)
        yield Success(self._items.pop(number), result)


class _Feed(Generic[Item]):
    """Reads items a little ahead, in a thread."""

    def __init__(self, items: Iterable[Item], ahead: int) -> None:
        self._queue: queue.Queue[tuple[int, Item]] = queue.Queue(ahead)
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(items,), daemon=True)
        self._thread.start()

    def _read(self, items: Iterable[Item]) -> None:
        try:
            for numbered in enumerate(items):
                while not self._closed.is_set():
                    try:
                        self._queue.put(numbered, timeout=POLL_SECONDS)
                        break
                    except queue.Full:
                        continue
                if self._closed.is_set():
                    return
        except BaseException as error:
            self._error = error
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def is_over(self) -> bool:
        """Whether every item was taken; an error of the items is raised here."""
        if self._thread.is_alive() or not self._queue.empty():
            return False
        if self._error is not None:
            raise self._error
        return True

    def take(self) -> tuple[int, Item] | None:
        """The next item, where one is there."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop reading, and wait for that: items may use what their reader closes next."""
        self._closed.set()
        self._thread.join(PATIENCE)
