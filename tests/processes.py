"""Real processes for tests: forked, so that they need no second import of everything."""

import contextlib
import itertools
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

import torch


def start(function: Callable[[], None], **environment: str) -> int:
    """Fork a child that runs ``function`` and exits; gives its process id."""
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        os.environ.update(environment)
        torch.set_num_threads(1)
        function()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        code = 1
    finally:
        os._exit(code)


def start_printing(function: Callable[[], None], **environment: str) -> tuple[int, TextIO]:
    """Fork a child; gives its process id, and what it prints to either stream."""
    reader, writer = os.pipe()

    def printing() -> None:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        function()

    child = start(printing, **environment)
    os.close(writer)
    return child, open(reader)


@dataclass(frozen=True)
class Piped:
    """A child and the other ends of its standard streams."""

    pid: int
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO


def start_piped(function: Callable[[], None]) -> Piped:
    """Fork a child whose standard streams are pipes."""
    (own_in, stdin), (stdout, own_out), (stderr, own_err) = pipes = [os.pipe() for _ in range(3)]

    def work() -> None:
        for number, own in enumerate((own_in, own_out, own_err)):
            os.dup2(own, number)
        for descriptor in itertools.chain(*pipes):
            os.close(descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        function()

    child = start(work)
    for descriptor in (own_in, own_out, own_err):
        os.close(descriptor)
    return Piped(
        child,
        open(stdin, "w", encoding="utf-8"),
        open(stdout, encoding="utf-8"),
        open(stderr, encoding="utf-8"),
    )


def wait(child: int) -> int:
    """The exit code; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)


def free_port() -> int:
    """A port below those that systems give to everyone who asks for any, until it is taken."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(12_000, 32_000)))
            return int(probe.getsockname()[1])


def run_ranks(function: Callable[[], None], size: int = 2) -> None:
    """Run ``function`` in ``size`` processes that know each other, and expect all to succeed."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    children = [
        start(function, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(size)
    ]
    assert [wait(child) for child in children] == [0] * size


def descendants(pid: int) -> list[int]:
    """Process ids of the children of a process and of their children, oldest first."""
    parents: dict[int, int] = {}
    started: dict[int, int] = {}  # In clock ticks; process ids start again at the highest one.
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as stream:
                state, parent, *values = stream.read().rpartition(")")[2].split()
                if state != "Z":
                    parents[int(entry)] = int(parent)
                    started[int(entry)] = int(values[17])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family - {pid}, key=lambda each: (started[each], each))


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
