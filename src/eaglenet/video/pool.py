"""Pool of worker processes that runs requests ahead, in order, and survives crashes.

    for outcome in map_ahead(decode_one, requests, workers=2):
        if isinstance(outcome, Success): ...   # outcome.request, outcome.result
        else: ...                              # Failure: outcome.request, outcome.reason

A broken file can end the process that decodes it, by a crash in a codec or for lack of memory. Each
worker is therefore a process with one thread and a memory limit, and ends with its parent. A
request whose worker dies is retried once in a fresh worker, then reported as failed. Work that
exceeds its time budget is killed, and all other requests with the same budget fail at once.

A hostile file may run code in its worker. Workers are confined if the system supports it, and their
replies are checked (:mod:`eaglenet.video.worker`). Requests can be any objects that can be pickled;
the return annotation of the work defines what a reply may contain.
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
from eaglenet.core.process import ChildProcess
from eaglenet.video.input_file import SharedFile
from eaglenet.video.messages import MAX_BYTES, MessageError
from eaglenet.video.worker import Worker, start_worker
from eaglenet.video.worker_channel import Reply, attempt, check_reply
from eaglenet.video.worker_host import IS_FORKING, Host

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""Attempts per request; one that ends this many workers is reported as failed."""

MAX_FAILED_STARTS = 3
"""Consecutive workers that may end before they are ready."""

POLL_SECONDS = 0.02
"""Seconds between checks for a stop, for free capacity and for exceeded budgets."""

INVALID_REPLY = "the decoder sent an invalid reply"

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


@dataclass(frozen=True)
class Access(Generic[Request, Result]):
    """Permissions of a worker, and checks of its replies.

    share: opens the file that a request reads. On Linux, a worker can read no other file, and each
        file gets a new process.
    check: raises ``ValueError`` if a result does not fit its request.
    threads: the work may start threads.
    max_bytes: maximum size of a reply.
    gpu_workers: number of workers that decode on the GPU. A request that crashes one of them is
        retried by a worker without GPU, if there is one.
    host: process that the workers share with those of other pools; its memory limit applies.
    """

    share: Callable[[Request], SharedFile] | None = None
    check: Callable[[Request, Result], None] | None = None
    threads: bool = False
    max_bytes: int = MAX_BYTES
    gpu_workers: int = 0
    host: Host | None = None


def map_ahead(
    work: Callable[[Request], Result],
    requests: Iterable[Request],
    *,
    workers: int = 0,
    prefetch: int = 8,
    budget: Budget[Request] | None = None,
    access: Access[Request, Result] | None = None,
) -> Iterator[Success[Request, Result] | Failure[Request]]:
    """Run ``work`` on each request and yield exactly one outcome per request, in order.

    ``workers`` processes run up to ``prefetch`` requests ahead of the consumer; they import
    ``work`` by name, and ``requests`` is iterated in another thread. With 0 workers everything runs
    in this process, without limits and unconfined.
    """
    if workers <= 0:
        for request in requests:
            yield _outcome(request, attempt(work, request))
        return
    pool = _Pool(work, iter(requests), workers, prefetch, budget, access or Access())
    try:
        yield from pool.outcomes()
    finally:
        pool.close()


def _outcome(request: Request, reply: Reply) -> Success[Request, Any] | Failure[Request]:
    if reply.reason is not None:
        return Failure(request, reply.reason)
    return Success(request, reply.result)


