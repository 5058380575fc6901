"""Where the long files of a snapshot are read from: places of them, never the whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from eaglenet.core.platform import read_into

Span = tuple[int, memoryview]
"""Where to read, and where to put it."""


ANNOUNCED = 64
"""Spans from which on a disk is told of all before the first is waited for: it reads many at once
(``docs/scale.md``)."""


class ByteSource(Protocol):
    """Many bytes of which some are wanted."""

    def read_into(self, spans: Sequence[Span]) -> bool:
        """Fill every buffer from its offset on; False where there are not so many bytes."""
        ...


class LocalBytes:
    """A file, held open: it can be read although it was removed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        if hasattr(os, "posix_fadvise"):  # Reading ahead would bring what nobody asked for.
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def key(self) -> tuple[int, int]:
        """Device and inode: no other file has them for as long as this one is held open."""
        status = os.fstat(self._file.fileno())
        return status.st_dev, status.st_ino

    def read_into(self, spans: Sequence[Span]) -> bool:
        handle = self._file.fileno()
        if len(spans) >= ANNOUNCED and hasattr(os, "posix_fadvise"):
            for offset, part in spans:
                os.posix_fadvise(handle, offset, len(part), os.POSIX_FADV_WILLNEED)
        return all(read_into(handle, part, offset) == len(part) for offset, part in spans)
