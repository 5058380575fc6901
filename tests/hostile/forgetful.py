"""A disk that forgets: after a cut only what was synced is there, as it was when it was synced."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest


class PowerCutError(BaseException):
    """Ends a run as a power cut would: nothing catches it."""


@dataclass
class ForgetfulDisk:
    """Watches ``os.fsync`` below ``root``; the cut comes at the ``cut``-th one."""

    root: Path
    cut: int | None = None
    syncs: int = 0
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of each folder (by inode) that was synced: its entries then."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """Of each file (by inode) that was synced: its bytes then."""
    folders: set[int] = field(default_factory=set)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if not path.startswith(str(self.root)):
                real(descriptor)
                return
            self.syncs += 1
            if self.cut is not None and self.syncs >= self.cut:
                raise PowerCutError
            self.note(descriptor, path)

        monkeypatch.setattr(os, "fsync", fsync)

    def note(self, descriptor: int, path: str) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            entries = {}
            for entry in os.scandir(path):
                entries[entry.name] = entry.inode()
                if entry.is_dir(follow_symlinks=False):
                    self.folders.add(entry.inode())
            self.names[status.st_ino] = entries
        else:
            self.contents[status.st_ino] = Path(path).read_bytes()

    def after_the_cut(self, target: Path, *, keeps_names: bool) -> Path:
        """What is on the disk when the power is back.

        ``keeps_names``: names may have reached the disk by themselves; their files are empty then.
        """
        inode = self.root.stat().st_ino
        self._restore(inode, self.root, target, keeps_names)
        return target

    def _restore(self, inode: int, now: Path | None, target: Path, keeps_names: bool) -> None:
        target.mkdir(parents=True)
        entries = dict(self.names.get(inode, {}))
        here: dict[str, Path] = {}
        if now is not None and now.is_dir():
            for entry in os.scandir(now):
                here[entry.name] = Path(entry.path)
                if keeps_names:
                    entries.setdefault(entry.name, entry.inode())
                if entry.is_dir(follow_symlinks=False):
                    self.folders.add(entry.inode())
        for name, child in entries.items():
            if child in self.folders:
                self._restore(child, here.get(name), target / name, keeps_names)
            else:
                (target / name).write_bytes(self.contents.get(child, b""))
