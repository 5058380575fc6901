"""Local copy of a store on object storage: a local store to which the log is applied.

The copy contains everything except features and thumbnails, which are read from object storage when
needed. It is a cache: a damaged or outdated copy is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eaglenet.cluster.log import (
    POINTER,
    POINTER_LAYOUT,
    Finish,
    Head,
    Operation,
    damaged_object,
    decode,
    length_of,
    read_spans,
)
from eaglenet.core.errors import StoreError, UsageError
from eaglenet.core.files import LockHeldError, hold_lock
from eaglenet.core.platform import CACHE_VARIABLE, cache_folder, disk_bytes
from eaglenet.store.codes import Codes
from eaglenet.store.database import Database, create, read_manifest
from eaglenet.store.disk import DATABASE, DamageError, damage
from eaglenet.store.manifest import Manifest
from eaglenet.store.object_storage import MissingObjectError, ObjectFolder
from eaglenet.store.records import Changes, Features
from eaglenet.store.segments import Segment
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import LocalStore
from eaglenet.store.writer import LocalWriter, Transaction

logger = logging.getLogger(__name__)

BYTES_VARIABLE = "EAGLENET_CACHE_BYTES"
CACHE_BYTES = 20 * 2**30
MERGE_CLIPS = 16_384
"""Clips per transaction when operations are merged."""


@dataclass(frozen=True)
class Position:
    """End of the operations in the log that a copy contains; ``id`` is that of the head."""

    id: str
    end: int = 0


def write_position(connection: sqlite3.Connection, position: Position) -> None:
    text = json.dumps(asdict(position))
    connection.execute(
        "CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY, value TEXT, checksum INTEGER)"
    )
    row = (1, text, zlib.crc32(text.encode()))
    connection.execute("INSERT OR REPLACE INTO position VALUES (?, ?, ?)", row)


def read_position(database: Database) -> Position:
    rows = database.rows("SELECT value, checksum FROM position")
    if len(rows) != 1 or zlib.crc32(rows[0][0].encode()) != rows[0][1]:
        raise damage("table position in store.db", database.location)
    return Position(**json.loads(rows[0][0]))


class MirrorWriter(LocalWriter):
    """Writer that applies operations, and stores their position in the same transaction."""

    def __init__(self, folder: Path, location: str) -> None:
        super().__init__(folder, location, is_trusted=True)
        self.manifest = replace(self.manifest, layout=POINTER_LAYOUT)
        self.position = read_position(self.database)
        self._next_position: Position | None = None
        self._publish: Callable[[], object] | None = None

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as change:
            yield change
            if self._next_position is not None:
                write_position(change.connection, self._next_position)
                if self._publish is not None:
                    self._publish()

    def apply(
        self, operation: Operation, position: Position, publish: Callable[[], object] | None = None
    ) -> None:
        """Apply an operation of the log that ends at ``position``.

        ``publish`` adds it to the log. It is called once the operation has succeeded, before it
        is committed locally; if it fails, nothing is applied. An operation may be applied again
        after a crash.
        """
        if not isinstance(operation, Changes):
            if publish is not None:
                publish()
                publish = None
            if isinstance(operation, Finish):
                self.finish()
            else:
                self.set_hubness(operation.bank)
        self._next_position, self._publish = position, publish
        try:
            if isinstance(operation, Changes):
                self.commit(operation)
            else:
                with self.transaction():
                    pass
            self.position = position
        finally:
            self._next_position = self._publish = None


class Mirror:
    """Copy of one store in the cache folder, shared by all processes of this machine."""

    def __init__(self, folder: ObjectFolder) -> None:
        self.remote = folder
        name = hashlib.blake2b(folder.url.encode(), digest_size=12).hexdigest()
        self.path = cache_folder() / "stores" / name
        self.last_read: tuple[float, str | None] | None = None
        """Time of the last read of the head, and its tag; None if it must be read again."""

    @property
    def file_id(self) -> Hashable:
        """Identity of the database file; changes when the copy is rebuilt."""
        try:
            status = os.stat(self.path / DATABASE)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the copy against other processes and threads."""
        with ExitStack() as stack:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(hold_lock(_lock_of(self.path), wait=True))
            except OSError as error:
                raise StoreError(
                    f"{self.path.parent}: cannot store a local copy of {self.remote.url} there "
                    f"({error.strerror}); set {CACHE_VARIABLE} to a writable folder"
                ) from error
            yield

    @contextmanager
    def writer(self, head: Head) -> Iterator[MirrorWriter]:
        """Yield a writer of the copy, updated to the log of ``head``. The caller holds the lock.

        If another process has read a newer head, the copy contains more operations.
        """
        self._evict_copies(head)
        for attempt in (1, 2):
            try:
                writer = self._update(head)
                break
            except DamageError:
                if attempt == 2:
                    raise
                self.drop()
        os.utime(self.path)
        try:
            yield writer
        finally:
            writer.close()

    def _update(self, head: Head) -> MirrorWriter:
        if (self.path / DATABASE).exists():
            writer = MirrorWriter(self.path, self.remote.url)
            if writer.position.id != head.id:
                writer.close()
                self.drop()
        if not (self.path / DATABASE).exists():
            self.drop()
            position = Position(head.id)
            create(self.path, head.manifest, fill=lambda each: write_position(each, position))
            writer = MirrorWriter(self.path, self.remote.url)
        try:
            for position, operation in merge_operations(self._operations(head, writer.position)):
                writer.apply(operation, position)
        except BaseException:
            writer.close()
            raise
        return writer

    def _operations(self, head: Head, position: Position) -> Iterator[tuple[Position, Operation]]:
        for chunk in head.parts["log"]:
            if chunk.end <= position.end:
                continue
            start = max(chunk.start, position.end)
            if start == chunk.start:
                content = chunk.read(self.remote)
            else:
                (content,) = read_spans(self.remote, (chunk,), [(start, chunk.end)])
            try:
                for end, operation in decode(content):
                    yield Position(head.id, start + end), operation
            except ValueError as error:
                raise damaged_object(self.remote, chunk.name) from error

    def drop(self) -> None:
        """Remove the copy; processes that have it open can still read it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def drop_if_idle(self) -> None:
        """Remove a damaged copy, unless a process is updating it."""
        with suppress(LockHeldError), hold_lock(_lock_of(self.path)):
            logger.warning("the local copy of %s is damaged; rebuilding it", self.remote.url)
            self.drop()

    def _evict_copies(self, head: Head) -> None:
        """Remove copies of other stores until this one fits, the least recently used first."""
        size = max(length_of(head.parts["log"]), _size(self.path))
        if size > cache_bytes():
            raise StoreError(
                f"the local copy of {self.remote.url} needs {size} bytes, and the limit of all "
                f"copies is {cache_bytes()}; increase {BYTES_VARIABLE}"
            )
        others = [
            path for path in self.path.parent.iterdir() if path.is_dir() and path != self.path
        ]
        sizes = {path: _size(path) for path in others}
        for path in sorted(others, key=_last_use):
            if sum(sizes.values()) + size <= cache_bytes():
                return
            # Skips copies that are being updated.
            with suppress(LockHeldError), hold_lock(_lock_of(path)):
                logger.info("removing the local copy %s to make room", path)
                shutil.rmtree(path, ignore_errors=True)
                del sizes[path]


def cache_bytes() -> int:
    text = os.environ.get(BYTES_VARIABLE, "")
    if text and not text.isdigit():
        raise UsageError(f"{BYTES_VARIABLE} must be a number of bytes, not {text!r:.60}")
    return int(text) if text else CACHE_BYTES


def _lock_of(path: Path) -> Path:
    """Return the lock file of a copy; it is beside the folder and survives the folder's removal."""
    return path.with_name(f"{path.name}.lock")


