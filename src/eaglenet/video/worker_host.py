"""Hosts of workers: processes that fork a confined process for each untrusted file.

A host imports what the work needs, confines itself as far as it can, and opens no file. The process
that it forks confines itself completely (:mod:`eaglenet.video.confinement`), receives the file as
an open descriptor, and serves the requests for it. On systems other than Linux, and for decoding on
a GPU, the host serves all requests itself.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.platform import exit_with_parent, limit_memory, limit_process
from eaglenet.core.process import Child, clean_environment, start_child
from eaglenet.video import confinement, gpu, messages
from eaglenet.video.containers import load_pyav
from eaglenet.video.images import decoding_needs_threads, load_image_formats
from eaglenet.video.input_file import use_shared_file
from eaglenet.video.limits import MAX_SECONDS
from eaglenet.video.messages import Layout, layout_of
from eaglenet.video.reader import OPEN_FILES
from eaglenet.video.worker_channel import (
    Reply,
    attempt,
    receive_descriptor,
    reply_layout,
    send_descriptor,
    write_bytes,
)

IS_FORKING = confinement.is_supported()
"""True if each file gets its own process. On macOS, forking is not safe with system libraries."""
IDLE_SECONDS = 10.0
"""Seconds without a request after which a worker closes its open files."""
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
NO_FILTER = "the kernel does not accept a seccomp filter"
START, STOP, CONNECT = b"start", b"stop", b"connect"
"""Commands to a host: start a process for a file, end it, connect another worker."""
EXIT_CODE = struct.Struct("<i")
"""Reply to ``STOP``."""

Started = TypeVar("Started")


# The parent's side


def _renew_starter() -> None:
    global _starter
    _starter = ThreadPoolExecutor(1, thread_name_prefix="decoders")


_starter: ThreadPoolExecutor
"""Lasting thread: on Linux a process ends with the thread that started it, while another thread may
be using it."""
_renew_starter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_starter)  # A forked process has no such thread.


def in_lasting_thread(start: Callable[[], Started]) -> Started:
    """Return ``start()``, called in a thread that lasts as long as this process."""
    if threading.current_thread() is threading.main_thread():
        return start()
    try:
        future = _starter.submit(start)
    except RuntimeError:  # The main thread has ended, and Python waits for the others.
        return start()
    return future.result()


def start_host(
    work: Callable[..., Any], memory: int | None, threads: bool = False, uses_gpu: bool = False
) -> Child:
    """Start a host; for the arguments see :func:`eaglenet.video.worker.start_worker`."""
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
                self._child = in_lasting_thread(partial(start_host, self.work, self.memory))
            control, (ours, theirs) = self._child.connection, Pipe()
            # If the host has ended, reading from its connection raises EOFError.
            with contextlib.closing(theirs), contextlib.suppress(OSError):
                control.send_bytes(CONNECT)
                control.send_bytes(pickle.dumps((work, threads)))
                send_descriptor(control, theirs.fileno())
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


# The host


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


def load_decoders() -> None:
    """Import everything that decoding may need, since a confined process cannot open files."""
    load_image_formats()
    for name in ("utf-8", "utf-16", "utf-32", "latin-1", "cp1252", "ascii", "idna"):
        "".encode(name)
    with contextlib.suppress(UsageError):  # PyAV is not installed; each video is reported.
        load_pyav()


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
    if command == CONNECT:
        content = connection.recv_bytes()
        control = Connection(receive_descriptor(connection))
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
    if command == STOP:
        connection.send_bytes(EXIT_CODE.pack(code))
        return
    host, threads = os.getpid(), task.threads or decoding_needs_threads()
    confinement.pack_filter(threads=threads)
    descriptor = receive_descriptor(connection)
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


# The process that serves requests: forked for a file, or the host itself


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
                shared_file.descriptor = receive_descriptor(connection)
            use_shared_file(shared_file)
        reply = attempt(work, request)
        try:
            parts = messages.pack(layout, reply)
        except TypeError as error:
            parts = messages.pack(layout, Reply(reason=f"TypeError: {error}"))
        for part in parts:
            write_bytes(connection, memoryview(part))
