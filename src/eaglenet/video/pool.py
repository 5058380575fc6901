"""A pool of worker processes that runs requests ahead, in order, and survives crashes.

    for outcome in map_ahead(decode_one, requests, workers=2):
        if isinstance(outcome, Success): ...   # outcome.request, outcome.result
        else: ...                              # Failure: outcome.request, outcome.reason

A broken file can end the process that decodes it (a crash in a codec, out of memory). Each worker
is therefore a process with one thread and a memory limit that ends with its parent. A request whose
worker dies is tried once more in a fresh worker, then reported as failed. Work that exceeds its
time budget is ended, and all other requests with the same budget fail at once. Requests and results
can be any objects that can be pickled; arrays and tensors are sent without copying them.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from eaglenet.core.errors import EagleNetError
from eaglenet.video.worker import Reply, Worker, attempt, end_worker, receive, start_worker

MAX_ATTEMPTS = 2
"""Workers that a request may crash before it is reported as failed."""

MAX_FAILED_STARTS = 3
"""Workers in a row that may end before they are ready."""

POLL_SECONDS = 0.02
"""How often the pool checks for a stop, for free capacity, and for exceeded budgets."""

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Success(Generic[Request, Result]):
    """A request and its result."""

    request: Request
    result: Result


@dataclass(frozen=True)
class Failure(Generic[Request]):
    """A request and the reason why it has no result."""

    request: Request
    reason: str


@dataclass(frozen=True)
class Budget(Generic[Request]):
    """Limits on requests: bytes of memory per worker, and seconds for all requests of an owner."""

    memory: int
    owner: Callable[[Request], Hashable]
    seconds: Callable[[Request], float]


def map_ahead(
    work: Callable[[Request], Result],
    requests: Iterable[Request],
    *,
    workers: int = 0,
    prefetch: int = 8,
    budget: Budget[Request] | None = None,
) -> Iterator[Success[Request, Result] | Failure[Request]]:
    """Run ``work`` on each request and yield exactly one outcome per request, in order.

    ``workers`` processes run up to ``prefetch`` requests ahead of the consumer; ``work`` must be
    importable there. With 0 workers everything runs in this process, without limits. With workers,
    ``requests`` is iterated in another thread.
    """
    if workers <= 0:
        for request in requests:
            yield _outcome(request, attempt(work, request))
        return
    pool = _Pool(work, iter(requests), workers, prefetch, budget)
    try:
        yield from pool.outcomes()
    finally:
        pool.close()


def _outcome(request: Request, reply: Reply) -> Success[Request, Any] | Failure[Request]:
    if reply.reason is not None:
        return Failure(request, reply.reason)
    return Success(request, reply.result)


class _Pool(Generic[Request, Result]):
    """Assigns requests to workers and collects their replies in a thread of its own."""

    def __init__(
        self,
        work: Callable[[Request], Result],
        requests: Iterator[Request],
        workers: int,
        prefetch: int,
        budget: Budget[Request] | None = None,
    ) -> None:
        self.work = work
        self.requests = enumerate(requests)
        self.num_workers = workers
        self.budget = budget
        self.seconds_used: Counter[Hashable] = Counter()
        self.exceeded: dict[Hashable, str] = {}
        """Owners whose budget is used up, with the reason for their remaining requests."""
        self.capacity = threading.Semaphore(workers + max(prefetch, 0))
        self.workers: list[Worker] = []
        self.retries: deque[int] = deque()
        self.pending: dict[int, Request] = {}
        self.crashes: Counter[int] = Counter()
        self.failed_starts = 0
        self.is_input_done = False
        self.finished: queue.Queue[
            tuple[int, Success[Request, Result] | Failure[Request]] | BaseException | None
        ] = queue.Queue()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="map-ahead", daemon=True)
        self.thread.start()

    def outcomes(self) -> Iterator[Success[Request, Result] | Failure[Request]]:
        early: dict[int, Success[Request, Result] | Failure[Request]] = {}
        for expected in itertools.count():
            while expected not in early:
                message = self.finished.get()
                if message is None:
                    return
                if isinstance(message, BaseException):
                    raise message
                early[message[0]] = message[1]
            outcome = early.pop(expected)
            self.capacity.release()
            yield outcome

    def close(self) -> None:
        self.stop.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            while not self.stop.is_set() and self._assign():
                self._end_slow_workers()
                self._collect()
            self.finished.put(None)
        except BaseException as error:
            self.finished.put(error)
        finally:
            for worker in self.workers:
                end_worker(worker)

    def _assign(self) -> bool:
        """Give every idle worker a request; return False when all requests are done."""
        for worker in [each for each in self.workers if each.is_ready and each.item is None]:
            item = self._next_item()
            if item is None:
                break
            worker.item, worker.started_at = item, time.monotonic()
            try:
                worker.connection.send(self.pending[item])
            except OSError:
                self._remove(worker)
        count = min(self.num_workers, len(self.pending)) if self.is_input_done else self.num_workers
        while len(self.workers) < count:
            memory = self.budget.memory if self.budget is not None else None
            self.workers.append(start_worker(self.work, memory))
        return bool(self.pending) or not self.is_input_done

    def _next_item(self) -> int | None:
        if self.retries:
            return self.retries.popleft()
        while not self.is_input_done and self.capacity.acquire(blocking=False):
            following = next(self.requests, None)
            if following is None:
                self.is_input_done = True
                break
            item, request = following
            self.pending[item] = request
            reason = None if self.budget is None else self.exceeded.get(self.budget.owner(request))
            if reason is None:
                return item
            self._finish(item, Reply(reason=reason))
        return None

    def _end_slow_workers(self) -> None:
        if self.budget is None:
            return
        for worker in list(self.workers):
            if worker.item is None:
                continue
            request = self.pending[worker.item]
            owner, limit = self.budget.owner(request), self.budget.seconds(request)
            if self.seconds_used[owner] + time.monotonic() - worker.started_at <= limit:
                continue
            self.exceeded[owner] = f"gave up after {limit:.0f} s, the limit for it"
            item, worker.item = worker.item, None
            worker.process.kill()
            self._remove(worker)
            self._finish(item, Reply(reason=self.exceeded[owner]))

    def _collect(self) -> None:
        by_connection = {worker.connection: worker for worker in self.workers}
        for connection in wait(list(by_connection), timeout=POLL_SECONDS):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                self._read(worker)
            except (EOFError, OSError):
                self._remove(worker)

    def _read(self, worker: Worker) -> None:
        if not worker.is_ready:
            worker.connection.recv()
            worker.is_ready = True
            self.failed_starts = 0
            return
        reply = receive(worker.connection)
        if worker.item is not None:
            if self.budget is not None:
                owner = self.budget.owner(self.pending[worker.item])
                self.seconds_used[owner] += time.monotonic() - worker.started_at  # type: ignore[assignment]
            self._finish(worker.item, reply)
        worker.item = None

    def _finish(self, item: int, reply: Reply) -> None:
        self.finished.put((item, _outcome(self.pending.pop(item), reply)))

    def _remove(self, worker: Worker) -> None:
        """Remove a worker that ended; retry its request or report it as failed."""
        # A process closes its pipes a moment before its exit code is known.
        worker.process.join(1)
        end_worker(worker)
        self.workers.remove(worker)
        code = worker.process.exitcode
        if not worker.is_ready:
            self.failed_starts += 1
            if self.failed_starts >= MAX_FAILED_STARTS:
                raise EagleNetError(
                    f"decoder processes cannot start (exit code {code}); use workers=0, and in a "
                    "script of your own keep the call under `if __name__ == '__main__':`"
                )
        if worker.item is None:
            return
        self.crashes[worker.item] += 1
        if self.crashes[worker.item] < MAX_ATTEMPTS:
            self.retries.append(worker.item)
            return
        reason = f"the decoder process died (exit code {code}), {MAX_ATTEMPTS} times"
        self._finish(worker.item, Reply(reason=reason))
