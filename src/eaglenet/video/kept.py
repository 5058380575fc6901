"""Opened files that are kept for the next piece of the same film.

A container without an index gathers one while it is read, and a film whose frames only decoding can
tell the times of is decoded from its start. Begun anew for every piece, that would cost the square
of the film's length over all pieces.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from eaglenet.video.picking import DecodedRun

MOST = 2
"""One that goes through a piece, and one that repairs its damaged clips meanwhile. Of runs, which
cannot go back: where pieces overlap, the next but one goes on with the same run."""

Identity = tuple[str, int, int, int, int, int]


class KeptRun(NamedTuple):
    """A run that somebody may go on with, and the source that it alone reads from."""

    frames: DecodedRun
    source: Any


class KeptFiles:
    """Opened containers and runs of one file at a time; nobody uses them while they lie here."""

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._containers: list[Any] = []
        self._runs: list[KeptRun] = []

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

    def take_run(self, identity: Identity, target: int) -> KeptRun | None:
        """The run that has come furthest without passing ``target`` (a tick)."""
        if identity != self._identity:
            self.close()
        found = [run for run in self._runs if run.frames.can_show(target)]
        if not found:
            return None
        furthest = max(found, key=lambda run: run.frames.passed or 0)
        self._runs.remove(furthest)
        return furthest

    def put_run(self, identity: Identity, run: KeptRun) -> None:
        """Keep a run; the one that was used longest ago makes room for it."""
        if identity != self._identity:
            self.close()
            self._identity = identity
        self._runs.append(run)
        while len(self._runs) > MOST:
            self._runs.pop(0).source.close()

    def close(self) -> None:
        """Let go of every file."""
        while self._containers:
            self._containers.pop().close()
        while self._runs:
            self._runs.pop().source.close()
        self._identity = None


KEPT = KeptFiles()
"""Of this process, which decodes in one thread where it keeps files open."""


def identity_of(path: Path) -> Identity:
    """Tells a file from every other and from its own earlier content."""
    status = os.stat(path)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (str(path), status.st_dev, status.st_ino, status.st_size, *times)
