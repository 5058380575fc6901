"""Local copies of what is searched of stores on object storage, in a folder of bounded size."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglenet.core.errors import StoreError, UsageError
from eaglenet.core.files import hold_lock, write_bytes
from eaglenet.core.object_storage import ObjectFolder
from eaglenet.core.platform import cache_folder, disk_bytes
from eaglenet.search.store.checks import sealed
from eaglenet.search.store.pieces import Pieces, bring, length_of
from eaglenet.search.store.snapshot import CURRENT

logger = logging.getLogger(__name__)

BYTES_VARIABLE = "EAGLENET_CACHE_BYTES"
CACHE_BYTES = 20 * 2**30
COPIED = ("vectors-", "codes-")
"""Files that are scanned; of the others only what is asked for is read."""
ROWS = re.compile(r"rows-[0-9]+\.npz")
LOCK = "lock"


def cache_bytes() -> int:
    """How large all copies may be together."""
    given = os.environ.get(BYTES_VARIABLE, "")
    if given and not given.isdigit():
        raise UsageError(f"{BYTES_VARIABLE} is a number of bytes, not {given!r:.60}")
    return int(given) if given else CACHE_BYTES


class SnapshotCache:
    """The copy of one store."""

    def __init__(self, folder: ObjectFolder) -> None:
        self.remote = folder
        name = hashlib.blake2b(folder.url.encode(), digest_size=12).hexdigest()
        self.path = cache_folder() / "stores" / name

    @contextmanager
    def filled(
        self, current: Mapping[str, Any], files: Mapping[str, Pieces], small: Mapping[str, str]
    ) -> Iterator[Path]:
        """The copy with the vectors, rows and files of a version, held while it is opened."""
        vectors = {name: pieces for name, pieces in files.items() if name.startswith(COPIED)}
        note = sealed(dict(current))
        self.path.mkdir(parents=True, exist_ok=True)
        with hold_lock(self.path / LOCK, wait=True):
            needed = len(note) + self._size_of(LOCK)
            # A copy may be longer than this version: another reader has a newer one already.
            needed += sum(max(length_of(vectors[name]), self._size_of(name)) for name in vectors)
            needed += sum(
                self._size_of(name) or self.remote.entry(small[name]).size for name in small
            )
            if needed > cache_bytes():
                raise StoreError(
                    f"what is searched of {self.remote.url} is {needed} bytes, the local copies "
                    f"may be {cache_bytes()}; set {BYTES_VARIABLE} to more"
                )
            needed += self._remove_old({*vectors, *small, CURRENT, LOCK}, cache_bytes() - needed)
            self._make_room(needed)
            for name, pieces in vectors.items():
                bring(self.remote, pieces, self.path / name)
            for name, stored_name in small.items():
                if not (self.path / name).exists():
                    write_bytes(self.path / name, self.remote.read(stored_name)[0])
            write_bytes(self.path / CURRENT, note)
            os.utime(self.path)
            yield self.path

    def _size_of(self, name: str) -> int:
        """Bytes of a file of the copy; 0 where it is not there yet."""
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def _remove_old(self, kept: Collection[str], free: int) -> int:
        """Remove what this version does not read, but for the rows of one other version.

        A reader that saw the version before this one may be waiting to open it. Its rows stay
        where they are not larger than ``free``; gives their size.
        """
        others = [path for path in self.path.iterdir() if path.name not in kept]
        rows = [path for path in others if ROWS.fullmatch(path.name)]
        newest = max(rows, key=lambda path: int(path.stem.rpartition("-")[2]), default=None)
        stays = newest if newest is not None and newest.stat().st_size <= free else None
        for path in others:
            if path != stays:
                path.unlink()
        return stays.stat().st_size if stays is not None else 0

    def drop(self) -> None:
        """Forget the copy: it is not as it was written."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _make_room(self, needed: int) -> None:
        """Remove copies of other stores, those not used for longest first."""
        others = [path for path in self.path.parent.iterdir() if path != self.path]
        sizes = {path: _size(path) for path in others}
        for path in sorted(others, key=lambda path: path.stat().st_mtime):
            if sum(sizes.values()) + needed <= cache_bytes():
                return
            logger.info("the copy %s is removed to make room", path)
            # Who has it open can go on reading.
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]


def _size(folder: Path) -> int:
    return sum(disk_bytes(path.stat()) for path in folder.rglob("*") if path.is_file())
