"""Stems of words, exactly as the full-text index makes them: SQLite itself is asked."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable

from eaglenet.store.schema import TOKENIZER

MAX_CACHED = 200_000


class Stemmer:
    """Stems words in an FTS5 table in memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stems: dict[str, str] = {}
        self._connection: sqlite3.Connection | None = None

    def __call__(self, words: Iterable[str]) -> dict[str, str]:
        """Stem of each word; a word that the index would split is its own stem."""
        wanted = set(words)
        with self._lock:
            new = sorted(wanted - self._stems.keys())
            if new:
                if len(self._stems) > MAX_CACHED:
                    self._stems, new = {}, sorted(wanted)
                self._stems.update(self._stem(new))
            return {word: self._stems[word] for word in wanted}

    def _stem(self, words: list[str]) -> dict[str, str]:
        connection = self._connection
        if connection is None:
            connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            connection.execute(
                f'CREATE VIRTUAL TABLE words USING fts5(word, tokenize="{TOKENIZER}")'
            )
            connection.execute("CREATE VIRTUAL TABLE stems USING fts5vocab(words, 'instance')")
            self._connection = connection
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO words(rowid, word) VALUES (?, ?)", enumerate(words))
        tokens: dict[int, list[str]] = {}
        for number, token in connection.execute("SELECT doc, term FROM stems"):
            tokens.setdefault(number, []).append(token)
        connection.execute("ROLLBACK")
        stems = {}
        for number, word in enumerate(words):
            own = tokens.get(number, [])
            stems[word] = own[0] if len(own) == 1 else word
        return stems


stem_words = Stemmer()