class _Pool(Generic[Request, Result]):
    """Assigns requests to workers and collects their replies, in its own thread."""

    def __init__(
        self,
        work: Callable[[Request], Result],
        requests: Iterator[Request],
        workers: int,
        prefetch: int,
        budget: Budget[Request] | None,
        access: Access[Request, Result],
    ) -> None:
        self.work = work
        self.access = access
        self.requests = enumerate(requests)
        self.num_workers = workers
        self.gpu_workers = access.gpu_workers
        self.budget = budget
        self.seconds_used: Counter[Hashable] = Counter()
        self.exceeded: dict[Hashable, str] = {}
        """Owners whose budget is used up, with the reason for their remaining requests."""
        self.capacity = threading.Semaphore(workers + max(prefetch, 0))
        self.workers: list[Worker] = []
        self.retries: deque[int] = deque()
        self.pending_requests: dict[int, Request] = {}
        self.crashes: Counter[int] = Counter()
        self.failed_starts = 0
        self.failed_process: ChildProcess | None = None
        self.is_input_done = False
        self.replies: queue.Queue[
            tuple[int, Success[Request, Result] | Failure[Request]] | BaseException | None
        ] = queue.Queue()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="map-ahead", daemon=True)
        self.thread.start()

    def outcomes(self) -> Iterator[Success[Request, Result] | Failure[Request]]:
        early: dict[int, Success[Request, Result] | Failure[Request]] = {}
        for number in itertools.count():
            while number not in early:
                message = self.replies.get()
                if message is None:
                    return
                if isinstance(message, BaseException):
                    raise message
                early[message[0]] = message[1]
            outcome = early.pop(number)
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
            self.replies.put(None)
        except BaseException as error:
            self.replies.put(error)
        finally:
            for worker in self.workers:
                worker.end()

    def _assign(self) -> bool:
        """Give each idle worker a request; return False when all requests are done."""
        for worker in [each for each in self.workers if each.is_ready and each.item is None]:
            item = self._next_item(worker)
            if item is None:
                continue
            worker.item, worker.started_at = item, time.monotonic()
            try:
                self._send(worker, self.pending_requests[item])
            except OSError:
                self._lose(worker)
        count = (
            min(self.num_workers, len(self.pending_requests))
            if self.is_input_done
            else self.num_workers
        )
        while len(self.workers) < count:
            memory = self.budget.memory if self.budget is not None else None
            self.workers.append(
                start_worker(
                    self.work,
                    memory,
                    threads=self.access.threads,
                    max_bytes=self.access.max_bytes,
                    uses_gpu=sum(worker.uses_gpu for worker in self.workers) < self.gpu_workers,
                    host=self.access.host,
                )
            )
        return bool(self.pending_requests) or not self.is_input_done

    def _send(self, worker: Worker, request: Request) -> None:
        file = None if self.access.share is None else self.access.share(request)
        try:
            worker.send(request, file)
        finally:
            if file is not None:
                file.close()

    def _next_item(self, worker: Worker) -> int | None:
        # A request that crashed a decoder on the GPU may succeed on the CPU.
        if self.retries and not (worker.uses_gpu and self.gpu_workers < self.num_workers):
            return self.retries.popleft()
        while not self.is_input_done and self.capacity.acquire(blocking=False):
            following = next(self.requests, None)
            if following is None:
                self.is_input_done = True
                break
            item, request = following
            self.pending_requests[item] = request
            reason = None if self.budget is None else self.exceeded.get(self.budget.owner(request))
            if reason is None:
                return item
            self._finish(item, Reply(reason=reason))
        return None

    def _end_slow_workers(self) -> None:
        for worker in list(self.workers):
            if worker.item is None:
                continue
            try:
                worker.require_speed()
            except MessageError:
                self._fail(worker, INVALID_REPLY)
                continue
            if self.budget is None:
                continue
            request = self.pending_requests[worker.item]
            owner, limit = self.budget.owner(request), self.budget.seconds(request)
            if self.seconds_used[owner] + time.monotonic() - worker.started_at <= limit:
                continue
            self.exceeded[owner] = f"gave up after {limit:.0f} s, the limit for it"
            self._fail(worker, self.exceeded[owner])

    def _collect(self) -> None:
        by_connection = {worker.connection: worker for worker in self.workers}
        for connection in wait(list(by_connection), timeout=POLL_SECONDS):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                self._read(worker)
            except (EOFError, OSError):
                self._lose(worker)
            except MessageError as error:
                logger.warning("%s (%s)", INVALID_REPLY, error)
                self._fail(worker, INVALID_REPLY)

    def _read(self, worker: Worker) -> None:
        if not worker.is_ready:
            worker.read_ready()
            report_missing(worker.missing)
            self.failed_starts = 0
            return
        if worker.item is None:
            worker.require_silence()
            return
        reply = worker.receive()
        if reply is None:
            return
        request = self.pending_requests[worker.item]
        if self.budget is not None:
            owner = self.budget.owner(request)
            self.seconds_used[owner] += time.monotonic() - worker.started_at  # type: ignore[assignment]
        check_reply(self.access.check, request, reply)
        self._finish(worker.item, reply)
        worker.item = None

    def _finish(self, item: int, reply: Reply) -> None:
        self.replies.put((item, _outcome(self.pending_requests.pop(item), reply)))

    def _fail(self, worker: Worker, reason: str) -> None:
        """End the process of a request and report the request as failed."""
        item, worker.item = worker.item, None
        if not worker.is_forking:
            worker.kill()
        worker.stop()
        self._replace(worker)
        if item is not None:
            self._finish(item, Reply(reason=reason))

    def _lose(self, worker: Worker) -> None:
        """Handle a process that has ended: retry its request or report it as failed."""
        was_ready, item, worker.item = worker.is_ready, worker.item, None
        code = worker.stop()
        self._replace(worker)
        if not was_ready and worker.uses_gpu:
            self.gpu_workers -= 1
            logger.warning(
                "a decoder on the GPU cannot start (exit code %s); the CPU decodes", code
            )
        # A host that has ended takes all of its workers with it.
        elif not was_ready and (code is None or worker.process is not self.failed_process):
            self.failed_process = worker.process
            self.failed_starts += 1
            if self.failed_starts >= MAX_FAILED_STARTS:
                raise EagleNetError(
                    f"decoder processes cannot start (exit code {code}); use workers=0, and in a "
                    "script of your own keep the call under `if __name__ == '__main__':`"
                )
        if item is None:
            return
        self.crashes[item] += 1
        if self.crashes[item] < MAX_ATTEMPTS:
            self.retries.append(item)
            return
        reason = f"the decoder process died (exit code {code}), {MAX_ATTEMPTS} times"
        self._finish(item, Reply(reason=reason))

    def _replace(self, worker: Worker) -> None:
        """Remove a worker that can no longer be used; ``_assign`` starts another one."""
        if not worker.is_ready:
            if not worker.shares_host:
                worker.kill()
            worker.end()
            self.workers.remove(worker)


_reported_parts: set[tuple[str, ...]] = set()


def report_missing(missing: tuple[str, ...]) -> None:
    """Log once which parts of the confinement this system does not provide."""
    if missing and missing not in _reported_parts:
        _reported_parts.add(missing)
        # On other systems none is expected; see SECURITY.md.
        level = logging.WARNING if IS_FORKING else logging.INFO
        logger.log(level, "decoders are not fully confined: %s", "; ".join(missing))
