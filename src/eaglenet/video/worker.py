"""Worker processes for untrusted files: confined, one per file, with checked replies.

On Linux a worker has two parts. The host imports what the work needs, confines itself as far as it
can, and opens no file. For each file it forks a process that confines itself completely
(:mod:`eaglenet.core.confinement`) and receives the file as an open descriptor. A file that takes
over its process reaches no other file, since the next one gets a new process. Workers can share a
host (:class:`Host`), since a host takes half a second to start. On other systems one
process serves all requests, with a limit on its memory only. A process that decodes on a GPU also
serves all requests, since CUDA does not survive a fork; on Linux it is confined, but may send
commands to the GPU.

Requests are pickled; replies come from a process that may be hostile and are binary messages
(:mod:`eaglenet.video.messages`).
"""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

from eaglenet.core import confinement
from eaglenet.core.errors import EagleNetError, UsageError, VideoDecodeError
from eaglenet.core.platform import exit_with_parent, limit_memory, limit_process
from eaglenet.core.process import Child, ChildProcess, clean_environment, start_child
from eaglenet.core.text import without_surrogates
from eaglenet.video import gpu, messages
from eaglenet.video.containers import load_pyav
from eaglenet.video.images import decoding_needs_threads, load_image_formats
from eaglenet.video.input_file import SharedFile, use_shared_file
from eaglenet.video.limits import MAX_SECONDS
from eaglenet.video.messages import MAX_BYTES, Layout, MessageError, Receiver, layout_of
from eaglenet.video.reader import OPEN_FILES

IS_FORKING = confinement.is_supported()
"""True if each file gets its own process. On macOS, forking is not safe with system libraries."""
CAN_SEND_FILES = hasattr(os, "readv")
"""True if connections are sockets, which can send descriptors; on Windows they are pipes."""
IDLE_SECONDS = 10.0
"""Seconds without a request after which a worker closes its open files."""
SEND_SECONDS = 10
"""Seconds within which a worker must accept a request."""
MESSAGE_SECONDS = 60.0
"""Seconds from the first to the last byte of a reply."""
MAX_REASON = 2000
"""Maximum characters of a failure's reason."""
CHUNK = 2**20
DEVICES = ("/dev/null", "/dev/zero", "/dev/dxg")
DRIVER_FILES = (
    *("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/sys", "/proc/self", "/proc/driver"),
    *("/proc/devices", "/proc/meminfo", "/proc/cpuinfo", "/proc/modules", "/proc/sys"),
)
"""Paths that CUDA reads: system libraries, and the kernel's description of the machine."""
HOST_DESCRIPTORS = 1024
"""Maximum open files of a host, which has a connection per worker."""
GPU_DESCRIPTORS = 1024
"""Maximum open files of a process with CUDA, which opens some per device, stream and decoder."""
END_SECONDS = 0.5
"""Seconds for which a host waits for the end of a process, which may be reading from a bad disk."""
INVALID_REPLY = "the decoder sent an invalid reply"
NO_FILTER = "the kernel does not accept a seccomp filter"
_START, _STOP, _CONNECT = b"start", b"stop", b"connect"
_EXIT_CODE = struct.Struct("<i")

Request = TypeVar("Request")
Started = TypeVar("Started")


@dataclass(frozen=True)
class Reply:
    """The reply of a worker: a result, or the reason why there is none."""

    result: Any = None
    reason: str | None = None


def reply_layout(result: Layout) -> Layout:
    """Return the layout of replies with results of the layout ``result``."""
    text = layout_of(str)

    def write(writer: messages.Writer, reply: Reply) -> None:
        writer.body.append(reply.reason is not None)
        if reply.reason is None:
            result.write(writer, reply.result)
        else:
            text.write(writer, reply.reason[:MAX_REASON])

    def read(reader: messages.Reader) -> Reply:
        if not messages.layout_of(bool).read(reader):
            return Reply(result.read(reader))
        return Reply(reason=valid_reason(text.read(reader)))

    return Layout(write, read)


def valid_reason(text: str) -> str:
    """Shorten a reason from a worker, and replace characters that cannot be stored."""
    return without_surrogates(text[:MAX_REASON])


def attempt(work: Callable[[Request], Any], request: Request) -> Reply:
    """Return the result of ``work`` on a request, or the reason for its failure."""
    try:
        return Reply(work(request))
    except VideoDecodeError as error:
        return Reply(reason=error.cause)
    except EagleNetError as error:
        return Reply(reason=str(error))
    except MemoryError:
        return Reply(reason="needs more memory than the limit for a file")
    except Exception as error:
        # One request must not end the run over all requests.
        if isinstance(error, OSError) and error.strerror:
            return Reply(reason=error.strerror)
        return Reply(reason=f"{type(error).__name__}: {error}")


