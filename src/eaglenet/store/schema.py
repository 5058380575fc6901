"""Schema of ``store.db``: tables, checksums of rows, versions.

Every row that is trusted carries a checksum of its table, id and values. Triggers keep the number
of rows and the sum of their checksums in ``totals``, so that a missing row is detected too.
``docs/reference/store.md`` describes the tables for people.
"""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglenet.core.errors import StoreError, shell_quote
from eaglenet.store.disk import DATABASE, damage, table_damage

APPLICATION_ID = 0x45474C45
"""``EGLE``; ``file store.db`` shows it."""
SCHEMA_VERSION = 2
PAGE_SIZE = 4096


class OldSchemaError(StoreError):
    """The store has an earlier schema that this eaglenet can bring up to date."""


COLUMNS: dict[str, dict[str, str]] = {
    "manifest": {"content": "TEXT NOT NULL"},
    "manifest_copy": {"content": "TEXT NOT NULL"},
    "state": {
        "version": "INTEGER NOT NULL",
        "next_clip_id": "INTEGER NOT NULL",
        "next_content_id": "INTEGER NOT NULL",
        "next_segment_id": "INTEGER NOT NULL",
        "text_checksum": "INTEGER",
    },
    "hubness": {
        "source": "TEXT NOT NULL",
        "weight": "REAL NOT NULL",
        "scale": "REAL NOT NULL",
        "vectors": "BLOB NOT NULL",
        "texts": "TEXT NOT NULL",
    },
    "contents": {"hash": "TEXT NOT NULL UNIQUE"},
    "files": {
        "path": "TEXT NOT NULL UNIQUE",
        "size": "INTEGER NOT NULL",
        "modified_ns": "INTEGER NOT NULL",
        "content_id": "INTEGER",
        "status": "TEXT NOT NULL",
        "reason": "TEXT NOT NULL",
        "duration": "REAL NOT NULL",
        "width": "INTEGER NOT NULL",
        "height": "INTEGER NOT NULL",
        "num_clips": "INTEGER NOT NULL",
        "tags": "TEXT NOT NULL",
        "recorded": "REAL",
        "latitude": "REAL",
        "longitude": "REAL",
        "camera": "TEXT",
    },
    "clips": {
        "content_id": "INTEGER NOT NULL",
        "number": "INTEGER NOT NULL",
        "start": "REAL NOT NULL",
        "end": "REAL NOT NULL",
    },
    "keyframe_clips": {"content_id": "INTEGER NOT NULL"},
    "segments": {
        "labels_version": "INTEGER NOT NULL",
        "num_rows": "INTEGER NOT NULL",
        "thumbnail_bytes": "INTEGER NOT NULL",
        "block_checksums": "BLOB NOT NULL",
    },
    "sources": {
        "content_id": "INTEGER NOT NULL",
        "kind": "TEXT NOT NULL",
        "path": "TEXT NOT NULL",
        "size": "INTEGER NOT NULL",
        "modified_ns": "INTEGER NOT NULL",
        "reader": "TEXT NOT NULL",
        "status": "TEXT NOT NULL",
        "reason": "TEXT NOT NULL",
        "language": "TEXT NOT NULL",
        "until": "REAL",
        "lines": "INTEGER NOT NULL",
    },
    "lines": {
        "source_id": "INTEGER NOT NULL",
        "start": "REAL NOT NULL",
        "end": "REAL NOT NULL",
        "language": "TEXT NOT NULL",
        "text": "TEXT NOT NULL",
        "terms": "TEXT NOT NULL",
        "origin": "TEXT NOT NULL",
    },
    "windows": {
        "segment_id": "INTEGER NOT NULL",
        "first_row": "INTEGER NOT NULL",
        "num_rows": "INTEGER NOT NULL",
        "encoder": "TEXT NOT NULL",
    },
    "window_segments": {
        "encoder": "TEXT NOT NULL",
        "dim": "INTEGER NOT NULL",
        "num_rows": "INTEGER NOT NULL",
        "block_checksums": "BLOB NOT NULL",
    },
}
"""Tables whose rows carry checksums, with their columns between ``id`` and ``checksum``."""
EARLIER_WIDTHS = {"files": 11}
"""Number of columns that a table had in schema 1; later ones were added after them."""

HIDDEN = "hidden"
"""Clips that no search returns: those of unfinished files, and removed ones still in a segment."""
KEYFRAME_CLIPS = "keyframe_clips"
"""Clips encoded from keyframes only, by clip id; exact ones replace them."""
WINDOW_TABLES = ("windows", "window_segments")
"""Vectors of transcript windows: the rows of each source, and the files that contain them."""
COUNTED = (
    "hubness", "contents", "files", "clips", KEYFRAME_CLIPS, "segments", "sources", "lines", HIDDEN,
    *WINDOW_TABLES,
)  # fmt: skip
"""Tables with an entry in ``totals``."""


