"""Does work ahead in processes of its own, in order, and outlives a process that dies.

    for outcome in map_ahead(decode_one, requests, workers=2):
        if isinstance(outcome, Done): ...   # outcome.request, outcome.result
        else: ...                           # Failed: outcome.request, outcome.reason

A broken file can take the whole process with it (a crash in a codec, the system out of memory), so
each worker is a process of its own with one thread and a limit on its memory, and dies with its
parent. A request whose worker dies is given to a fresh one once more, then reported as failed. Work
that takes longer than its budget is ended, and what else has the same budget fails at once.
Requests and results are any objects that can be pickled; tensors and arrays in them travel without
being copied into the pickle.
"""

from __future__ import annotations

import itertools
import logging
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

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Workers a request may kill before it is given up."""

FAILED_STARTS = 3
"""Workers in a row that end before they are ready, after which there is no use in going on."""

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Request, Result]):
    """What a request gave."""

    request: Request
    result: Result


@dataclass(frozen=True)
class Failed(Generic[Request]):
    """Why a request gave nothing."""

    request: Request
    reason: str


_Outcome = Done[Any, Any] | Failed[Any]


@dataclass(frozen=True)
class Budget(Generic[Request]):
    """What requests may cost: bytes of memory a worker, and seconds for all of one ``owner``."""

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
) -> Iterator[Done[Request, Result] | Failed[Request]]:
    """Do ``work`` on each request and give the outcomes in their order; none is ever lost.

    ``workers`` processes work up to ``prefetch`` requests ahead of the consumer; ``work`` goes to
    them by its name. 0 works here, without a limit to memory or time. With workers the requests are
    taken in another thread.
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


def _outcome(request: Request, answer: Reply) -> Done[Request, Any] | Failed[Request]:
    if answer.reason is not None:
        return Failed(request, answer.reason)
    return Done(request, answer.result)


class _Pool(Generic[Request, Result]):
    """A thread hands out requests and gathers answers, so that work goes on meanwhile."""

    def __init__(
        self,
        work: Callable[[Request], Result],
        requests: Iterator[Request],
        workers: int,
        prefetch: int,
        budget: Budget[Request] | None = None,
    ) -> None:
        self.budget = budget
        self.spent: Counter[Hashable] = Counter()
        self.over: dict[Hashable, str] = {}
        self.work = work
        self.requests = enumerate(requests)
        self.num_workers = workers
        self.room = threading.Semaphore(workers + max(prefetch, 0))
        self.workers: list[Worker] = []
        self.retries: deque[int] = deque()
        self.open: dict[int, Request] = {}
        self.deaths: dict[int, int] = {}
        self.failed_starts = 0
        self.all_taken = False
        self.ready: queue.Queue[
            tuple[int, Done[Request, Result] | Failed[Request]] | BaseException | None
        ] = queue.Queue()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="map-ahead", daemon=True)
        self.thread.start()

    def outcomes(self) -> Iterator[Done[Request, Result] | Failed[Request]]:
        early: dict[int, Done[Request, Result] | Failed[Request]] = {}
        for expected in itertools.count():
            while expected not in early:
                message = self.ready.get()
                if message is None:
                    return
                if isinstance(message, BaseException):
                    raise message
                early[message[0]] = message[1]
            outcome = early.pop(expected)
            self.room.release()
            yield outcome

    def close(self) -> None:
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            while not self.stopped.is_set() and self._hand_out():
                self._gather()
            self.ready.put(None)
        except BaseException as error:
            self.ready.put(error)
        finally:
            for worker in self.workers:
                end_worker(worker)

    def _hand_out(self) -> bool:
        """Give every idle worker something to do; False when all is done."""
        idle = [worker for worker in self.workers if worker.is_ready and worker.item is None]
        for worker in idle:
            item = self._next_item()
            if item is None:
                break
            worker.item, worker.began = item, time.monotonic()
            try:
                worker.connection.send(self.open[item])
            except OSError:
                self._bury(worker)
        useful = min(self.num_workers, len(self.open)) if self.all_taken else self.num_workers
        while len(self.workers) < useful:
            self.workers.append(self._start())
        return bool(self.open) or not self.all_taken

    def _next_item(self) -> int | None:
        if self.retries:
            return self.retries.popleft()
        if self.all_taken or not self.room.acquire(blocking=False):
            return None
        taken = next(self.requests, None)
        if taken is None:
            self.all_taken = True
            return None
        self.open[taken[0]] = taken[1]
        if self.budget is not None and self.budget.owner(taken[1]) in self.over:
            reason = self.over[self.budget.owner(taken[1])]
            self._finish(taken[0], Reply(reason=reason))
            return self._next_item()
        return taken[0]

    def _end_what_takes_too_long(self) -> None:
        if self.budget is None:
            return
        for worker in [each for each in self.workers if each.item is not None]:
            request = self.open[worker.item]  # type: ignore[index]
            owner, allowed = self.budget.owner(request), self.budget.seconds(request)
            if self.spent[owner] + time.monotonic() - worker.began <= allowed:
                continue
            self.over[owner] = f"gave up after {allowed:.0f} s, the limit for it"
            item, worker.item = worker.item, None
            worker.process.kill()
            self._bury(worker)
            self._finish(item, Reply(reason=self.over[owner]))  # type: ignore[arg-type]

    def _gather(self) -> None:
        self._end_what_takes_too_long()
        by_connection = {worker.connection: worker for worker in self.workers}
        # The limit lets a stop, or room made by the consumer, be noticed.
        for connection in wait(list(by_connection), timeout=0.02):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                self._read(worker)
            except (EOFError, OSError):
                self._bury(worker)

    def _read(self, worker: Worker) -> None:
        if not worker.is_ready:
            worker.connection.recv()
            worker.is_ready = True
            self.failed_starts = 0
            return
        answer = receive(worker.connection)
        if worker.item is not None:
            if self.budget is not None:
                owner = self.budget.owner(self.open[worker.item])
                self.spent[owner] += time.monotonic() - worker.began  # type: ignore[assignment]
            self._finish(worker.item, answer)
        worker.item = None

    def _finish(self, item: int, answer: Reply) -> None:
        self.ready.put((item, _outcome(self.open.pop(item), answer)))

    def _start(self) -> Worker:
        return start_worker(self.work, self.budget.memory if self.budget is not None else None)

    def _bury(self, worker: Worker) -> None:
        # A process closes its pipes a moment before its exit code is known.
        worker.process.join(1)
        end_worker(worker)
        self.workers.remove(worker)
        code = worker.process.exitcode
        if not worker.is_ready:
            self.failed_starts += 1
            if self.failed_starts >= FAILED_STARTS:
                raise EagleNetError(
                    f"decoder processes cannot start (exit code {code}); use workers=0, and in a "
                    "script of your own keep the call under `if __name__ == '__main__':`"
                )
        if worker.item is None:
            return
        item = worker.item
        self.deaths[item] = self.deaths.get(item, 0) + 1
        if self.deaths[item] < ATTEMPTS:
            self.retries.append(item)
            return
        reason = f"the decoder process died (exit code {code}), {ATTEMPTS} times"
        self._finish(item, Reply(reason=reason))
