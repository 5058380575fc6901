"""The indexed files as a tree of folders, for browsing."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.places import fold_accents
from eaglenet.search.retrieval import StoreView

Order = Literal["newest", "oldest", "name", "longest"]


@dataclass(frozen=True)
class Shelf:
    """Content of a folder: its subfolders with the number of files below, and its files."""

    folders: list[tuple[str, int]]
    files: list[int]
    """Positions in the table of files, in this folder and below, in order."""


class Library:
    """Folders and names of all indexed files, read once per snapshot."""

    def __init__(self, view: StoreView) -> None:
        self.view = view
        files, snapshot = view.files, view.snapshot
        paths = [path_below_roots(paths[0], view.manifest.roots) for paths in files.paths]
        self.folders = [os.path.dirname(path) for path in paths]
        self.names = [os.path.basename(path) for path in paths]
        rows = snapshot.visible_rows()
        order = np.argsort(files.ids)
        contents, first, counts = np.unique(
            snapshot.content_ids[rows], return_index=True, return_counts=True
        )
        is_known = np.isin(contents, files.ids)
        numbers = order[np.searchsorted(files.ids[order], contents[is_known])]
        self.first_row: NDArray[np.int64] = np.full(len(files), -1, np.int64)
        self.first_row[numbers] = rows[first[is_known]]
        self.clips = np.zeros(len(files), np.int64)
        self.clips[numbers] = counts[is_known]

    def shelf(self, folder: str, order: Order, name: str = "") -> Shelf:
        """Return the content of a folder, named as in :func:`path_below_roots`; '' is the top.

        With ``name``, the files of all folders whose path contains all of these words.
        """
        if name:
            return Shelf([], self._find_by_name(name, order))
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
        table = self.view.files
        if order == "name":
            files.sort(key=lambda number: (self.folders[number], self.names[number]))
        elif order == "longest":
            files.sort(key=lambda number: -float(table.durations[number]))
        else:
            sign = -1 if order == "newest" else 1
            files.sort(key=lambda number: sign * float(table.dates[number]))
        return Shelf(sorted(below.items()), files)

    def _find_by_name(self, words: str, order: Order) -> list[int]:
        """Return the positions of files whose path below the roots contains all of these words."""
        terms = fold_accents(words).split()
        if not terms:
            return []
        return [
            number
            for number in self.shelf("", order).files
            if all(word in self._folded_paths[number] for word in terms)
        ]

    @cached_property
    def _folded_paths(self) -> list[str]:
        return [
            fold_accents(f"{folder}/{name}")
            for folder, name in zip(self.folders, self.names, strict=True)
        ]


def path_below_roots(path: str, roots: tuple[str, ...]) -> str:
    """Return a path relative to the parent of its indexed folder.

    >>> path_below_roots("/home/me/videos/sea/a.mp4", ("/home/me/videos",))
    'videos/sea/a.mp4'
    """
    for root in roots:
        root = root.rstrip("/")
        if path.startswith(root + "/"):
            return os.path.join(os.path.basename(root), os.path.relpath(path, root))
    return os.path.basename(path)


class Libraries:
    """Cache of the library of the newest snapshot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library: Library | None = None

    def of(self, view: StoreView) -> Library:
        with self._lock:
            if self._library is None or self._library.view is not view:
                self._library = Library(view)
            return self._library
