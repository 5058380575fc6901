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
    names: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)
    """Of each folder (by inode) that was synced: its entries then, and which of them are folders.
    The inode of a folder that is removed may be a file's next."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """Of each file (by inode) that was synced: its bytes then."""

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
            self.names[status.st_ino] = {entry.name: _known(entry) for entry in os.scandir(path)}
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
                    entries.setdefault(entry.name, _known(entry))
        for name, (child, is_folder) in entries.items():
            if is_folder:
                self._restore(child, here.get(name), target / name, keeps_names)
            else:
                (target / name).write_bytes(self.contents.get(child, b""))


def _known(entry: os.DirEntry[str]) -> tuple[int, bool]:
    return entry.inode(), entry.is_dir(follow_symlinks=False)
