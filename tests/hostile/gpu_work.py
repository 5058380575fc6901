"""What a decoder on the GPU is given to do; imports little, since every worker imports it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from eaglenet.video import gpu, worker_host


def host_without_gpu(control: Connection, *arguments: Any) -> None:
    gpu.prepare = lambda: None  # type: ignore[assignment]
    worker_host._host(control, *arguments)


def crash_on_gpu(request: str) -> str:
    try:
        os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return f"{request} on the CPU"
    os._exit(3)


def escape_in_older_thread(connection: Connection, folder: str) -> None:
    secret = os.path.join(folder, "secret")
    attacks: dict[str, Callable[[], object]] = {
        "read": lambda: os.open(secret, os.O_RDONLY),
        "create": lambda: os.open(secret + "2", os.O_WRONLY | os.O_CREAT),
        "truncate": lambda: os.open(secret, os.O_WRONLY | os.O_TRUNC),
        "temporary": lambda: os.open(folder, os.O_WRONLY | os.O_TMPFILE),
        "write": lambda: os.write(os.open(secret, os.O_WRONLY), b"gone"),
        "remove": lambda: os.unlink(secret),
        "rename": lambda: os.rename(secret, secret + "3"),
        "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "interfaces": lambda: fcntl.ioctl(connection.fileno(), 0x8912, bytes(16)),  # SIOCGIFCONF
        "program": lambda: os.execv("/bin/true", ["true"]),
        "process": os.fork,
    }
    results: dict[str, Any] = {}
    is_confined = threading.Event()

    def attack() -> None:
        is_confined.wait()
        for name, attempt in attacks.items():
            try:
                attempt()
                results[name] = "allowed"
            except OSError as error:
                results[name] = str(error)

    thread = threading.Thread(target=attack)
    thread.start()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    results["missing"] = worker_host.confine_gpu_process()
    is_confined.set()
    thread.join()
    connection.send(results)