def _table(name: str, columns: Mapping[str, str]) -> str:
    fields = "".join(f'  "{column}" {kind},\n' for column, kind in columns.items())
    return f'CREATE TABLE {name} (\n  "id" INTEGER PRIMARY KEY,\n{fields}  "checksum" INTEGER\n)'


def _totals(version: int) -> str:
    return (
        f"CREATE TABLE totals (/* schema {version} */ name TEXT PRIMARY KEY, "
        "num_rows INTEGER, checksum INTEGER)"
    )


def _triggers(name: str) -> Iterable[str]:
    column = "clip_id" if name == HIDDEN else "checksum"
    for event, count, total in (
        ("INSERT", "+ 1", f"+ new.{column}"),
        ("DELETE", "- 1", f"- old.{column}"),
        ("UPDATE", "", f"+ new.{column} - old.{column}"),
    ):
        yield (
            f"CREATE TRIGGER {name}_{event.lower()} AFTER {event} ON {name} BEGIN "
            f"UPDATE totals SET num_rows = num_rows {count}, checksum = checksum {total} "
            f"WHERE name = '{name}'; END"
        )


TEXT_INDEXES = ("words", "term_trigrams")
TEXT_INDEX_SETTINGS = [("version", 4)]
"""Rows that FTS5 writes when it creates an index; no setting is changed."""
TOKENIZER = "porter unicode61 remove_diacritics 0 categories 'L* N* Co M*'"
TEXT_STATEMENTS = (
    "CREATE VIRTUAL TABLE words USING fts5(terms, origin, content='lines', content_rowid='id', "
    f'tokenize="{TOKENIZER}")',
    "CREATE TABLE terms (id INTEGER PRIMARY KEY, term TEXT NOT NULL UNIQUE)",
    "CREATE VIRTUAL TABLE term_trigrams USING fts5(term, content='terms', content_rowid='id', "
    "tokenize='trigram', detail=none)",
    "CREATE TRIGGER terms_insert AFTER INSERT ON terms BEGIN "
    "INSERT INTO term_trigrams(rowid, term) VALUES (new.id, new.term); END",
    "CREATE TRIGGER words_insert AFTER INSERT ON lines BEGIN "
    "INSERT INTO words(rowid, terms, origin) VALUES (new.id, new.terms, new.origin); END",
    "CREATE TRIGGER words_delete AFTER DELETE ON lines BEGIN "
    "INSERT INTO words(words, rowid, terms, origin) "
    "VALUES ('delete', old.id, old.terms, old.origin); END",
)
"""Tables derived from ``lines``, which are rebuilt and not repaired."""


STATEMENTS = (
    *(_table(name, columns) for name, columns in COLUMNS.items()),
    f"CREATE TABLE {HIDDEN} (clip_id INTEGER PRIMARY KEY)",
    "CREATE TABLE obsolete (name TEXT PRIMARY KEY)",
    _totals(SCHEMA_VERSION),
    "CREATE INDEX files_by_content ON files (content_id)",
    "CREATE UNIQUE INDEX clips_by_content ON clips (content_id, number)",
    "CREATE UNIQUE INDEX sources_by_key ON sources (content_id, kind, path)",
    "CREATE INDEX lines_by_source ON lines (source_id, start)",
    *(trigger for name in COUNTED for trigger in _triggers(name)),
    *TEXT_STATEMENTS,
)


LONG_BLOB = 65_536
"""Bytes from which a blob enters the checksum of its row by its own checksum.

The texts of a hubness bank may have ten million characters, which would add 50 ms to every
first search.
"""


def checksum(table: str, row_id: int, values: Sequence[Any]) -> int:
    """Return the checksum of a row."""
    if bytes in map(type, values):  # Few rows have blobs, and every row that is read comes here.
        values = [zlib.crc32(value) if _is_long(value) else value for value in values]
    return _text_checksum(table, row_id, values)


def _text_checksum(table: str, row_id: int, values: Iterable[Any]) -> int:
    text = repr((table, row_id, *values))
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _is_long(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) >= LONG_BLOB


