"""Schema of ``store.db``: tables, checksums of rows, versions.

Every row that is trusted carries a checksum of its table, id and values. Triggers keep the number
of rows and the sum of their checksums in ``totals``, so that a row that disappears is noticed too.
``docs/store.md`` describes the tables for people.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eaglenet.core.errors import StoreError
from eaglenet.store.disk import damage

DATABASE = "store.db"
APPLICATION_ID = 0x45474C45
"""``EGLE``; ``file store.db`` shows it."""
SCHEMA_VERSION = 2
PAGE_SIZE = 4096

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
    },
    "clips": {
        "content_id": "INTEGER NOT NULL",
        "number": "INTEGER NOT NULL",
        "start": "REAL NOT NULL",
        "end": "REAL NOT NULL",
    },
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

HIDDEN = "hidden"
"""Clips that no search shows: of unfinished files, or removed and still in a segment."""
WINDOW_TABLES = ("windows", "window_segments")
"""Tables that version 2 of the schema added."""
COUNTED = (
    "hubness", "contents", "files", "clips", "segments", "sources", "lines", HIDDEN, *WINDOW_TABLES
)  # fmt: skip
"""Tables with an entry in ``totals``."""


def _table(name: str, columns: Mapping[str, str]) -> str:
    fields = "".join(f'  "{column}" {kind},\n' for column, kind in columns.items())
    return f'CREATE TABLE {name} (\n  "id" INTEGER PRIMARY KEY,\n{fields}  "checksum" INTEGER\n)'


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
"""Derived from ``lines``: rebuilt, never repaired."""


def _totals(version: int) -> str:
    """Create ``totals``; the statement names the version of the schema as well."""
    return (
        f"CREATE TABLE totals (/* schema {version} */ name TEXT PRIMARY KEY, "
        "num_rows INTEGER, checksum INTEGER)"
    )


FIRST_STATEMENTS = (
    *(_table(name, columns) for name, columns in COLUMNS.items() if name not in WINDOW_TABLES),
    f"CREATE TABLE {HIDDEN} (clip_id INTEGER PRIMARY KEY)",
    "CREATE TABLE obsolete (name TEXT PRIMARY KEY)",
    "CREATE INDEX files_by_content ON files (content_id)",
    "CREATE UNIQUE INDEX clips_by_content ON clips (content_id, number)",
    "CREATE UNIQUE INDEX sources_by_key ON sources (content_id, kind, path)",
    "CREATE INDEX lines_by_source ON lines (source_id, start)",
    *(trigger for name in COUNTED if name not in WINDOW_TABLES for trigger in _triggers(name)),
    *TEXT_STATEMENTS,
)
WINDOW_STATEMENTS = (
    *(_table(name, COLUMNS[name]) for name in WINDOW_TABLES),
    *(trigger for name in WINDOW_TABLES for trigger in _triggers(name)),
)
ADDED: dict[int, tuple[str, ...]] = {1: FIRST_STATEMENTS, 2: WINDOW_STATEMENTS}
"""What each version of the schema added. A version that only adds tables can be read by a newer
eaglenet as it is; a writer adds them."""


def statements_of(version: int) -> tuple[str, ...]:
    """All statements of a version."""
    added = (statement for number in range(1, version + 1) for statement in ADDED[number])
    return (*added, _totals(version))


def tables_of(version: int) -> tuple[str, ...]:
    """Tables with checksums that a store of this version has."""
    return tuple(table for table in COLUMNS if version >= 2 or table not in WINDOW_TABLES)


def _add_windows(connection: sqlite3.Connection) -> None:
    for statement in WINDOW_STATEMENTS:
        connection.execute(statement)
    _begin_totals(connection, WINDOW_TABLES)


MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _add_windows}
"""By the version a migration starts from; each runs inside a writer's transaction."""


def _begin_totals(connection: sqlite3.Connection, tables: Iterable[str]) -> None:
    connection.executemany("INSERT INTO totals VALUES (?, 0, 0)", [(name,) for name in tables])


def checksum(table: str, row_id: int, values: Iterable[Any]) -> int:
    """Checksum of a row."""
    text = repr((table, row_id, *values))
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def row_of(table: str, row_id: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """A row as it is stored: id, values, checksum."""
    return (row_id, *values, checksum(table, row_id, values))


def names_of(table: str) -> tuple[str, ...]:
    """All columns of a table, in order."""
    return ("id", *COLUMNS[table], "checksum")


def quoted_names(table: str) -> str:
    return ", ".join(f'{table}."{name}"' for name in names_of(table))


def insert_statement(table: str, *, replace_on: str = "") -> str:
    """An ``INSERT``; with ``replace_on``, a row with the same value there is updated."""
    names = names_of(table)
    fields, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" * len(names))
    statement = f"INSERT INTO {table} ({fields}) VALUES ({marks})"
    if replace_on:
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name != "id")
        statement += f" ON CONFLICT ({replace_on}) DO UPDATE SET {changes}"
    return statement


def is_intact(table: str, row: Sequence[Any]) -> bool:
    """Compare a whole row (id, values, checksum) with its checksum."""
    return bool(checksum(table, row[0], row[1:-1]) == row[-1])


def require_total(
    connection: sqlite3.Connection, location: object, table: str, num_rows: int, total: int
) -> None:
    """Compare the number of rows and the sum of their checksums with those in ``totals``."""
    expected = connection.execute(
        "SELECT num_rows, checksum FROM totals WHERE name = ?", (table,)
    ).fetchone()
    if expected != (num_rows, total):
        raise damage(f"table {table} in {DATABASE}", location)


def create_tables(connection: sqlite3.Connection) -> None:
    """Write the schema into an empty database, inside a transaction."""
    for statement in statements_of(SCHEMA_VERSION):
        connection.execute(statement)
    _begin_totals(connection, COUNTED)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def require_version(connection: sqlite3.Connection, location: object) -> int:
    """Return the version of the schema; refuse another program's database, or a newer version."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version")
    )
    stored = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master")}
    is_known = 1 <= version <= SCHEMA_VERSION and stored.issuperset(statements_of(version))
    if is_known and application == APPLICATION_ID:
        return int(version)
    is_other = not stored.issuperset(statements_of(SCHEMA_VERSION))
    if is_other and application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise StoreError(
            f"{location} was made by a newer eaglenet (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); update eaglenet, or use another --store"
        )
    raise damage(f"the schema in {DATABASE}", location)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date, one transaction for each step."""
    while True:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version >= SCHEMA_VERSION or version not in MIGRATIONS:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[version](connection)
            _rename_totals(connection, version + 1)
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _rename_totals(connection: sqlite3.Connection, version: int) -> None:
    """Make ``totals`` again with a statement that names this version."""
    rows = connection.execute("SELECT name, num_rows, checksum FROM totals").fetchall()
    connection.execute("DROP TABLE totals")
    connection.execute(_totals(version))
    connection.executemany("INSERT INTO totals VALUES (?, ?, ?)", rows)
