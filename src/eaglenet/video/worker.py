"""One process that works on requests: one thread, limited memory, and it dies with its parent."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from eaglenet.child_process import ChildProcess, start_child
from eaglenet.errors import EagleNetError, VideoDecodeError
from eaglenet.video.kept import KEPT
from eaglenet.video.limits import bound_memory, die_with_parent
from eaglenet.video.transport import pack, send

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