def row_of(table: str, row_id: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row as it is stored: id, values, checksum."""
    return (row_id, *values, checksum(table, row_id, values))


def names_of(table: str) -> tuple[str, ...]:
    """Return all columns of a table, in order."""
    return ("id", *COLUMNS[table], "checksum")


def quoted_names(table: str) -> str:
    return ", ".join(f'{table}."{name}"' for name in names_of(table))


def insert_statement(table: str, *, replace: bool = False) -> str:
    """Return an ``INSERT`` statement, which may ``replace`` the row with the same id."""
    names = names_of(table)
    fields, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" * len(names))
    statement = f"INSERT INTO {table} ({fields}) VALUES ({marks})"
    if replace:
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name != "id")
        statement += f" ON CONFLICT (id) DO UPDATE SET {changes}"
    return statement


def put_row(connection: sqlite3.Connection, table: str, row_id: int, values: Sequence[Any]) -> None:
    """Insert a row, or replace the one with this id."""
    connection.execute(insert_statement(table, replace=True), row_of(table, row_id, values))


def is_intact(table: str, row: Sequence[Any]) -> bool:
    """Compare a whole row (id, values, checksum) with its checksum."""
    row_id, *values, stored_checksum = row
    if checksum(table, row_id, values) == stored_checksum:
        return True
    # Earlier versions wrote long blobs out, too.
    return any(map(_is_long, values)) and _text_checksum(table, row_id, values) == stored_checksum


def require_total(
    connection: sqlite3.Connection, location: object, table: str, num_rows: int, total: int
) -> None:
    """Compare the number of rows and the sum of their checksums with those in ``totals``."""
    stored_total = connection.execute(
        "SELECT num_rows, checksum FROM totals WHERE name = ?", (table,)
    ).fetchone()
    if stored_total != (num_rows, total):
        raise table_damage(table, location)


def create_tables(connection: sqlite3.Connection) -> None:
    """Write the schema into an empty database, inside a transaction."""
    for statement in STATEMENTS:
        connection.execute(statement)
    connection.executemany("INSERT INTO totals VALUES (?, 0, 0)", [(name,) for name in COUNTED])
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def require_version(connection: sqlite3.Connection, location: object) -> None:
    """Refuse a database of another program, or of another version of the schema."""
    # In one transaction: another process may upgrade the store between two reads.
    connection.execute("BEGIN")
    try:
        application, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        statements = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master")}
    finally:
        connection.rollback()
    is_other = not statements.issuperset(STATEMENTS)  # These statements include the version too.
    if is_other and application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise StoreError(
            f"{location} was made by a newer eaglenet (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); update eaglenet, or use another store"
        )
    if is_other and version in MIGRATIONS:
        raise OldSchemaError(
            f"{location} has schema {version}, this eaglenet needs {SCHEMA_VERSION}; upgrade it "
            f"with: eaglenet store upgrade --store {shell_quote(location)}"
        )
    if (application, version) != (APPLICATION_ID, SCHEMA_VERSION) or is_other:
        raise damage(f"the schema in {DATABASE}", location)


def _add_recordings(connection: sqlite3.Connection) -> None:
    """Add time, place and camera of files (schema 1 to 2), unknown until the next index run."""
    table, width = "files", EARLIER_WIDTHS["files"]
    location = Path(connection.execute("PRAGMA database_list").fetchone()[2]).parent
    names = names_of(table)
    earlier = ", ".join(f'"{name}"' for name in (*names[: width + 1], names[-1]))
    rows = connection.execute(f"SELECT {earlier} FROM {table}").fetchall()
    require_total(connection, location, table, len(rows), sum(row[-1] for row in rows))
    if not all(is_intact(table, row) for row in rows):
        raise table_damage(table, location)
    connection.execute(f"DROP TABLE {table}")  # Its indexes and triggers go with it.
    connection.execute("UPDATE totals SET num_rows = 0, checksum = 0 WHERE name = ?", (table,))
    for statement in STATEMENTS:
        if re.search(rf"\b(TABLE|ON) {table}\b", statement):
            connection.execute(statement)
    missing_values = (None,) * (len(COLUMNS[table]) - width)
    values = [row_of(table, row[0], (*row[1:-1], *missing_values)) for row in rows]
    connection.executemany(insert_statement(table), values)


def _add_tables(connection: sqlite3.Connection) -> None:
    """Add empty tables for clips from keyframes and windows of transcripts (schema 1 to 2).

    The next index run encodes the windows.
    """
    for name in (KEYFRAME_CLIPS, *WINDOW_TABLES):
        for statement in (_table(name, COLUMNS[name]), *_triggers(name)):
            connection.execute(statement)
        connection.execute("INSERT INTO totals VALUES (?, 0, 0)", (name,))


def _make_schema_2(connection: sqlite3.Connection) -> None:
    _add_recordings(connection)
    _add_tables(connection)


MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _make_schema_2}
"""Migrations by the version they start from; each runs inside a writer's transaction."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date, one transaction for each step."""
    while True:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version >= SCHEMA_VERSION or version not in MIGRATIONS:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[version](connection)
            _set_version(connection, version + 1)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _set_version(connection: sqlite3.Connection, version: int) -> None:
    """Store a version of the schema, also in the statement of ``totals``."""
    rows = connection.execute("SELECT name, num_rows, checksum FROM totals").fetchall()
    connection.execute("DROP TABLE totals")
    connection.execute(_totals(version))
    connection.executemany("INSERT INTO totals VALUES (?, ?, ?)", rows)
    connection.execute(f"PRAGMA user_version = {version}")
