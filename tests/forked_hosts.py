"""Hosts of decoders, forked from one template process that has imported what each of them imports.

A new interpreter needs half a second for that. A forked host has the environment, the module path
and the current folder of the test, imports the work itself, and confines itself like any other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from eaglenet.core import process
from eaglenet.core.platform import exit_with_parent
from eaglenet.core.process import Child, clean_environment, module_path, start_child
from eaglenet.video.worker_host import load_decoders

PR_SET_CHILD_SUBREAPER = 36


class ForkedProcess:
    """A child of this process, with the methods of ``ChildProcess``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    @property
    def exitcode(self) -> int | None:
        with self._lock:
            if self._code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            return self._code

    def is_alive(self) -> bool:
        return self.exitcode is None

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.is_alive():
            os.kill(self.pid, number)

    def join(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (end is None or time.monotonic() < end):
            time.sleep(0.001)


class Template:
    """A process that forks hosts; they become children of this process."""

    def __init__(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        child = start_child(serve_forks, os.getpid(), environment=clean_environment())
        self._process, self._connection = child.process, child.connection

    def start(
        self,
        target: Callable[..., None],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a host like :func:`start_child`."""
        if os.getpid() != self._owner:  # A process that a test has forked.
            return start_child(target, *arguments, environment=environment)
        task = pickle.dumps((target, arguments))
        ours, theirs = Pipe()
        with contextlib.closing(theirs), self._lock:
            request = (os.getpid(), os.getcwd(), module_path(), dict(environment or os.environ))
            # An orphan, as which the host begins, becomes a child of a subreaper above it.
            _prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                self._connection.send(request)
                with _socket_of(self._connection) as carrier:
                    socket.send_fds(carrier, [b"f"], [theirs.fileno(), 1, 2])
                pid = self._connection.recv()
            finally:
                _prctl(PR_SET_CHILD_SUBREAPER, 0)
        with contextlib.suppress(OSError):
            ours.send_bytes(task)
        return Child(ForkedProcess(pid), ours)  # type: ignore[arg-type]

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()


def _prctl(option: int, value: int) -> None:
    assert ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0


def _socket_of(connection: Connection) -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=os.dup(connection.fileno()))


def serve_forks(connection: Connection, parent: int) -> None:
    """Fork a host for each request."""
    exit_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_decoders()
    with contextlib.suppress(EOFError):
        while True:
            request = connection.recv()
            with _socket_of(connection) as carrier:
                _, descriptors, _, _ = socket.recv_fds(carrier, 1, 3)
            reader, writer = os.pipe()
            between = os.fork()
            if between == 0:
                host = os.fork()
                if host == 0:
                    os.close(reader)
                    os.close(writer)
                    connection.close()
                    _become_host(descriptors, *request)
                os.write(writer, str(host).encode())
                os._exit(0)
            os.close(writer)
            os.waitpid(between, 0)
            with open(reader) as numbers:
                connection.send(int(numbers.read()))
            for descriptor in descriptors:
                os.close(descriptor)


def _become_host(
    descriptors: list[int], parent: int, folder: str, path: list[str], environment: dict[str, str]
) -> None:
    code = 0
    try:
        control, *streams = descriptors
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        deadline = time.monotonic() + 60
        while os.getppid() != parent and time.monotonic() < deadline:
            time.sleep(0.0005)
        sys.argv[1:] = [str(control)]
        process.main(handler=signal.SIG_IGN)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    finally:
        os._exit(code)
