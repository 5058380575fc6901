"""Decoder processes forked from one that has imported everything.

A decoder starts Python and imports numpy and PyAV: half a second of processor time, hundreds of
times in a run of the tests. Here one process per run of pytest does that, and forks for each
decoder. What it forks becomes a child of the process that asked, as a decoder is, and runs the same
function, which confines it the same way. ``tests/hostile`` and ``tests/video`` start real ones, and
so does a process that a test starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from eaglenet.core.process import (
    Child,
    ChildProcess,
    child_command,
    clean_environment,
    module_path,
    start_child,
)

CLONE_PARENT = 0x8000
CLONE_CALLS = {"aarch64": 220, "x86_64": 56}
"""Number of the system call by machine."""
WITH_REAL_ONES = ("tests/hostile/", "tests/video/")
IS_SUPPORTED = sys.platform == "linux" and platform.machine() in CLONE_CALLS


class ForkedProcess(ChildProcess):
    """A child of this process that another one forked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._exitcode: int | None = None
        self._handle = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._handle)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exitcode(self) -> int | None:
        if self._exitcode is None:
            with contextlib.suppress(ChildProcessError):  # Another thread waited for it.
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    self._exitcode = os.waitstatus_to_exitcode(status)
        return self._exitcode

    def is_alive(self) -> bool:
        return self.exitcode is None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        if self.exitcode is None:
            select.select([self._handle], [], [], timeout)

    def _send(self, number: int) -> None:
        if self.exitcode is None:
            signal.pidfd_send_signal(self._handle, number)


class WarmStarter:
    """Starts children as ``start_child`` does, by the process that has imported everything.

    Made in the main thread: the kernel ends decoders with the thread that has this process.
    """

    def __init__(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = child_command(__name__, str(theirs.fileno()))
        self._process = subprocess.Popen(
            command, env=clean_environment(), pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def start_child(
        self, target: Callable[..., None], *arguments: Any, environment: Mapping[str, str]
    ) -> Child:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if test.startswith(WITH_REAL_ONES) or os.getpid() != self._owner:
            return start_child(target, *arguments, environment=environment)
        ours, theirs = Pipe()
        request = (module_path(), os.getcwd(), dict(environment))
        with theirs, self._lock:
            socket.send_fds(self._connection, [pickle.dumps(request)], [theirs.fileno()])
            pid = int(self._connection.recv(20))
        ours.send_bytes(pickle.dumps((target, arguments)))
        return Child(ForkedProcess(pid), ours)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


def main() -> None:
    """Fork for each request until the other end is closed."""
    from eaglenet.indexing import inspection  # noqa: F401
    from eaglenet.video import decoding, worker  # noqa: F401

    worker.load_decoders()
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, 2**20, 1)
        if not request:
            return
        pid = fork_sibling()
        if pid == 0:
            connection.close()
            run(Connection(descriptors[0]), *pickle.loads(request))
        os.close(descriptors[0])
        connection.send(str(pid).encode())


def fork_sibling() -> int:
    """Fork a child of this process's parent."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    flags = ctypes.c_long(CLONE_PARENT | signal.SIGCHLD)
    zeros = [ctypes.c_long(0)] * 4
    number = ctypes.c_long(CLONE_CALLS[platform.machine()])
    pid = int(ctypes.PyDLL(None).syscall(number, flags, *zeros))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def run(connection: Connection, path: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run the function that the parent sends, as in a new process, and exit."""
    code = 1
    try:
        sys.path[:] = path
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        target, arguments = pickle.loads(connection.recv_bytes())
        target(connection, *arguments)
        code = 0
    except EOFError:  # The parent ended meanwhile.
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
