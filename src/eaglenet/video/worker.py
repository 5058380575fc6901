"""One process that works on requests: one thread, limited memory, and it dies with its parent."""

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
from eaglenet.core.process import ChildProcess, start_child
from eaglenet.video.limits import bound_memory, die_with_parent
from eaglenet.video.reader import KEPT

# Objects from one process to another: tensors and arrays in them go as they are.

SMALL = 4096
"""Bytes up to which an array goes with the pickle rather than by itself."""
_readv: Callable[[int, list[memoryview]], int] | None = getattr(os, "readv", None)


@dataclass(frozen=True)
class Packed:
    """A pickle, and the arrays that it only names."""

    content: bytes
    arrays: list[memoryview]


class _Pickler(pickle.Pickler):
    """Tensors as the arrays they are, which can be sent as plain bytes."""

    def reducer_override(self, value: Any) -> Any:
        # Where torch was not imported nothing is a tensor, and importing it takes seconds.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def pack(value: Any) -> Packed:
    """Raises as ``pickle`` does where something in ``value`` cannot leave its process."""
    arrays: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes <= SMALL:
            return True
        arrays.append(buffer.raw())
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=is_small).dump(value)
    return Packed(stream.getvalue(), arrays)


def send(connection: Connection, packed: Packed) -> None:
    """Write what :func:`receive` reads; ``OSError`` where nobody is there any more."""
    connection.send((packed.content, [array.nbytes for array in packed.arrays]))
    for array in packed.arrays:
        if _readv is None:
            connection.send_bytes(array)
            continue
        while len(array):
            array = array[os.write(connection.fileno(), array) :]


def receive(connection: Connection) -> Any:
    """The next object; ``EOFError`` or ``OSError`` where nobody is there any more."""
    content, sizes = connection.recv()
    # Not filled with zeros first, as a bytearray would be.
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
"""Without a request, after which no file is kept open."""


@dataclass(frozen=True)
class Reply:
    """What comes back from a worker; it keeps to itself what was asked."""

    result: Any = None
    reason: str | None = None


@dataclass
class Worker:
    """A worker process as its parent sees it; ``item`` is what it works on, since ``began``."""

    process: ChildProcess
    connection: Connection
    is_ready: bool = False
    item: int | None = None
    began: float = 0.0


def start_worker(work: Callable[[Any], Any], memory: int | None) -> Worker:
    """Start a process that does ``work`` on requests; it says when it is ready."""
    child = start_child(_work, work, os.getpid(), memory)
    return Worker(child.process, child.connection)


def end_worker(worker: Worker) -> None:
    """End a process, by force where it does not listen."""
    worker.connection.close()
    worker.process.terminate()
    worker.process.join(1)
    if worker.process.exitcode is None:
        worker.process.kill()
        worker.process.join()


def attempt(work: Callable[[Request], Any], request: Request) -> Reply:
    """What the work gives, or in words why it gives nothing."""
    try:
        return Reply(work(request))
    except VideoDecodeError as error:
        return Reply(reason=error.cause)
    except EagleNetError as error:
        return Reply(reason=str(error))
    except MemoryError:
        return Reply(reason="it needs more memory than a file may have")
    except Exception as error:
        # Nothing that one request does may end the run over all the others.
        return Reply(reason=f"{type(error).__name__}: {error}")


def next_request(connection: Connection, idle_seconds: float = IDLE_SECONDS) -> Any:
    """Wait for something to do; one who waits long keeps no file open meanwhile."""
    if not connection.poll(idle_seconds):
        KEPT.close()
    return connection.recv()


def _work(
    connection: Connection, work: Callable[[Any], Any], parent: int, memory: int | None
) -> None:
    """Body of a worker process: requests in, answers out, until the other side is gone."""
    die_with_parent(parent)
    # Ctrl-C reaches the whole group; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # For what the work imports later; decoding needs no torch.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if memory is not None:
        bound_memory(memory)
    try:
        connection.send("ready")
        while True:
            request = next_request(connection)
            answer = attempt(work, request)
            try:
                content = pack(answer)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                content = pack(Reply(reason=f"{type(error).__name__}: {error}"))
            send(connection, content)
    except (EOFError, OSError):
        return


# Calls in a process of its own: what a broken file does there ends nothing here.


def _call(request: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = request
    return function(*arguments)


class Isolated:
    """Calls functions in one process of its own with limits; replaced when it dies or is slow.

    Safe to use from several threads, which wait for each other.
    """

    def __init__(self, memory: int, seconds: float) -> None:
        self.memory = memory
        self.seconds = seconds
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function`` gives; an error of its own, or of the limits, is an EagleNetError."""
        with self._lock:
            # It dies with the thread that started it, and threads of a service come and go.
            if self._worker is not None and not self._worker.process.is_alive():
                self._stop()
            if self._worker is None:
                self._worker = start_worker(_call, self.memory)
                self._worker.connection.recv()
            connection = self._worker.connection
            try:
                connection.send((function, arguments))
                if not connection.poll(self.seconds):
                    raise EagleNetError(f"it took longer than {self.seconds:.0f} s")
                answer: Reply = receive(connection)
            except (EagleNetError, EOFError, OSError) as error:
                self._stop()
                reason = str(error) if isinstance(error, EagleNetError) else "the decoder crashed"
                raise UsageError(f"{reason}; give a smaller or another file") from None
            if answer.reason is not None:
                raise UsageError(answer.reason)
            return answer.result

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.process.kill()
            end_worker(self._worker)
            self._worker = None