# The parent's side


class Channel:
    """Sends requests to a process and receives its replies without blocking."""

    def __init__(self, connection: Connection, max_bytes: int = MAX_BYTES) -> None:
        self.connection = connection
        self.max_bytes = max_bytes
        self._socket = _socket_of(connection)
        self._received_bytes = memoryview(b"")
        self._receiver = Receiver(self._read, max_bytes)
        self._began_at = 0.0

    def send(self, request: Any, shared_file: SharedFile | None = None) -> None:
        """Send a request; raise ``OSError`` if the process has ended or does not read."""
        if shared_file is None or self._socket is None:
            # On Windows the worker opens the file itself.
            self.connection.send_bytes(pickle.dumps((request, None)))
            return
        self.connection.send_bytes(pickle.dumps((request, replace(shared_file, descriptor=None))))
        if shared_file.descriptor is not None:
            socket.send_fds(self._socket, [b"f"], [shared_file.descriptor])

    def receive(self) -> list[Any] | None:
        """Read the available bytes; return the buffers of the reply if it is complete.

        Raises ``EOFError`` or ``OSError`` if the process has ended, ``MessageError`` if the bytes
        are not a message or arrive too slowly.
        """
        deadline = time.monotonic() + 0.1  # Other workers are waiting, too.
        while time.monotonic() < deadline:
            try:
                buffers = self._receiver.advance()
            except BlockingIOError:
                break
            if buffers is not None:
                self._receiver = Receiver(self._read, self.max_bytes)
                self._began_at = 0.0
                return buffers
            self._began_at = self._began_at or time.monotonic()
        self.require_speed()
        return None

    def require_speed(self) -> None:
        """Raise ``MessageError`` if a reply has begun and is not complete after the time limit."""
        if self._began_at and time.monotonic() - self._began_at > MESSAGE_SECONDS:
            raise MessageError("the reply takes too long")

    def _read(self, buffer: memoryview) -> int:
        if self._socket is not None:
            return self._socket.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        if not len(self._received_bytes):
            if not self.connection.poll(0):
                raise BlockingIOError
            self._received_bytes = memoryview(self.connection.recv_bytes(2 * CHUNK))
        count = min(len(buffer), len(self._received_bytes))
        buffer[:count] = self._received_bytes[:count]
        self._received_bytes = self._received_bytes[count:]
        return count

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self.connection.close()


def _socket_of(connection: Connection) -> socket.socket | None:
    """Return a socket for a connection; None on Windows, where it is a pipe."""
    if not CAN_SEND_FILES:
        return None
    own = _duplicate(connection)
    # A hostile worker that does not read must not block the parent.
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_SECONDS, 0))
    return own


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
            self.control.send_bytes(_START)
            _send_descriptor(self.control, theirs.fileno())

    def stop(self) -> int | None:
        """End the process of the current file and return its exit code.

        On Linux the worker stays usable while its host is alive.
        """
        if self.is_forking and self.channel is not None:
            self.channel.close()
            self.channel = self.file = None
            with contextlib.suppress(OSError, EOFError, struct.error):
                self.control.send_bytes(_STOP)
                if self.control.poll(2):
                    return int(_EXIT_CODE.unpack(self.control.recv_bytes(64))[0])
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
    child = _start_host(work, memory, threads, uses_gpu)
    return Worker(child.process, child.connection, layout, max_bytes, uses_gpu=uses_gpu)


def _start_host(
    work: Callable[..., Any], memory: int | None, threads: bool = False, uses_gpu: bool = False
) -> Child:
    arguments = (work, os.getpid(), memory, threads, uses_gpu)
    return start_child(_host, *arguments, environment=clean_environment())


