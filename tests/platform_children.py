"""Functions that tests of the system run in new processes, which import little with this module."""

from __future__ import annotations

import os
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from eaglenet.core import platform
from eaglenet.core.process import start_child


def start_allocating(connection: Connection, is_proc_hidden: bool) -> None:
    """Allocate in a child of this small process; send its message and exit code.

    A process inherits the peak memory of its parent: gigabytes after many tests.
    """
    child = start_child(allocate, is_proc_hidden)
    is_limited = child.connection.recv()
    child.process.join(60)
    connection.send((is_limited, child.process.exitcode))


def allocate(connection: Connection, is_proc_hidden: bool) -> None:
    """Allocate more than the limit."""
    if is_proc_hidden:
        platform.PROC = Path("/missing")
    connection.send(platform.limit_memory(2**26))
    try:
        blocks = []
        for _ in range(64 + platform._peak_resident_bytes(resource) // 2**23):
            blocks.append(bytearray(os.urandom(2**12) * 2**11))
            time.sleep(0.01)
        time.sleep(60)  # A watchdog looks now and then.
    except MemoryError:
        os._exit(7)


def limit_under_limits(connection: Connection) -> None:
    """As after ``ulimit -v`` and ``ulimit -d``, a lower limit cannot be raised."""
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        resource.setrlimit(kind, (2**32, 2**32))
    os.setresuid(65534, 65534, 65534) if os.getuid() == 0 else None
    platform.limit_memory(2**33)
    connection.send(
        [resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    )


def burn(connection: Connection) -> None:
    platform._import_resource = lambda: None  # type: ignore[assignment]
    connection.send(platform.limit_memory(2**20))
    platform.limit_process(cpu_seconds=int(time.process_time()) + 1)
    while True:
        pass


def start_grandchild(connection: Connection, is_prctl_hidden: bool) -> None:
    child = start_child(wait_forever, os.getpid(), is_prctl_hidden)
    connection.send(child.connection.recv())
    connection.recv()


def wait_forever(connection: Connection, parent: int, is_prctl_hidden: bool) -> None:
    if is_prctl_hidden:
        platform._libc_function = lambda name: None  # type: ignore[assignment]
    platform.exit_with_parent(parent)
    connection.send(os.getpid())
    time.sleep(600)


class SlowArgument:
    """Waits in unpickling until a FIFO is opened for writing, like the import of a large module."""

    def __init__(self, fifo: Path) -> None:
        self.fifo = fifo

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, (str(self.fifo),)


def tell_handler(connection: Connection, _argument: object) -> None:
    connection.send(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
