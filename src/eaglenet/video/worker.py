"""A worker process: one thread, limited memory, ends with its parent. And how to talk to it."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np

from eaglenet.core.errors import EagleNetError, UsageError, VideoDecodeError
from eaglenet.core.platform import exit_with_parent, limit_memory
from eaglenet.core.process import ChildProcess, start_child
from eaglenet.video.reader import OPEN_FILES

MAX_INLINE_BYTES = 4096
"""Size up to which an array is sent inside the pickle."""
_readv: Callable[[int, list[memoryview]], int] | None = getattr(os, "readv", None)


@dataclass(frozen=True)
class Message:
    """A pickle, and the arrays that it refers to."""

    content: bytes
    arrays: list[memoryview]


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which can be sent as plain bytes."""

    def reducer_override(self, value: Any) -> Any:
        # Without torch imported nothing is a tensor; importing it takes seconds.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def pack(value: Any) -> Message:
    """Pickle ``value``; raises like ``pickle`` if that is not possible."""
    arrays: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes <= MAX_INLINE_BYTES:
            return True
        arrays.append(buffer.raw())
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=is_small).dump(value)
    return Message(stream.getvalue(), arrays)


def send(connection: Connection, message: Message) -> None:
    """Send a message; raises ``OSError`` if the other process has ended."""
    connection.send((message.content, [array.nbytes for array in message.arrays]))
    for array in message.arrays:
        if _readv is None:
            connection.send_bytes(array)
            continue
        while len(array):
            array = array[os.write(connection.fileno(), array) :]


def receive(connection: Connection) -> Any:
    """Receive an object; raises ``EOFError`` or ``OSError`` if the other process has ended."""
    content, sizes = connection.recv()
    # A bytearray would be filled with zeros first.
    arrays = [np.empty(size, np.uint8) for size in sizes]
    for array in arrays:
        if _readv is None:
            connection.recv_bytes_into(array.data)
            continue
        rest = memoryview(array.data)
        while len(rest):
            count = _readv(connection.fileno(), [rest])
            if not count:
                raise EOFError
            rest = rest[count:]
    return pickle.loads(content, buffers=arrays)


Request = TypeVar("Request")

IDLE_SECONDS = 10.0
"""Seconds without a request after which a worker closes its open files."""


@dataclass(frozen=True)
class Reply:
    """A worker's answer: a result, or the reason why there is none."""

    result: Any = None
    reason: str | None = None


@dataclass
class Worker:
    """A worker process; ``item`` is the number of its request, if any."""

    process: ChildProcess
    connection: Connection
    is_ready: bool = False
    item: int | None = None
    started_at: float = 0.0


def start_worker(work: Callable[[Any], Any], memory: int | None) -> Worker:
    """Start a process that runs ``work`` on requests; its first message says that it is ready."""
    child = start_child(_work, work, os.getpid(), memory)
    return Worker(child.process, child.connection)


def end_worker(worker: Worker) -> None:
    """End a process; kill it if it does not react."""
    worker.connection.close()
    worker.process.terminate()
    worker.process.join(1)
    if worker.process.exitcode is None:
        worker.process.kill()
        worker.process.join()


def attempt(work: Callable[[Request], Any], request: Request) -> Reply:
    """Run ``work`` on a request and return its result or the reason for its failure."""
    try:
        return Reply(work(request))
    except VideoDecodeError as error:
        return Reply(reason=error.cause)
    except EagleNetError as error:
        return Reply(reason=str(error))
    except MemoryError:
        return Reply(reason="needs more memory than the limit for a file")
    except Exception as error:
        # One request must not end the run over all others.
        return Reply(reason=f"{type(error).__name__}: {error}")


def next_request(connection: Connection, idle_seconds: float = IDLE_SECONDS) -> Any:
    """Wait for a request; close open files if that takes long."""
    if not connection.poll(idle_seconds):
        OPEN_FILES.close()
    return connection.recv()


def _work(
    connection: Connection, work: Callable[[Any], Any], parent: int, memory: int | None
) -> None:
    """Answer requests until the parent closes the connection."""
    exit_with_parent(parent)
    # Ctrl-C reaches all processes; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = (
        "1"  # For libraries that the work imports; decoding does not need torch.
    )
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if memory is not None:
        limit_memory(memory)
    try:
        connection.send("ready")
        while True:
            request = next_request(connection)
            reply = attempt(work, request)
            try:
                message = pack(reply)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                message = pack(Reply(reason=f"{type(error).__name__}: {error}"))
            send(connection, message)
    except (EOFError, OSError):
        return


def _call(request: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = request
    return function(*arguments)


class IsolatedProcess:
    """Calls functions in a child process with limits; a crashed or slow process is replaced.

    Safe to use from several threads; calls run one after the other.
    """

    def __init__(self, memory: int, seconds: float) -> None:
        self.memory = memory
        self.seconds = seconds
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(*arguments)``; its errors and exceeded limits become ``UsageError``."""
        with self._lock:
            # On Linux it ends with the thread that started it.
            if self._worker is not None and not self._worker.process.is_alive():
                self._stop()
            if self._worker is None:
                self._worker = start_worker(_call, self.memory)
                self._worker.connection.recv()
            connection = self._worker.connection
            try:
                connection.send((function, arguments))
                if not connection.poll(self.seconds):
                    raise EagleNetError(f"took longer than {self.seconds:.0f} s")
                reply: Reply = receive(connection)
            except (EagleNetError, EOFError, OSError) as error:
                self._stop()
                reason = str(error) if isinstance(error, EagleNetError) else "the decoder crashed"
                raise UsageError(f"{reason}; use a smaller or another file") from None
            if reply.reason is not None:
                raise UsageError(reply.reason)
            return reply.result

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.process.kill()
            end_worker(self._worker)
            self._worker = None
