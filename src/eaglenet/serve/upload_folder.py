"""Where uploads lie while they are looked at: bounded, private, and emptied whatever happens."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, cast

from eaglenet.core.files import try_lock
from eaglenet.core.platform import is_own_file, open_for_locking
from eaglenet.serve.problems import Problem
from eaglenet.video.worker import IsolatedProcess

PREFIX = "eaglenet-uploads-"
LOCK = "lock"
MAX_UPLOADS = 4
"""At once; each may be as large as a body may be."""
MEMORY = 2 * 2**30
"""Bytes for the process that decodes them."""


class NamedFile(Protocol):
    """A temporary file that is open."""

    name: str
    file: IO[bytes]


class UploadFolder:
    """A folder of this service alone; those of services that were killed are removed."""

    def __init__(self, seconds: float, parent: Path | None = None) -> None:
        self.parent = parent or Path(tempfile.gettempdir())
        _sweep(self.parent)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self.parent))
        self._lock = open_for_locking(self.folder / LOCK, mode=0o600)
        try_lock(self._lock)
        self.decoder = IsolatedProcess(MEMORY, seconds)
        self._taken = 0

    @contextmanager
    def room(self) -> Iterator[NamedFile]:
        """A file to receive into, gone at the end of the block."""
        if self._taken >= MAX_UPLOADS:
            raise Problem(503, "too many uploads at once", headers={"Retry-After": "5"})
        self._taken += 1
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder) as file:
                yield cast(NamedFile, file)
        finally:
            self._taken -= 1

    def close(self) -> None:
        self.decoder.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _sweep(parent: Path) -> None:
    """Remove what killed services left: their locks are free."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or not is_own_file(folder.stat()):
                continue
            descriptor = open_for_locking(folder / LOCK, create=False)
        except OSError:
            continue
        if try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
