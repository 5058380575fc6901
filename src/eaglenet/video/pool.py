"""Decodes ahead in worker processes, in order, and outlives a worker that dies.

    for result in decode_many([("a", "a.mp4", None), ("b", "b.mp4", (3.0, 9.0))], spec, workers=2):
        if isinstance(result, Decoded): ...   # result.video_id, result.video
        else: ...                             # Skipped: result.video_id, result.reason

A broken file can take the whole process with it (a crash in a codec, the system out of memory), so
each worker is a process of its own with one decoder thread. An item whose worker dies is given to a
fresh one once more, then reported as skipped.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from eaglenet.errors import EagleNetError, VideoDecodeError
from eaglenet.types import FrameSpec
from eaglenet.video.decoding import DecodedVideo, Window, decode

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Workers an item may kill before it is skipped."""

FAILED_STARTS = 3
"""Workers in a row that end before they are ready, after which there is no use in going on."""


class DecodeRequest(NamedTuple):
    """What to decode; a plain tuple will do."""

    video_id: str
    path: Path | str
    window: Window | None = None


@dataclass(frozen=True)
class Decoded:
    video_id: str
    video: DecodedVideo


@dataclass(frozen=True)
class Skipped:
    video_id: str
    path: Path
    reason: str


Result = Decoded | Skipped
Decode = Callable[[DecodeRequest, FrameSpec], DecodedVideo]


def decode_request(request: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    """One thread each: several would only fight over the cores with the other workers."""
    return decode(request.path, spec, window=request.window, threads=1)


def decode_many(
    items: Iterable[DecodeRequest | tuple[str, Path | str, Window | None]],
    spec: FrameSpec,
    *,
    workers: int = 0,
    prefetch: int = 8,
    decode_one: Decode = decode_request,
) -> Iterator[Result]:
    """Decode ``items`` and give the results in their order; none is ever lost.

    ``workers`` processes decode up to ``prefetch`` items ahead of the consumer; 0 decodes here.
    What was skipped is logged at the end, once, with every file and its reason.
    """
    requests = (DecodeRequest(*item) for item in items)
    skipped: list[Skipped] = []
    try:
        for result in _results(requests, spec, workers, prefetch, decode_one):
            if isinstance(result, Skipped):
                skipped.append(result)
            yield result
    finally:
        if skipped:
            lines = "".join(f"\n  {one.path}: {one.reason}" for one in skipped)
            logger.warning("%d of the videos were skipped:%s", len(skipped), lines)


def _results(
    requests: Iterator[DecodeRequest],
    spec: FrameSpec,
    workers: int,
    prefetch: int,
    decode_one: Decode,
) -> Iterator[Result]:
    if workers <= 0:
        for request in requests:
            yield _attempt(request, spec, decode_one)
        return
    pool = _Pool(requests, spec, workers, prefetch, decode_one)
    try:
        yield from pool.results()
    finally:
        pool.close()


def _attempt(request: DecodeRequest, spec: FrameSpec, decode_one: Decode) -> Result:
    path = Path(request.path)
    try:
        return Decoded(request.video_id, decode_one(request, spec))
    except VideoDecodeError as error:
        return Skipped(request.video_id, path, error.cause)
    except EagleNetError as error:
        return Skipped(request.video_id, path, str(error))
    except Exception as error:
        # Nothing that one file does may end the run over all the others.
        return Skipped(request.video_id, path, f"{type(error).__name__}: {error}")


def _work(connection: Connection, spec: FrameSpec, decode_one: Decode) -> None:
    """Body of a worker process: requests in, results out, until the other side is gone."""
    # Ctrl-C reaches the whole group; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        connection.send("ready")
        while True:
            request = connection.recv()
            _send(connection, _attempt(request, spec, decode_one))
    except (EOFError, OSError):
        return


def _send(connection: Connection, result: Result) -> None:
    if isinstance(result, Skipped):
        connection.send(result)
        return
    video = result.video
    frames = video.frames.numpy()
    rest = (video.mask.tolist(), video.seconds.tolist(), video.largest_error, video.window)
    connection.send((result.video_id, frames.shape, rest))
    # Pixels go as they are: pickling them would copy them twice more.
    connection.send_bytes(frames.data.cast("B"))


def _receive(connection: Connection) -> Result:
    header = connection.recv()
    if isinstance(header, Skipped):
        return header
    video_id, shape, (mask, seconds, error, window) = header
    frames = np.empty(shape, np.uint8)
    connection.recv_bytes_into(frames.data.cast("B"))
    video = DecodedVideo(
        torch.from_numpy(frames), torch.tensor(mask), torch.tensor(seconds), error, window
    )
    return Decoded(video_id, video)


@dataclass
class _Worker:
    process: Any
    connection: Connection
    is_ready: bool = False
    item: int | None = None


class _Pool:
    """A thread hands out requests and gathers results, so that decoding runs on meanwhile."""

    def __init__(
        self,
        requests: Iterator[DecodeRequest],
        spec: FrameSpec,
        workers: int,
        prefetch: int,
        decode_one: Decode,
    ) -> None:
        self.requests = enumerate(requests)
        self.spec = spec
        self.decode_one = decode_one
        self.num_workers = workers
        self.room = threading.Semaphore(workers + max(prefetch, 0))
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[_Worker] = []
        self.retries: deque[int] = deque()
        self.open: dict[int, DecodeRequest] = {}
        self.deaths: dict[int, int] = {}
        self.failed_starts = 0
        self.all_taken = False
        self.ready: queue.Queue[tuple[int, Result] | BaseException | None] = queue.Queue()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="decode-many", daemon=True)
        self.thread.start()

    def results(self) -> Iterator[Result]:
        early: dict[int, Result] = {}
        for expected in itertools.count():
            while expected not in early:
                message = self.ready.get()
                if message is None:
                    return
                if isinstance(message, BaseException):
                    raise message
                early[message[0]] = message[1]
            result = early.pop(expected)
            self.room.release()
            yield result

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
        result = _receive(worker.connection)
        if worker.item is not None:
            self._finish(worker.item, result)
        worker.item = None

    def _finish(self, item: int, result: Result) -> None:
        del self.open[item]
        self.ready.put((item, result))

    def _start(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=_work, args=(theirs, self.spec, self.decode_one), daemon=True
        )
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
        item, request = worker.item, self.open[worker.item]
        self.deaths[item] = self.deaths.get(item, 0) + 1
        if self.deaths[item] < ATTEMPTS:
            self.retries.append(item)
            return
        reason = f"the decoder process died (exit code {code}), {ATTEMPTS} times"
        self._finish(item, Skipped(request.video_id, Path(request.path), reason))

    def _end(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.terminate()
        worker.process.join(1)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