def _size(folder: Path) -> int:
    total = 0
    # Unlike rglob, walk ignores folders that another process removes meanwhile.
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with suppress(FileNotFoundError):  # SQLite removes temporary files.
                total += disk_bytes(os.stat(os.path.join(parent, name)))
    return total


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # Another process removed this copy.
        return 0.0


def merge_operations(
    operations: Iterator[tuple[Position, Operation]],
) -> Iterator[tuple[Position, Operation]]:
    """Merge consecutive changes, so that many small commits cost as little as a few large ones.

    Changes that remove anything are not merged, because a commit removes before it adds. Neither
    are changes with windows, because new lines of a source remove its windows.
    """
    open_entry: tuple[Position, Changes] | None = None
    for position, operation in operations:
        is_plain = isinstance(operation, Changes) and not (
            operation.removed_files or operation.removed_sources or operation.windows
        )
        num_clips = sum(map(len, open_entry[1].clips)) if open_entry is not None else 0
        if is_plain and open_entry is not None and num_clips < MERGE_CLIPS:
            assert isinstance(operation, Changes)
            previous = open_entry[1]
            merged_changes = Changes(
                [*previous.clips, *operation.clips],
                [*previous.files, *operation.files],
                transcripts=[*previous.transcripts, *operation.transcripts],
            )
            open_entry = position, merged_changes
            continue
        if open_entry is not None:
            yield open_entry
            open_entry = None
        if is_plain:
            assert isinstance(operation, Changes)
            open_entry = position, operation
        else:
            yield position, operation
    if open_entry is not None:
        yield open_entry


