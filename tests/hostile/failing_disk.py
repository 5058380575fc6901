"""A disk that fails once: the n-th sync, rename or removal below a folder is refused or torn."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class FailingDisk:
    """Counts file operations below ``root``; the ``at``-th one fails with ``number``."""

    root: Path
    at: int | None = None
    number: int = 0
    is_torn: bool = False
    """Whether the file that was being synced keeps only half of what was not on the disk yet."""
    operations: int = 0
    synced: dict[int, int] = field(default_factory=dict)
    """Of each file (by inode) that was synced: its bytes then."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fsync, replace, unlink = os.fsync, os.replace, os.unlink

        def failing_fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if self._fails(path):
                if self.is_torn and os.path.isfile(path):
                    now = os.fstat(descriptor)
                    safe = min(self.synced.get(now.st_ino, 0), now.st_size)
                    os.truncate(path, (safe + now.st_size) // 2)
                raise OSError(self.number, os.strerror(self.number))
            fsync(descriptor)
            status = os.fstat(descriptor)
            self.synced[status.st_ino] = status.st_size

        def failing_replace(source: Any, target: Any, **options: Any) -> None:
            if self._fails(str(target)):
                raise OSError(self.number, os.strerror(self.number), str(target))
            replace(source, target, **options)

        def failing_unlink(path: Any, **options: Any) -> None:
            if self._fails(str(path)):
                raise OSError(self.number, os.strerror(self.number), str(path))
            if os.path.exists(path):
                # The number may be another file's next.
                self.synced.pop(os.stat(path).st_ino, None)
            unlink(path, **options)

        monkeypatch.setattr(os, "fsync", failing_fsync)
        monkeypatch.setattr(os, "replace", failing_replace)
        monkeypatch.setattr(os, "unlink", failing_unlink)

    def _fails(self, path: str) -> bool:
        if not path.startswith(str(self.root)):
            return False
        self.operations += 1
        return self.operations == self.at
