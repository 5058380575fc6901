"""Connections to ``store.db``, and the rows that describe the store itself."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.platform import sync
from eaglenet.store.disk import (
    DATABASE,
    create_file,
    damage,
    is_network_disk,
    make_folder,
    store_errors,
    table_damage,
)
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import IndexedFile
from eaglenet.store.schema import (
    COLUMNS,
    COUNTED,
    HIDDEN,
    PAGE_SIZE,
    TEXT_INDEX_SETTINGS,
    TEXT_INDEXES,
    create_tables,
    is_intact,
    put_row,
    quoted_names,
    require_total,
    require_version,
)
from eaglenet.store.segments import FOLDER, SegmentInfo

BUSY_SECONDS = 30.0
PARAMETERS = 900
"""Maximum values in one statement; old versions of SQLite allow 999."""
IMMUTABLE = "mode=ro&immutable=1"
NO_SPACE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL)
"""Error codes of SQLite on a disk without space for the file that readers and a writer share."""


class Connection(sqlite3.Connection):
    """``is_immutable``: reads the file as it was when it was opened, without later commits."""

    is_immutable = False


class Database:
    """One connection, shared by the threads of a process; reads are short and take turns."""

    def __init__(self, folder: Path, location: str, *, is_writer: bool = False) -> None:
        self.folder = folder
        self.location = location
        self.is_writer = is_writer
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self.text_checksum: int | None = None
        """Checksum of the full-text indexes when this process last compared them."""
        with store_errors(location):
            before = os.stat(folder / DATABASE)
            self._connection = connect(folder, is_writer=is_writer)
            try:
                require_version(self._connection, location)
            except BaseException:
                self._connection.close()
                raise
            file_id = self.file_id()
            values = (before.st_dev, before.st_ino, before.st_mtime_ns, before.st_size)
            self.opened_file = file_id if file_id == values[: len(file_id)] else None

    def file_id(self) -> tuple[int, ...]:
        """Return device and inode of the file at the path now.

        For a file that is read as immutable, also its time and size, so that a change of the
        file leads to a new connection.
        """
        status = os.stat(self.folder / DATABASE)
        if self._connection.is_immutable:
            return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
        return status.st_dev, status.st_ino

    def is_replaced(self) -> bool:
        """Return whether another file is at the path now; False if there is none."""
        try:
            return self.file_id() != self.opened_file
        except OSError:
            return False

    @property
    def connection(self) -> Connection:
        """Return the connection; a forked process opens its own, since they cannot be shared."""
        if self._pid != os.getpid():
            self._connection, self._pid = connect(self.folder), os.getpid()
            self._lock = threading.RLock()
        return self._connection

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __del__(self) -> None:
        # Python 3.13 warns about connections that the garbage collector closes.
        if getattr(self, "_pid", None) == os.getpid() and hasattr(self, "_connection"):
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one version of the store in several statements."""
        with self._lock, store_errors(self.location):
            if self.connection.in_transaction:
                yield
                return
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction: it is committed at the end of the block, or undone."""
        with self._lock, store_errors(self.location):
            connection = self.connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def checkpoint(self) -> None:
        """Copy the WAL into ``store.db`` without waiting for readers.

        Called after each commit, so that the WAL is small and ``store.db`` complete if a process
        is killed.
        """
        with self._lock, store_errors(self.location):
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def check_integrity(self) -> None:
        """Have SQLite check its pages and indexes, which takes a second per million clips.

        From SQLite 3.44 on, this includes the full-text indexes. A connection checks its cached
        copy of them, and would report false damage if another process wrote meanwhile, so the check
        uses a new connection. The settings of the full-text indexes are compared too, because FTS5
        refuses to write with others.
        """
        with store_errors(self.location), closing(connect(self.folder)) as connection:
            limit = len(TEXT_INDEXES) + 1
            rows = connection.execute(f"PRAGMA integrity_check({limit})").fetchall()
            settings = [
                connection.execute(f"SELECT k, v FROM {index}_config").fetchall()
                for index in TEXT_INDEXES
            ]
        if any(each != TEXT_INDEX_SETTINGS for each in settings):
            raise damage(f"a full-text index in {DATABASE}", self.location)
        problems = [text for (text,) in rows if text != "ok" and not _is_missing_check(text)]
        if problems:
            raise damage(f"{DATABASE} ({problems[0]})", self.location)

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, store_errors(self.location):
            return self.connection.execute(statement, parameters).fetchall()

    def value(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Return the first column of the first row; None if there is no row."""
        rows = self.rows(statement, parameters)
        return rows[0][0] if rows else None

    def verified_rows(
        self, table: str, where: str = "", parameters: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return rows of a table as ``(id, *values)``, each compared with its checksum.

        Without ``where``, their number and the sum of their checksums are compared as well.
        """
        with self.reading():
            rows = self.rows(f"SELECT {quoted_names(table)} FROM {table} {where}", parameters)
            if not all(is_intact(table, row) for row in rows):
                raise table_damage(table, self.location)
            if not where and table in COUNTED:
                total = sum(row[-1] for row in rows)
                require_total(self.connection, self.location, table, len(rows), total)
        return [row[:-1] for row in rows]

    def verified_rows_by(
        self, table: str, column: str, ids: Sequence[int]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows whose ``column`` is one of ``ids``, compared with their checksums."""
        for start in range(0, len(ids), PARAMETERS):
            part = ids[start : start + PARAMETERS]
            marks = ", ".join("?" * len(part))
            yield from self.verified_rows(table, f'WHERE "{column}" IN ({marks})', part)


def _is_missing_check(problem: str) -> bool:
    """Report whether SQLite could not check a full-text index.

    Versions 3.44.0 to 3.44.2 cannot do this on a connection that only reads.
    """
    unable, read_only = "unable to validate the inverted index", "readonly database"
    return problem.startswith(unable) and problem.endswith(read_only)


def connect(folder: Path, *, is_writer: bool = False) -> Connection:
    """Open ``store.db``. Transactions are begun explicitly.

    Readers open it for writing too where they may, because SQLite must finish or roll back what a
    killed writer left; ``query_only`` keeps them from changing anything.
    """
    is_writable = os.access(folder / DATABASE, os.W_OK) and os.access(folder, os.W_OK)
    mode = "mode=rw" if is_writable else "mode=ro"
    if not is_writable and not _has_wal(folder):
        mode = IMMUTABLE  # A read-only disk: nobody else writes.
    connection = _open(folder, mode, is_writer=is_writer)
    if is_writer or mode == IMMUTABLE:
        return connection
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF not in NO_SPACE or _has_wal(folder):
            raise
        return _open(folder, IMMUTABLE)  # A store on a full disk can still be searched.
    except BaseException:
        connection.close()
        raise
    return connection


def _has_wal(folder: Path) -> bool:
    """Return whether there may be commits that are not in ``store.db`` yet."""
    wal = folder / f"{DATABASE}-wal"
    return wal.exists() and wal.stat().st_size > 0


def _open(folder: Path, mode: str, *, is_writer: bool = False) -> Connection:
    address = f"file:{quote(str(folder.absolute() / DATABASE))}"
    connection = sqlite3.connect(
        f"{address}?{mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_SECONDS,
        check_same_thread=False,
        factory=Connection,
    )
    connection.is_immutable = mode == IMMUTABLE
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        if is_writer:
            _prepare_writer(connection, folder)
        else:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare_writer(connection: sqlite3.Connection, folder: Path) -> None:
    journal = "DELETE" if is_network_disk(folder) else "WAL"
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")  # A repair reads every page, free ones too.
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # The writer does so after each commit.
    connection.execute("PRAGMA cache_size = -32000")


TAGS = list(COLUMNS["files"]).index("tags") - list(COLUMNS["files"]).index("status")
"""Index of the tags among the columns of a file from its status on."""


@dataclass
class State:
    """Row of the table ``state``."""

    version: int = 0
    """Number of commits."""
    next_clip_id: int = 1
    next_content_id: int = 1
    next_segment_id: int = 1
    text_checksum: int | None = None
    """Checksum of the full-text indexes; None while they change."""


def read_state(database: Database) -> State:
    rows = database.verified_rows("state")
    if len(rows) != 1:
        raise table_damage("state", database.location)
    return State(*rows[0][1:])


def put_state(connection: sqlite3.Connection, state: State) -> None:
    put_row(connection, "state", 1, tuple(vars(state).values()))


def read_manifest(database: Database) -> Manifest:
    rows = database.verified_rows("manifest")
    try:
        return Manifest.from_json(rows[0][1])
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise table_damage("manifest", database.location) from error


def put_manifest(connection: sqlite3.Connection, manifest: Manifest) -> None:
    """Store the manifest and its copy, which is on another page."""
    for table in ("manifest", "manifest_copy"):
        put_row(connection, table, 1, (manifest.to_json(),))


def read_segments(database: Database) -> list[SegmentInfo]:
    """Return the segments in the order of their ids."""
    return [SegmentInfo.from_row(row) for row in database.verified_rows("segments")]


def read_bank(database: Database, manifest: Manifest) -> HubnessBank | None:
    rows = database.verified_rows("hubness")
    return HubnessBank.from_row(rows[0][1:], manifest.dim) if rows else None


def read_files(database: Database) -> list[IndexedFile]:
    """Return all files, compared with their total."""
    with database.reading():
        rows = database.verified_rows("files")
        hashes = dict(database.verified_rows("contents"))
    files = []
    for _, path, size, modified_ns, content_id, *rest in rows:
        if content_id is not None and content_id not in hashes:
            raise table_damage("contents", database.location)
        content = "" if content_id is None else hashes[content_id]
        file = IndexedFile(path, size, modified_ns, content, *rest)
        files.append(replace(file, tags=tuple(json.loads(rest[TAGS]))))
    return files


def read_hidden(database: Database) -> NDArray[np.int64]:
    """Return the ids of hidden clips, compared with their total."""
    with database.reading():
        rows = database.rows(f"SELECT clip_id FROM {HIDDEN}")
        ids = np.array([row[0] for row in rows], np.int64)
        total = database.rows("SELECT num_rows, checksum FROM totals WHERE name = ?", (HIDDEN,))
    if total != [(len(ids), int(ids.sum()))]:
        raise table_damage(HIDDEN, database.location)
    return ids


def put_bank(connection: sqlite3.Connection, bank: HubnessBank) -> None:
    put_row(connection, "hubness", 1, bank.to_row())


def create(
    folder: Path,
    manifest: Manifest,
    bank: HubnessBank | None = None,
    fill: Callable[[sqlite3.Connection], None] | None = None,
) -> None:
    """Create a store with the rows that ``fill`` inserts, and replace any other in one step."""
    partial = folder / f".{DATABASE}.partial"
    with store_errors(folder):
        make_folder(folder / FOLDER)
        for path in folder.glob(f".{DATABASE}.partial*"):
            path.unlink()
        create_file(partial)
        connection = sqlite3.connect(partial, isolation_level=None)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            create_tables(connection)
            put_manifest(connection, manifest)
            put_state(connection, State())
            if bank is not None:
                put_bank(connection, bank)
            if fill is not None:
                fill(connection)
            connection.execute("COMMIT")
        finally:
            connection.close()
        for suffix in ("-wal", "-shm", "-journal"):  # SQLite would apply them to the new file.
            (folder / f"{DATABASE}{suffix}").unlink(missing_ok=True)
        sync(folder)
        partial.replace(folder / DATABASE)
        sync(folder)
