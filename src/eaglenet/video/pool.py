"""Does work ahead in processes of its own, in order, and outlives a process that dies.

    for outcome in map_ahead(decode_one, requests, workers=2):
        if isinstance(outcome, Done): ...   # outcome.request, outcome.result
        else: ...                           # Failed: outcome.request, outcome.reason

A broken file can take the whole process with it (a crash in a codec, the system out of memory), so
each worker is a process of its own with one thread. A request whose worker dies is given to a fresh
one once more, then reported as failed. Requests and results are any objects that can be pickled;
tensors and arrays in them travel without being copied into the pickle.
"""

from __future__ import annotations

import io
import itertools
import logging
import multiprocessing
import pickle
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from eaglenet.errors import EagleNetError, VideoDecodeError

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Workers a request may kill before it is given up."""

FAILED_STARTS = 3
"""Workers in a row that end before they are ready, after which there is no use in going on."""

SMALL = 4096
"""Bytes up to which an array goes with the pickle rather than by itself."""

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


def map_ahead(
    work: Callable[[Request], Result],
    requests: Iterable[Request],
    *,
    workers: int = 0,
    prefetch: int = 8,
) -> Iterator[Done[Request, Result] | Failed[Request]]:
    """Do ``work`` on each request and give the outcomes in their order; none is ever lost.

    ``workers`` processes work up to ``prefetch`` requests ahead of the consumer; ``work`` goes to
    them by its name. 0 works here. With workers the requests are taken in another thread.
    """
    if workers <= 0:
        for request in requests:
            yield _outcome(request, _attempt(work, request))
        return
    pool = _Pool(work, iter(requests), workers, prefetch)
    try:
        yield from pool.outcomes()
    finally:
        pool.close()


@dataclass(frozen=True)
class _Answer:
    """What comes back from a worker; it keeps to itself what was asked."""

    result: Any = None
    reason: str | None = None


def _outcome(request: Request, answer: _Answer) -> Done[Request, Any] | Failed[Request]:
    if answer.reason is not None:
        return Failed(request, answer.reason)
    return Done(request, answer.result)


def _attempt(work: Callable[[Request], Any], request: Request) -> _Answer:
    try:
        return _Answer(work(request))
    except VideoDecodeError as error:
        return _Answer(reason=error.cause)
    except EagleNetError as error:
        return _Answer(reason=str(error))
    except Exception as error:
        # Nothing that one request does may end the run over all the others.
        return _Answer(reason=f"{type(error).__name__}: {error}")


def _work(connection: Connection, work: Callable[[Any], Any]) -> None:
    """Body of a worker process: requests in, answers out, until the other side is gone."""
    # Ctrl-C reaches the whole group; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        connection.send("ready")
        while True:
            request = connection.recv()
            _send(connection, _attempt(work, request))
    except (EOFError, OSError):
        return


class _Pickler(pickle.Pickler):
    """Tensors as the arrays they are, which can be sent as plain bytes."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def _send(connection: Connection, answer: _Answer) -> None:
    large: list[pickle.PickleBuffer] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes <= SMALL:
            return True
        large.append(buffer)
        return False

    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=is_small).dump(answer)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        large.clear()
        stream = io.BytesIO(pickle.dumps(_Answer(reason=f"{type(error).__name__}: {error}")))
    sizes = [buffer.raw().nbytes for buffer in large]
    connection.send((stream.getvalue(), sizes))
    for buffer in large:
        connection.send_bytes(buffer.raw())


def _receive(connection: Connection) -> _Answer:
    content, sizes = connection.recv()
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        connection.recv_bytes_into(buffer)
    answer: _Answer = pickle.loads(content, buffers=buffers)
    return answer


@dataclass
class _Worker:
    process: Any
    connection: Connection
    is_ready: bool = False
    item: int | None = None


class _Pool(Generic[Request, Result]):
    """A thread hands out requests and gathers answers, so that work goes on meanwhile."""

    def __init__(
        self,
        work: Callable[[Request], Result],
        requests: Iterator[Request],
        workers: int,
        prefetch: int,
    ) -> None:
        self.work = work
        self.requests = enumerate(requests)
        self.num_workers = workers
        self.room = threading.Semaphore(workers + max(prefetch, 0))
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[_Worker] = []
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
                self._end(worker)

    def _hand_out(self) -> bool:
        """Give every idle worker something to do; False when all is done."""
        idle = [worker for worker in self.workers if worker.is_ready and worker.item is None]
        for worker in idle:
            item = self._next_item()
            if item is None:
                break
            worker.item = item
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
        return taken[0]

    def _gather(self) -> None:
        by_connection = {worker.connection: worker for worker in self.workers}
        # The limit lets a stop, or room made by the consumer, be noticed.
        for connection in wait(list(by_connection), timeout=0.02):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                self._read(worker)
            except (EOFError, OSError):
                self._bury(worker)

    def _read(self, worker: _Worker) -> None:
        if not worker.is_ready:
            worker.connection.recv()
            worker.is_ready = True
            self.failed_starts = 0
            return
        answer = _receive(worker.connection)
        if worker.item is not None:
            self._finish(worker.item, answer)
        worker.item = None

    def _finish(self, item: int, answer: _Answer) -> None:
        self.ready.put((item, _outcome(self.open.pop(item), answer)))

    def _start(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.work), daemon=True)
        process.start()
        # With our copy closed, a dead worker ends the connection instead of leaving us waiting.
        theirs.close()
        return _Worker(process, ours)

    def _bury(self, worker: _Worker) -> None:
        # A process closes its pipes a moment before its exit code is known.
        worker.process.join(1)
        self._end(worker)
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
        self._finish(item, _Answer(reason=reason))

    def _end(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.terminate()
        worker.process.join(1)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
