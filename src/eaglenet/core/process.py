"""Child processes that import nothing from the current folder.

``python -c`` and ``python -m`` put the current folder first on the module path, and
``multiprocessing`` starts its children that way, so a file ``pickle.py`` among the videos would run
in every decoder. Children therefore start isolated (``-I``: no current folder, no ``PYTHON*``
variables, no user site) and receive the module path of their parent without the current folder.

    child = start_child(target, 1, 2)   # runs target(connection, 1, 2) in a fresh interpreter
    child.connection.recv()

The target is pickled by name, so it must be importable. The parent's main module is not imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglenet.core.platform import inheriting

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_path() -> list[str]:
    """Return the module path for children: this process's, without the current folder.

    The folder that contains this package stays on it, even if it is the current folder.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    current = os.path.realpath(os.getcwd())
    folders = [
        entry for entry in sys.path if os.path.isabs(entry) and os.path.realpath(entry) != current
    ]
    return folders if package_root in folders else [*folders, package_root]


def forget_current_folder() -> None:
    """Remove the current folder from the module path of this process and its children.

    ``python -m eaglenet`` and an empty entry in ``PYTHONPATH`` put it there.
    """
    sys.path[:] = module_path()
    os.environ["PYTHONSAFEPATH"] = "1"


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``module`` as a program, isolated."""
    return [sys.executable, "-I", "-c", _BOOT, json.dumps(module_path()), module, *arguments]


SAFE_VARIABLES = frozenset(
    {"LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"}
    # Windows finds its libraries with these.
    | {"SYSTEMROOT", "WINDIR", "SYSTEMDRIVE", "PATHEXT"}
)
"""Variables that decoder processes receive, besides ``LC_*``. A list of allowed names, because
secrets may have any name."""


def clean_environment() -> dict[str, str]:
    """Return an environment without secrets, with one thread per numeric library."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.upper() in SAFE_VARIABLES or name.startswith("LC_")
    }
    if sys.platform == "win32":
        environment["PATH"] = os.environ.get("PATH", "")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**environment, **threads, "PYTHONSAFEPATH": "1"}


class ChildProcess:
    """A child process, with the methods of ``multiprocessing.Process`` that callers use."""

    def __init__(
        self, command: Sequence[str], handles: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            **inheriting(handles),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """Exit code, negative signal number, or None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the process, at most ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


@contextlib.contextmanager
def blocked_interrupts() -> Iterator[None]:
    """Block SIGINT in this thread, and in processes started inside the block until they unblock it.

    Ctrl-C reaches all processes of a terminal. One that is starting would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def ignore_interrupts() -> Any:
    """Ignore SIGINT, including a blocked one; return the previous handler."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return handler


@dataclass(frozen=True)
class Child:
    """A process that runs a function, and the connection to it."""

    process: ChildProcess
    connection: Connection


def start_child(
    target: Callable[..., None], *arguments: Any, environment: Mapping[str, str] | None = None
) -> Child:
    """Run ``target(connection, *arguments)`` in a fresh interpreter.

    When the child ends, reading from the connection raises ``EOFError``. By default the child
    receives the environment of this process.
    """
    from multiprocessing.connection import Pipe  # Takes 10 ms, and a search starts no process.

    task = pickle.dumps((target, arguments))
    ours, theirs = Pipe()
    try:
        command = child_command(__name__, str(theirs.fileno()))
        if environment is None:
            environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        with blocked_interrupts():
            process = ChildProcess(command, [theirs.fileno()], environment)
    except BaseException:
        ours.close()
        raise
    finally:
        # With this copy closed, the end of the child ends the connection.
        theirs.close()
    with contextlib.suppress(OSError):  # The child ended at once; reading raises EOFError.
        ours.send_bytes(task)
    return Child(process, ours)


def main(handler: Any) -> None:
    """Run the function that the parent sends."""
    from multiprocessing import connection as connections

    # The type of both ends of a Pipe: PipeConnection exists on Windows only.
    connection_type: Any = getattr(connections, "PipeConnection", connections.Connection)
    connection = connection_type(int(sys.argv[1]))
    try:
        target, arguments = pickle.loads(connection.recv_bytes())
    except EOFError:  # The parent has ended.
        return
    signal.signal(signal.SIGINT, handler)
    target(connection, *arguments)


if __name__ == "__main__":
    # Interrupted while it imports modules, a child would print a traceback; the parent ends it.
    main(handler=ignore_interrupts())
