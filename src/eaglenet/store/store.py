"""The store in a folder of this machine.

::

    store.db       files, clips, transcripts, manifest (SQLite; see ``schema``)
    segments/      vectors, codes, labels, features and thumbnails (see ``segments``)
    writer.lock    held by the one writer

A commit appends to segments, syncs them, and then records them in one SQLite transaction: all of it
becomes visible at once.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError, StoreLockedError, shell_quote, store_option
from eaglenet.core.registry import Registry
from eaglenet.core.untrusted import parse_json
from eaglenet.store.base import Store
from eaglenet.store.database import (
    Database,
    create,
    read_files,
    read_hidden,
    read_manifest,
    read_segments,
    read_state,
)
from eaglenet.store.disk import (
    DATABASE,
    LOCK,
    DamageError,
    file_exists,
    require_creatable,
    writer_lock,
)
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.object_storage import SCHEMES
from eaglenet.store.records import IndexedFile, Repaired, Verified
from eaglenet.store.schema import OldSchemaError
from eaglenet.store.segments import FOLDER, KINDS, Segment, SegmentInfo
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.windows import KINDS as WINDOW_KINDS
from eaglenet.store.writer import LocalWriter

STORES: Registry[type[Store]] = Registry(
    "kind of store",
    is_open=True,
    modules=dict.fromkeys(SCHEMES, "eaglenet.cluster.bucket"),
)
"""Kinds of stores by the scheme of their location; a plain path is ``file``. A module adds its
class with ``STORES.add(scheme, class)`` and is imported when a location needs it, so that a local
store loads nothing of object storage."""
OLD_FORMAT = ("clips.lance", "snapshot")
"""Files and folders of stores that eaglenet made before it used SQLite."""
ATTEMPTS = 5
UPGRADE_ATTEMPTS = 150
"""Attempts, a tenth of a second apart; an upgrade of a million clips takes a second or two."""


class LocalStore:
    """Implementation of :class:`eaglenet.store.base.Store` in a folder."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.database = database
        self.manifest = self._read_manifest()
        self._segments: dict[int, Segment] = {}
        self._opening = threading.Lock()

    @property
    def location(self) -> str:
        return str(self.folder)

    @classmethod
    def exists(cls, location: str | Path, advice: str = "use another folder") -> bool:
        """Return whether a folder has a store; raise ``StoreError`` if it cannot have one."""
        folder = path_of(location)
        if file_exists(folder / DATABASE):
            return True
        for part in (folder, *folder.parents):
            if part.exists() and not part.is_dir():
                raise StoreError(f"{part} is a file; use a folder for the store")
        if not file_exists(folder):
            return False
        refuse_old_format(folder)
        refuse_lost_database(folder)
        others = [path.name for path in folder.iterdir() if not _is_ours(path.name)]
        if others:
            raise StoreError(
                f"{folder} has other files in it ({others[0]!r:.60}) and is not a store; {advice}"
            )
        return False

    @classmethod
    def open(cls, location: str | Path) -> Self:
        folder = path_of(location)
        if not cls.exists(folder, advice="name the folder of a store"):
            raise StoreError(
                f"no store at {folder}; create one with: eaglenet index PATH{store_option(folder)}"
            )
        try:
            return cls(folder, Database(folder, str(folder)))
        except OldSchemaError:
            if not os.access(folder / DATABASE, os.W_OK):
                raise
        cls._upgrade(folder)
        return cls(folder, Database(folder, str(folder)))

    @staticmethod
    def _upgrade(folder: Path) -> None:
        """Bring the schema up to date; another process may be doing the same."""
        for attempt in range(UPGRADE_ATTEMPTS):
            try:
                with writer_lock(folder), closing(LocalWriter(folder)):
                    return
            except StoreLockedError:
                if attempt + 1 == UPGRADE_ATTEMPTS:
                    raise
                time.sleep(0.1)

    @classmethod
    @contextmanager
    def write(
        cls,
        location: str | Path,
        manifest: Manifest | None = None,
        bank: HubnessBank | None = None,
    ) -> Iterator[LocalWriter]:
        folder = path_of(location)
        is_new = not cls.exists(folder)
        if is_new and manifest is None:
            cls.open(folder)
        if not is_new and manifest is not None:
            # Before the lock, so that other settings are refused while another writer works.
            cls.open(folder).manifest.require_same(manifest, str(folder))
        with writer_lock(folder):
            if manifest is not None and not file_exists(folder / DATABASE):
                create(folder, manifest, bank)
            with closing(LocalWriter(folder)) as writer:
                if manifest is not None:
                    writer.manifest.require_same(manifest, str(folder))
                    writer.add_roots(manifest.roots)
                yield writer

    def files(self) -> list[IndexedFile]:
        return read_files(self.database)

    def snapshot(self) -> Snapshot:
        with self._opening:
            return self._open_snapshot()

    def _open_snapshot(self) -> Snapshot:
        with suppress(FileNotFoundError):  # A store that was moved can be read from open files.
            if self.database.opened_file != self.database.file_id():
                # The store was replaced; earlier snapshots keep their database.
                self.database, self._segments = Database(self.folder, self.location), {}
        for attempt in range(ATTEMPTS):
            with self.database.reading():
                version = read_state(self.database).version
                infos = read_segments(self.database)
                hidden_clip_ids = read_hidden(self.database)
                self.manifest = self._read_manifest()
            try:
                segments = self._open_segments(infos)
                return self._make_snapshot(version, segments, hidden_clip_ids)
            except DamageError:
                # A writer may have replaced a segment after its name was read.
                is_last = attempt + 1 == ATTEMPTS
                if is_last or read_state(self.database).version == version:
                    raise
        raise AssertionError("unreachable")

    def _read_manifest(self) -> Manifest:
        return read_manifest(self.database)

    def _make_snapshot(
        self, version: int, segments: Sequence[Segment], hidden_clip_ids: NDArray[np.int64]
    ) -> Snapshot:
        return Snapshot(self.database, self.manifest, version, segments, hidden_clip_ids)

    def _open_segments(self, infos: Sequence[SegmentInfo]) -> list[Segment]:
        """Map segments; those that did not change stay open."""
        before, self._segments = self._segments, {}
        for info in infos:
            earlier_segment = before.get(info.id)
            if earlier_segment is not None and earlier_segment.info.to_values() == info.to_values():
                self._segments[info.id] = earlier_segment
                continue
            segment = Segment(self.folder, info, self.manifest)
            if earlier_segment is not None:
                segment.adopt(earlier_segment)
            self._segments[info.id] = segment
        return [segment for segment in self._segments.values() if len(segment)]

    def stamp(self) -> Hashable:
        file_id = self.database.file_id()
        if file_id != self.database.opened_file:
            return file_id, None
        return file_id, self.database.value("SELECT version FROM state")

    def usage(self) -> dict[str, int]:
        parts: dict[str, int] = defaultdict(int)
        for path in (self.folder / FOLDER).glob("*.*"):
            kind = path.suffix.removeprefix(".")
            with suppress(FileNotFoundError):  # A writer has just removed it.
                parts[kind if kind in (*KINDS, *WINDOW_KINDS) else "other"] += path.stat().st_size
        for path in self.folder.glob(f"{DATABASE}*"):
            with suppress(FileNotFoundError):
                parts["database"] += path.stat().st_size
        return dict(parts)

    def verify(self) -> Verified:
        from eaglenet.store import repair

        self.database.check_integrity()
        for _ in range(ATTEMPTS):
            snapshot = self.snapshot()
            try:
                return repair.verify(snapshot)
            except DamageError:
                # A writer may have committed meanwhile, and removed segments.
                if not snapshot.is_outdated():
                    raise
        raise OutdatedError(f"{self.folder} changes all the time; verify it while nothing indexes")

    @classmethod
    def repair(cls, location: str | Path) -> Repaired:
        from eaglenet.store import repair

        cls.exists(location)
        return repair.repair(path_of(location))