class Host:
    """A host that several workers share; the first one starts it. Linux only.

    work: a function whose module imports those of the workers' functions. A confined process can
        import nothing.
    memory: limit in bytes for each process, in addition to what the host uses.
    """

    def __init__(self, work: Callable[..., Any], memory: int) -> None:
        self.work = work
        self.memory = memory
        self._child: Child | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def connect(self, work: Callable[[Any], Any], *, threads: bool) -> Child:
        """Return the process of the host, and the connection of a new worker to it."""
        with self._lock:
            if self._is_closed:
                raise EagleNetError("the decoders have been closed")
            if self._child is None or not self._child.process.is_alive():
                self._end()
                self._child = _in_lasting_thread(partial(_start_host, self.work, self.memory))
            control, (ours, theirs) = self._child.connection, Pipe()
            # If the host has ended, reading from its connection raises EOFError.
            with contextlib.closing(theirs), contextlib.suppress(OSError):
                control.send_bytes(_CONNECT)
                control.send_bytes(pickle.dumps((work, threads)))
                _send_descriptor(control, theirs.fileno())
            return Child(self._child.process, ours)

    def close(self) -> None:
        """End the host and all processes that it has forked; it does not start again."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.connection.close()
            child.process.join(1)
            child.process.kill()
            child.process.join()


def _duplicate(connection: Connection) -> socket.socket:
    # With all three arguments Python needs no system call that a confined process may not make.
    kind = (socket.AF_UNIX, socket.SOCK_STREAM, 0)
    return socket.socket(*kind, fileno=os.dup(connection.fileno()))


def _send_descriptor(connection: Connection, descriptor: int) -> None:
    with _duplicate(connection) as carrier:
        socket.send_fds(carrier, [b"f"], [descriptor])


def _receive_descriptor(connection: Connection) -> int:
    with _duplicate(connection) as carrier:
        _, descriptors, _, _ = socket.recv_fds(carrier, 1, 1)
    if len(descriptors) != 1:
        raise EOFError
    return descriptors[0]


# The worker's side


def _host(
    control: Connection,
    work: Callable[[Any], Any],
    parent: int,
    memory: int | None,
    threads: bool,
    uses_gpu: bool,
) -> None:
    """Prepare this process, then serve requests or fork processes that do."""
    exit_with_parent(parent)
    # Ctrl-C reaches all processes; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    layout = reply_layout(layout_of(messages.result_type(work)))
    load_decoders()
    if uses_gpu:
        gpu.prepare()
    if memory is not None:
        limit_memory(memory, limits_addresses=not uses_gpu)
    with contextlib.suppress(EOFError, OSError):
        if not IS_FORKING:
            missing = [f"no confinement on {sys.platform}"]
        else:
            missing = confine_gpu_process() if uses_gpu else confine_host()
        control.send_bytes("\n".join(missing).encode())
        if uses_gpu or not IS_FORKING:
            _serve(control, work, layout)
        else:
            _fork_for_files(control, _Task(work, layout, threads), missing)


def confine_host() -> list[str]:
    """Confine a process that still forks; return reasons for missing confinement."""
    _discard_output()
    limit_process(cpu_seconds=round(MAX_SECONDS), descriptors=HOST_DESCRIPTORS)
    reasons = (confinement.drop_capabilities(), confinement.restrict_files())
    return [reason for reason in reasons if reason is not None] + _filter_problems()


def confine_gpu_process() -> list[str]:
    """Confine a process with a CUDA context; return reasons for missing confinement.

    It may open what the driver opens. CUDA does not start under Landlock, so the threads of the
    driver start before and keep their access to files; the system call filter applies to them, too.
    """
    _discard_output()
    limit_process(cpu_seconds=round(MAX_SECONDS), descriptors=GPU_DESCRIPTORS)
    devices = [*glob.glob("/dev/nvidia*"), *DEVICES]
    reasons = (
        confinement.drop_capabilities(),
        confinement.restrict_files(readable=DRIVER_FILES, devices=devices),
        confinement.restrict_system_calls(threads=True, devices=True),
    )
    return [reason for reason in reasons if reason is not None]


def _discard_output() -> None:
    """Discard standard output and errors, since a terminal interprets escape sequences."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (1, 2):
        os.dup2(null, standard)
    os.close(null)


def _filter_problems() -> list[str]:
    """Try the system call filter in a forked process, since it cannot be removed."""
    child = os.fork()
    if child == 0:
        os._exit(0 if confinement.restrict_system_calls(threads=False) is None else 1)
    _, status = os.waitpid(child, 0)
    return [] if status == 0 else [NO_FILTER]


@dataclass
class _Task:
    """Work of a worker, and the process of its current file, if any."""

    work: Callable[[Any], Any]
    layout: Layout
    threads: bool
    child: int | None = None

    def end_child(self) -> int:
        """End the process of the file; see :func:`_end_child`."""
        child, self.child = self.child, None
        return _end_child(child)


def _fork_for_files(control: Connection, task: _Task, missing: list[str]) -> None:
    """Start and end one process per file, as the workers request, while ``control`` is open."""
    tasks = {control: task}
    # Keeps the memory of existing objects shared between the processes.
    gc.collect()
    gc.freeze()
    while control in tasks:
        for connection in wait(list(tasks)):
            assert isinstance(connection, Connection)
            try:
                _obey(connection, tasks, missing)
            except (EOFError, OSError):
                connection.close()
                tasks.pop(connection).end_child()
    for task in tasks.values():
        task.end_child()


