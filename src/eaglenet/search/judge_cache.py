"""Numbers of a judge, kept beside the store that they are about."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

HIGHEST = 10
"""Largest number of a judge; the smallest is 0."""
CACHE_FILE = ".judge.db"
MAX_CACHED = 100_000
"""Numbers in the cache, about 10 MB; the oldest go first."""


class JudgeCache:
    """Numbers by key, in a file inside the folder of a store.

    A store without a folder, or in one that cannot be written to, has no cache. The file can be
    deleted at any time; a damaged one is.
    """

    def __init__(self, location: str) -> None:
        self.path = Path(location).absolute() / CACHE_FILE if os.path.isdir(location) else None

    def read(self, keys: Sequence[str]) -> dict[str, int]:
        """Valid numbers of these keys."""
        if self.path is None or not keys or not self.path.exists():
            return {}
        marks = ", ".join("?" * len(keys))
        statement = f"SELECT key, number FROM numbers WHERE key IN ({marks})"
        rows: list[tuple[Any, Any]] = []
        try:
            with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as connection:
                rows = connection.execute(statement, list(keys)).fetchall()
        except sqlite3.OperationalError:
            pass  # Locked or not readable; the server is asked again.
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self.path.unlink()
        return {key: value for key, value in rows if value in range(HIGHEST + 1)}

    def write(self, numbers: Mapping[str, int]) -> None:
        if self.path is None or not numbers:
            return
        statements = (
            "CREATE TABLE IF NOT EXISTS numbers (key TEXT UNIQUE, number INTEGER)",
            "DELETE FROM numbers WHERE rowid <= (SELECT max(rowid) FROM numbers) - "
            f"{MAX_CACHED - len(numbers)}",
        )
        with suppress(OSError):
            self.path.touch(mode=0o600)
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(self.path, timeout=1)) as connection,
            connection,
        ):
            for statement in statements:
                connection.execute(statement)
            connection.executemany("INSERT OR REPLACE INTO numbers VALUES (?, ?)", numbers.items())