STORES.add("file", LocalStore)


def kind_of(location: str | Path) -> type[Store]:
    """Return the class that opens stores at a location."""
    # One letter would be the drive of a Windows path.
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", str(location))
    return STORES[scheme.group(1) if scheme else "file"]


def open_store(location: str | Path) -> Store:
    """Open the store at a path or URL."""
    return kind_of(location).open(str(location))


def check_location(location: str | Path) -> None:
    """Raise an error if there is no store at a location, and none can be created there."""
    kind = kind_of(location)
    if not kind.exists(str(location)) and kind is LocalStore:
        require_creatable(path_of(location))


def path_of(location: str | Path) -> Path:
    """Return the folder of a location."""
    if not str(location):  # Such as an unset variable of a shell.
        raise StoreError("the location of the store is empty; name its folder")
    path = Path(str(location).removeprefix("file://"))
    try:
        return path.expanduser()  # No store is made in a folder named like a user.
    except RuntimeError as error:
        raise StoreError(f"{location}: {error}") from None


def _is_ours(name: str) -> bool:
    return name in (LOCK, FOLDER) or name.startswith((DATABASE, "."))


def refuse_lost_database(folder: Path) -> None:
    """Refuse to make a new store over the segments of one that lost its ``store.db``."""
    if any((folder / FOLDER).glob("*.*")):
        raise StoreError(
            f"{folder} has lost its {DATABASE}, which lists all files and clips. Restore it from a "
            f"backup, or index again with: mv {shell_quote(folder)} {shell_quote(folder)}.old && "
            f"eaglenet index FOLDER --store {shell_quote(folder)}"
        )


def is_old_format(folder: Path) -> bool:
    """Return whether a folder contains a store of the format before SQLite."""
    is_current = file_exists(folder / DATABASE)
    return not is_current and any((folder / name).exists() for name in OLD_FORMAT)


def refuse_old_format(folder: Path) -> None:
    if is_old_format(folder):
        raise StoreError(
            f"{folder} was made by an earlier eaglenet, in another format. Convert it with: "
            f"eaglenet store upgrade --store {shell_quote(folder)}"
        )


def command_to_index_again(folder: Path) -> str:
    """Return the command that indexes the videos of a store of the old format again."""
    command = ["eaglenet", "index", "FOLDER"]
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        values = parse_json((folder / "manifest.json").read_bytes())
        roots, model = [str(root) for root in values["roots"]], str(values["model"])
        command = ["eaglenet", "index", *(roots or ["FOLDER"]), "--model", model]
    line = " ".join(shell_quote(argument) for argument in [*command, "--store", folder])
    return f"mv {shell_quote(folder)} {shell_quote(folder)}.old && {line}"