def _obey(connection: Connection, tasks: dict[Connection, _Task], missing: list[str]) -> None:
    """Do what a worker requests: connect another worker, or end its process or start a new one."""
    command = connection.recv_bytes(16)
    if command == _CONNECT:
        content = connection.recv_bytes()
        control = Connection(_receive_descriptor(connection))
        try:
            work, threads = pickle.loads(content)
            layout = reply_layout(layout_of(messages.result_type(work)))
            control.send_bytes("\n".join(missing).encode())
        except Exception:
            # The pool may have closed its worker already. That must not end the workers of others.
            control.close()
        else:
            tasks[control] = _Task(work, layout, threads)
        return
    task = tasks[connection]
    code = task.end_child()
    if command == _STOP:
        connection.send_bytes(_EXIT_CODE.pack(code))
        return
    host, threads = os.getpid(), task.threads or decoding_needs_threads()
    confinement.pack_filter(threads=threads)
    descriptor = _receive_descriptor(connection)
    # If no process can be forked, the descriptor must be closed: others would inherit it.
    with contextlib.suppress(OSError):
        task.child = os.fork()
    if task.child == 0:
        code = 1
        try:
            exit_with_parent(host)
            for each in tasks:
                each.close()
            limit_process(can_start=threads)
            # Within the rules of the host, so that processes of other files are out of reach, too.
            confinement.restrict_files()
            if confinement.restrict_system_calls(threads=threads) and NO_FILTER not in missing:
                raise SystemExit(1)
            _serve(Connection(descriptor), task.work, task.layout)
        except (EOFError, OSError):
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        finally:
            os._exit(code)  # Never return to the code of the host.
    os.close(descriptor)


_ending: list[int] = []
"""Killed processes that have not ended yet."""


def _end_child(child: int | None) -> int:
    """End a forked process; return its exit code, or the negative number of its signal."""
    _ending[:] = [each for each in _ending if not os.waitpid(each, os.WNOHANG)[0]]
    if child is None:
        return 0
    pid, status = os.waitpid(child, os.WNOHANG)
    if not pid:
        os.kill(child, signal.SIGKILL)
        deadline, pause = time.monotonic() + END_SECONDS, 0.0002
        while not pid and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
            pid, status = os.waitpid(child, os.WNOHANG)
        if not pid:
            _ending.append(child)
            return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)


def load_decoders() -> None:
    """Import everything that decoding may need, since a confined process cannot open files."""
    load_image_formats()
    for name in ("utf-8", "utf-16", "utf-32", "latin-1", "cp1252", "ascii", "idna"):
        "".encode(name)
    with contextlib.suppress(UsageError):  # PyAV is not installed; each video is reported.
        load_pyav()


def next_request(connection: Connection, idle_seconds: float = IDLE_SECONDS) -> bytes:
    """Wait for a request; close open files after ``idle_seconds``."""
    if not connection.poll(idle_seconds):
        OPEN_FILES.close()
    return connection.recv_bytes()


def _serve(connection: Connection, work: Callable[[Any], Any], layout: Layout) -> None:
    """Reply to requests until the parent closes the connection."""
    while True:
        request, shared_file = pickle.loads(next_request(connection))
        if shared_file is not None:
            if shared_file.error is None:
                shared_file.descriptor = _receive_descriptor(connection)
            use_shared_file(shared_file)
        reply = attempt(work, request)
        try:
            parts = messages.pack(layout, reply)
        except TypeError as error:
            parts = messages.pack(layout, Reply(reason=f"TypeError: {error}"))
        for part in parts:
            _write(connection, memoryview(part))


def _write(connection: Connection, content: memoryview) -> None:
    """Write bytes without a header."""
    while len(content):
        if not CAN_SEND_FILES:
            connection.send_bytes(content[:CHUNK])
            content = content[CHUNK:]
        else:
            content = content[os.write(connection.fileno(), content) :]


def check_reply(check: Callable[[Any, Any], None] | None, request: Any, reply: Reply) -> None:
    """Raise ``MessageError`` if ``check`` refuses the result of a reply by a ``ValueError``."""
    if reply.reason is None and check is not None:
        try:
            check(request, reply.result)
        except ValueError as error:
            raise MessageError(str(error)) from error


def _renew_starter() -> None:
    global _starter
    _starter = ThreadPoolExecutor(1, thread_name_prefix="decoders")


_starter: ThreadPoolExecutor
"""Lasting thread: on Linux a process ends with the thread that started it, while another thread may
be using it."""
_renew_starter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_starter)  # A forked process has no such thread.


def _in_lasting_thread(start: Callable[[], Started]) -> Started:
    if threading.current_thread() is threading.main_thread():
        return start()
    try:
        future = _starter.submit(start)
    except RuntimeError:  # The main thread has ended, and Python waits for the others.
        return start()
    return future.result()


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
            self._worker = _in_lasting_thread(start)
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
