"""Worker processes for untrusted files: confined, one per file, with checked replies.

    worker = start_worker(work)
    process = IsolatedProcess(work, memory, seconds)   # a worker that is replaced if it fails
    result = process(request)

On Linux a worker has two parts: a host, and a process that the host forks for each file
(:mod:`eaglenet.video.worker_host`). A file that takes over its process reaches no other file, since
the next one gets a new process. Workers can share a host, since a host takes half a second to
start. On other systems one process serves all requests, with a limit on its memory only. A process
that decodes on a GPU also serves all requests, since CUDA does not survive a fork; on Linux it is
confined, but may send commands to the GPU.

:mod:`eaglenet.video.worker_channel` says what passes between a worker and its parent.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any

from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.process import ChildProcess
from eaglenet.video import messages
from eaglenet.video.input_file import SharedFile
from eaglenet.video.messages import MAX_BYTES, Layout, MessageError, layout_of
from eaglenet.video.worker_channel import Channel, Reply, check_reply, reply_layout, send_descriptor
from eaglenet.video.worker_host import (
    EXIT_CODE,
    IS_FORKING,
    START,
    STOP,
    Host,
    in_lasting_thread,
    start_host,
)


@dataclass
class Worker:
    """A worker process; ``item`` is the number of its request, if any."""

    process: ChildProcess
    control: Connection
    layout: Layout
    max_bytes: int = MAX_BYTES
    channel: Channel | None = None
    file: tuple[str | int, ...] | None = None
    """Identity of the file for which the current process was started."""
    missing: tuple[str, ...] = ()
    """Parts of the confinement that this system does not provide."""
    is_ready: bool = False
    item: int | None = None
    started_at: float = 0.0
    uses_gpu: bool = False
    """True if it decodes on the GPU, in one process for all files."""
    shares_host: bool = False
    """True if ``process`` serves other workers, too."""

    @property
    def is_forking(self) -> bool:
        """True if each file gets its own process."""
        return IS_FORKING and not self.uses_gpu

    @property
    def connection(self) -> Connection:
        """The connection on which the next message arrives."""
        return self.control if self.channel is None else self.channel.connection

    def read_ready(self) -> None:
        """Read the first message, which comes when the process is confined."""
        text = self.control.recv_bytes(2**16).decode()
        self.missing = tuple(text.splitlines())
        self.is_ready = True
        if not self.is_forking:
            self.channel = Channel(self.control, self.max_bytes)

    def send(self, request: Any, shared_file: SharedFile | None = None) -> None:
        """Send a request; a new process handles it if its file differs from the last one.

        Another file at the same path is another file.
        """
        file = None if shared_file is None else shared_file.identity
        if self.channel is None or (self.is_forking and file != self.file):
            self._fork()
        self.file = file
        assert self.channel is not None
        self.channel.send(request, shared_file)

    def receive(self) -> Reply | None:
        """Return the reply if it is complete; see :meth:`Channel.receive`."""
        assert self.channel is not None
        buffers = self.channel.receive()
        if buffers is None:
            return None
        reply: Reply = messages.unpack(self.layout, buffers)
        return reply

    def require_speed(self) -> None:
        """Raise ``MessageError`` if the reply takes too long; see :class:`Channel`."""
        if self.channel is not None:
            self.channel.require_speed()

    def require_silence(self) -> None:
        """Raise an error, since a process without a request has ended or sent a message."""
        if self.channel is None:
            raise EOFError
        self.channel.receive()
        raise MessageError("a reply without a request")

    def _fork(self) -> None:
        if self.channel is not None:
            self.channel.close()
        ours, theirs = Pipe()
        with contextlib.closing(theirs):
            self.channel = Channel(ours, self.max_bytes)
            self.control.send_bytes(START)
            send_descriptor(self.control, theirs.fileno())

    def stop(self) -> int | None:
        """End the process of the current file and return its exit code.

        On Linux the worker stays usable while its host is alive.
        """
        if self.is_forking and self.channel is not None:
            self.channel.close()
            self.channel = self.file = None
            with contextlib.suppress(OSError, EOFError, struct.error):
                self.control.send_bytes(STOP)
                if self.control.poll(2):
                    return int(EXIT_CODE.unpack(self.control.recv_bytes(64))[0])
                self.kill()  # It does not respond to other workers either.
        self.is_ready = False
        # A process closes its pipes a moment before its exit code is known.
        self.process.join(1)
        return self.process.exitcode

    def kill(self) -> None:
        """Kill the host; the kernel then kills the process that it forked."""
        self.process.kill()

    def end(self) -> None:
        """End the processes and wait until they have ended."""
        if self.channel is not None:
            self.channel.close()
        self.control.close()
        if self.shares_host:
            return  # The host ends the process that it forked.
        if self.is_forking and self.is_ready:
            # The host ends its process, whose processor time then counts as that of a child.
            self.process.join(1)
        self.process.terminate()
        self.process.join(1)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


def start_worker(
    work: Callable[[Any], Any],
    memory: int | None = None,
    *,
    threads: bool = False,
    max_bytes: int = MAX_BYTES,
    uses_gpu: bool = False,
    host: Host | None = None,
) -> Worker:
    """Start a process that runs ``work`` on requests; its first message says that it is ready.

    The return annotation of ``work`` defines the layout of its replies.

    memory: limit in bytes, in addition to what the process uses when idle.
    threads: the work may start threads.
    uses_gpu: decode videos on the GPU.
    host: process to fork from, whose memory limit then applies.
    """
    layout = reply_layout(layout_of(messages.result_type(work)))
    if host is not None and IS_FORKING and not uses_gpu:
        child = host.connect(work, threads=threads)
        return Worker(child.process, child.connection, layout, max_bytes, shares_host=True)
    child = start_host(work, memory, threads, uses_gpu)
    return Worker(child.process, child.connection, layout, max_bytes, uses_gpu=uses_gpu)


class IsolatedProcess:
    """Calls a function in a worker, with limits; a crashed or slow process is replaced.

    Safe to use from several threads; calls run one after the other.

    memory, threads: see :func:`start_worker`.
    seconds: time limit per call.
    check: raises ``ValueError`` if a result does not fit its request.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        memory: int,
        seconds: float,
        check: Callable[[Any, Any], None] | None = None,
        *,
        threads: bool = False,
    ) -> None:
        self.work = work
        self.check = check
        self.threads = threads
        self.memory = memory
        self.seconds = seconds
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._closed = threading.Event()

    def __call__(self, request: Any, shared_file: SharedFile | None = None) -> Any:
        """Return ``work(request)``; errors and exceeded limits raise ``UsageError``."""
        with self._lock:
            if self._worker is not None and not self._worker.process.is_alive():
                self._stop()
            try:
                reply = self._call(request, shared_file)
            except (EagleNetError, MessageError, EOFError, OSError) as error:
                self._stop()
                reason = str(error) if isinstance(error, EagleNetError) else "the decoder crashed"
                raise UsageError(f"{reason}; use a smaller or another file") from None
            if reply.reason is not None:
                raise UsageError(reply.reason)
            return reply.result

    def start(self) -> None:
        """Start the process if it is not running; do not wait until it is ready."""
        with self._lock:
            self._start()

    def _start(self) -> Worker:
        if self._closed.is_set():
            raise EagleNetError("the service is shutting down")
        if self._worker is None:
            start = partial(start_worker, self.work, self.memory, threads=self.threads)
            self._worker = in_lasting_thread(start)
            # `close` kills the worker that it sees; it may have looked before this one was there.
            if self._closed.is_set():
                self._stop()
                raise EagleNetError("the service is shutting down")
        return self._worker

    def _call(self, request: Any, shared_file: SharedFile | None) -> Reply:
        worker = self._start()
        if not worker.is_ready:
            worker.read_ready()
        deadline = time.monotonic() + self.seconds
        worker.file = None
        worker.send(request, shared_file)
        while (seconds_left := deadline - time.monotonic()) > 0:
            if worker.connection.poll(seconds_left) and (reply := worker.receive()) is not None:
                check_reply(self.check, request, reply)
                return reply
        raise EagleNetError(f"took longer than {self.seconds:.0f} s")

    def close(self) -> None:
        """Kill the process; a call in progress fails."""
        self._closed.set()
        worker = self._worker
        if worker is not None:
            worker.kill()
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.end()
            self._worker = None

    def __del__(self) -> None:
        # While the interpreter shuts down this may fail; the process then ends with it.
        with contextlib.suppress(Exception):
            self._stop()
