"""Opened files that are kept for the next piece of the same film.

A container without an index gathers one while it is read. Opened anew for every piece, such a film
would be read from its start each time: over all pieces, the square of its length.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

MOST = 2
"""One that goes through a piece, and one that repairs its damaged clips meanwhile."""

Identity = tuple[str, int, int, int, int, int]


class KeptContainers:
    """Opened containers of one file at a time; nobody reads from them while they lie here."""

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._containers: list[Any] = []

    def take(self, identity: Identity) -> Any | None:
        """A container of this very file, if there is one. Its position may be anywhere."""
        if identity != self._identity:
            self.close()
        return self._containers.pop() if self._containers else None

    def put(self, identity: Identity, container: Any) -> None:
        """Keep a container; those of any other file are closed."""
        if identity != self._identity:
            self.close()
            self._identity = identity
        if len(self._containers) < MOST:
            self._containers.append(container)
        else:
            container.close()

    def close(self) -> None:
        """Let go of every file."""
        while self._containers:
            self._containers.pop().close()
        self._identity = None


KEPT = KeptContainers()
"""Of this process, which decodes in one thread where it keeps files open."""


def identity_of(path: Path) -> Identity:
    """Tells a file from every other and from its own earlier content."""
    status = os.stat(path)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (str(path), status.st_dev, status.st_ino, status.st_size, *times)
