"""Rows of ``store.db`` that describe the store itself: manifest, state, segments, hubness."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eaglenet.store.database import Database
from eaglenet.store.disk import create_file, damage, make_folder, store_errors, sync_folder
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import IndexedFile
from eaglenet.store.schema import (
    COLUMNS,
    DATABASE,
    HIDDEN,
    PAGE_SIZE,
    create_tables,
    insert_statement,
    row_of,
)
from eaglenet.store.segments import FOLDER, SegmentInfo

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
    rows = database.checked("state")
    if len(rows) != 1:
        raise damage("table state in store.db", database.location)
    return State(*rows[0][1:])


def put_state(connection: sqlite3.Connection, state: State) -> None:
    row = row_of("state", 1, tuple(vars(state).values()))
    connection.execute(insert_statement("state", replace_on="id"), row)


def read_manifest(database: Database) -> Manifest:
    rows = database.checked("manifest")
    try:
        return Manifest.from_json(rows[0][1])
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise damage("table manifest in store.db", database.location) from error


def put_manifest(connection: sqlite3.Connection, manifest: Manifest) -> None:
    """Store the manifest and its copy, which is on another page."""
    for table in ("manifest", "manifest_copy"):
        row = row_of(table, 1, (manifest.to_json(),))
        connection.execute(insert_statement(table, replace_on="id"), row)


def read_segments(database: Database) -> list[SegmentInfo]:
    """Segments in the order of their ids."""
    return [SegmentInfo.from_row(row) for row in database.checked("segments")]


def read_bank(database: Database, manifest: Manifest) -> HubnessBank | None:
    rows = database.checked("hubness")
    return HubnessBank.from_row(rows[0][1:], manifest.dim) if rows else None


def read_files(database: Database) -> list[IndexedFile]:
    """All files, compared with their total."""
    with database.reading():
        rows = database.checked("files")
        hashes = dict(database.checked("contents"))
    files = []
    for _, path, size, modified_ns, content_id, *rest in rows:
        if content_id is not None and content_id not in hashes:
            raise damage("table contents in store.db", database.location)
        content = "" if content_id is None else hashes[content_id]
        file = IndexedFile(path, size, modified_ns, content, *rest)
        files.append(replace(file, tags=tuple(json.loads(rest[TAGS]))))
    return files


def read_hidden(database: Database) -> NDArray[np.int64]:
    """Ids of hidden clips, compared with their total."""
    with database.reading():
        rows = database.rows(f"SELECT clip_id FROM {HIDDEN}")
        ids = np.array([row[0] for row in rows], np.int64)
        total = database.rows("SELECT num_rows, checksum FROM totals WHERE name = ?", (HIDDEN,))
    if total != [(len(ids), int(ids.sum()))]:
        raise damage(f"table {HIDDEN} in store.db", database.location)
    return ids


def put_bank(connection: sqlite3.Connection, bank: HubnessBank) -> None:
    row = row_of("hubness", 1, bank.to_row())
    connection.execute(insert_statement("hubness", replace_on="id"), row)


def create(
    folder: Path,
    manifest: Manifest,
    bank: HubnessBank | None = None,
    fill: Callable[[sqlite3.Connection], None] | None = None,
) -> None:
    """Make a store with the rows that ``fill`` inserts, in place of any other: all or nothing."""
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
        sync_folder(folder)
        partial.replace(folder / DATABASE)
        sync_folder(folder)
