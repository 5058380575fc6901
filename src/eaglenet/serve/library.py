"""What is in the store, file by file: for looking around before anything is searched for."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.engine import Engine
from eaglenet.search.store.snapshot import Snapshot

Order = Literal["newest", "oldest", "name", "longest"]


@dataclass(frozen=True)
class Shelf:
    """A folder: the folders right in it with the number of files below, and its own files."""

    folders: list[tuple[str, int]]
    files: list[int]
    """Numbers in the snapshot's table of files, of this folder and all below, in order."""


class Library:
    """The indexed files as a tree of folders. Read from a snapshot once."""

    def __init__(self, snapshot: Snapshot, roots: tuple[str, ...]) -> None:
        self.snapshot = snapshot
        files = snapshot.files
        shown = [path_below_roots(paths[0], roots) for paths in files.paths]
        self.folders = [os.path.dirname(path) for path in shown]
        self.names = [os.path.basename(path) for path in shown]
        numbers = snapshot.columns["file_number"]
        self.first_row: NDArray[np.int64] = np.full(len(files), -1, np.int64)
        found, rows = np.unique(numbers, return_index=True)
        self.first_row[found] = rows
        self.clips = np.bincount(numbers, minlength=len(files))

    def shelf(self, folder: str, order: Order) -> Shelf:
        """The folder called so, as :func:`path_below_roots` calls it; '' is all of them."""
        inside = folder.rstrip("/") + "/" if folder else ""
        below: Counter[str] = Counter()
        files = []
        for number, folder_name in enumerate(self.folders):
            if not self.clips[number] or not (folder_name + "/").startswith(inside):
                continue
            files.append(number)
            rest = folder_name[len(inside) :]
            if rest:
                below[rest.split("/", 1)[0]] += 1
        table = self.snapshot.files
        if order == "name":
            files.sort(key=lambda number: (self.folders[number], self.names[number]))
        elif order == "longest":
            files.sort(key=lambda number: -float(table.durations[number]))
        else:
            sign = -1 if order == "newest" else 1
            files.sort(key=lambda number: sign * float(table.modified[number]))
        return Shelf(sorted(below.items()), files)


def path_below_roots(path: str, roots: tuple[str, ...]) -> str:
    """A path from the indexed folder on, with that folder's name.

    >>> path_below_roots("/home/me/videos/sea/a.mp4", ("/home/me/videos",))
    'videos/sea/a.mp4'
    """
    for root in roots:
        root = root.rstrip("/")
        if path.startswith(root + "/"):
            return os.path.join(os.path.basename(root), os.path.relpath(path, root))
    return os.path.basename(path)


class Libraries:
    """The library of the newest snapshot."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._made: Library | None = None

    def now(self) -> Library:
        snapshot = self.engine.snapshot
        with self._lock:
            if self._made is None or self._made.snapshot is not snapshot:
                self._made = Library(snapshot, tuple(self.engine.manifest.roots))
            return self._made


def clips_of_file(snapshot: Snapshot, row: int, most: int) -> list[int]:
    """Rows of the clips in the file of ``row``, in order of time; evenly picked from too many."""
    columns = snapshot.columns
    rows = np.flatnonzero(columns["file_number"] == columns["file_number"][row])
    rows = rows[np.argsort(columns["start"][rows], kind="stable")]
    if len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]
    return [int(each) for each in rows]
