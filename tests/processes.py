"""Real processes for tests: forked, so that they need no second import of everything."""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

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
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        code = 1
    finally:
        os._exit(code)


def wait(child: int) -> int:
    """The exit code; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(function: Callable[[], None], size: int = 2) -> None:
    """Run ``function`` in ``size`` processes that know each other, and expect all to succeed."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    children = [
        start(function, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(size)
    ]
    assert [wait(child) for child in children] == [0] * size