class MirrorStore(LocalStore):
    """Copy that is open for reading; features and thumbnails come from object storage."""

    def __init__(self, mirror: Mirror, head: Head) -> None:
        self.mirror = mirror
        self.head = head
        super().__init__(mirror.path, Database(mirror.path, mirror.remote.url))

    @property
    def location(self) -> str:
        return self.mirror.remote.url

    @property
    def is_replaced(self) -> bool:
        """True if the copy was rebuilt after it was opened."""
        return self.mirror.file_id != self.database.opened_file

    def _read_manifest(self) -> Manifest:
        return replace(read_manifest(self.database), layout=POINTER_LAYOUT)

    def snapshot(self) -> BucketSnapshot:
        snapshot = super().snapshot()
        assert isinstance(snapshot, BucketSnapshot)
        return snapshot

    def _make_snapshot(
        self, version: int, segments: Sequence[Segment], hidden_clip_ids: NDArray[np.int64]
    ) -> BucketSnapshot:
        return BucketSnapshot(
            self.mirror, self.head, self.database, version, segments, hidden_clip_ids
        )


class BucketSnapshot(Snapshot):
    """Snapshot of one version of a store on object storage."""

    def __init__(
        self,
        mirror: Mirror,
        head: Head,
        database: Database,
        local_version: int,
        segments: Sequence[Segment],
        hidden_clip_ids: NDArray[np.int64],
    ) -> None:
        super().__init__(database, head.manifest, head.version, segments, hidden_clip_ids)
        self.mirror = mirror
        self.head = head
        self._local_version = local_version

    @property
    def stamp(self) -> Hashable:
        return self.head.tag, self.database.opened_file

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Turn damage into ``OutdatedError``, and remove a damaged copy, so that it is rebuilt."""
        try:
            yield
        except (DamageError, MissingObjectError) as error:
            if isinstance(error, DamageError):
                with suppress(StoreError):
                    if not self.is_outdated():
                        self.mirror.drop_if_idle()
            raise self._outdated_error() from error

    def is_outdated(self) -> bool:
        return bool(self.database.value("SELECT version FROM state") != self._local_version)

    def _outdated_error(self) -> OutdatedError:
        self.mirror.last_read = None
        return OutdatedError(f"{self.location} changed during the search; search again")

    def vector_parts(
        self, first: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        with self._current():
            yield from super().vector_parts(first, end)

    def codes(self, first: int = 0, end: int | None = None) -> Codes:
        with self._current():
            return super().codes(first, end)

    def pointers_at(self, rows: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the pointers of clips to their features and thumbnails."""
        pointers = np.empty(len(rows), POINTER)
        with self._current():
            for segment, indices, inside in self._by_segment(rows):
                pointers[indices] = segment.features_at(inside)
        return pointers

    def fingerprints(self, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        features = self.pointers_at(rows)["features_checksum"].tolist()
        return [
            (vector, checksum)
            for (vector, _), checksum in zip(super().fingerprints(rows), features, strict=True)
        ]

    def features_at(self, rows: NDArray[np.int64]) -> Features:
        pointers, dtype = self.pointers_at(rows), self.manifest.layout.dtype
        starts = pointers["record"] * dtype.itemsize
        sizes = np.full(len(rows), dtype.itemsize)
        records = self._read("features", starts, sizes, pointers["features_checksum"])
        return np.frombuffer(bytearray(b"".join(records)), dtype)

    def thumbnail(self, row: int) -> bytes:
        return self.thumbnails_at(np.array([row]))[0]

    def thumbnails_at(self, rows: NDArray[np.int64]) -> list[bytes]:
        pointers = self.pointers_at(rows)
        starts, sizes = pointers["thumbnail_start"], pointers["thumbnail_size"]
        return self._read("thumbnails", starts, sizes, pointers["thumbnail_checksum"])

    def _read(
        self,
        part: str,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        checksums: NDArray[np.uint32],
    ) -> list[bytes]:
        """Read from object storage, and compare with the checksums."""
        spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        try:
            contents = read_spans(self.mirror.remote, self.head.parts[part], spans)
        except MissingObjectError as error:
            raise self._outdated_error() from error
        if [*map(zlib.crc32, contents)] != checksums.tolist():
            raise damaged_object(self.mirror.remote, part)
        return contents
