"""Tree of folders of the indexed files, for browsing."""

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

ARTICLES = frozenset({"a", "an", "the"})
MAX_NAMED_FOLDERS = 20
Order = Literal["newest", "oldest", "name", "longest"]


@dataclass(frozen=True)
class Listing:
    """Content of a folder: its subfolders, with the number of files in each, and its files."""

    folders: list[tuple[str, int]]
    files: list[int]
    """Indices of the files in this folder and below, in the requested order."""


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
        has_file = np.isin(contents, files.ids)
        numbers = order[np.searchsorted(files.ids[order], contents[has_file])]
        self.first_row: NDArray[np.int64] = np.full(len(files), -1, np.int64)
        self.first_row[numbers] = rows[first[has_file]]
        self.clips = np.zeros(len(files), np.int64)
        self.clips[numbers] = counts[has_file]

    def list_folder(self, folder: str, order: Order, name: str = "") -> Listing:
        """List a folder, given as in :func:`path_below_roots`; ``""`` is the top.

        With ``name``: list only the files whose path contains all of its words.
        """
        if name:
            return Listing([], self._find_by_name(name, folder, order))
        prefix = folder.rstrip("/") + "/" if folder else ""
        num_files: Counter[str] = Counter()
        files = []
        for number, folder_name in enumerate(self.folders):
            if not self.clips[number] or not (folder_name + "/").startswith(prefix):
                continue
            files.append(number)
            remaining_path = folder_name[len(prefix) :]
            if remaining_path:
                num_files[remaining_path.split("/", 1)[0]] += 1
        table = self.view.files
        if order == "name":
            files.sort(key=lambda number: (self.folders[number], self.names[number]))
        elif order == "longest":
            files.sort(key=lambda number: -float(table.durations[number]))
        else:
            sign = -1 if order == "newest" else 1
            files.sort(key=lambda number: sign * float(table.dates[number]))
        return Listing(sorted(num_files.items()), files)

    def explain_missing(self, folder: str) -> str:
        """Return that no file is in a folder, and which folders there are; "" if there is a file.

        The top has no error: it is empty in an empty store.
        """
        if not folder or self.list_folder(folder, "newest").files:
            return ""
        top = [title for title, _ in self.list_folder("", "name").folders[:MAX_NAMED_FOLDERS]]
        others = f"; indexed folders: {', '.join(top)}" if top else ""
        return f"no indexed file is in {folder!r:.200}{others}"

    def _find_by_name(self, name: str, folder: str, order: Order) -> list[int]:
        """Return the files whose path below the roots contains all words of ``name``.

        Articles are ignored, so that "a dog" finds dog.mp4.
        """
        words = fold_accents(name).split()
        terms = [word for word in words if word not in ARTICLES] or words
        if not terms:
            return []
        return [
            number
            for number in self.list_folder(folder, order).files
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
