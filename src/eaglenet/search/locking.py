"""One writer a store. The lock goes away with its process, however that ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eaglenet.errors import StoreError
from eaglenet.search.store import disk_errors

NAME = "writer.lock"


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold the store for writing, or say who does."""
    with disk_errors(folder):
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{folder} is being written to by {_holder(descriptor)}; wait for it to finish. "
                "Searching works meanwhile"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": _host()}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
        return f"another eaglenet (process {content['pid']} on {content['host']})"
    except (ValueError, KeyError, TypeError):
        return "another eaglenet"


def _host() -> str:
    return socket.gethostname()
