"""Transcripts in SQLite: stores lines, and finds them with FTS5.

Two indexes are derived from the lines. ``words`` stems English words (Porter), and finds prefixes
and phrases. ``term_trigrams`` contains every distinct word and finds similar spellings. The caller
provides the normalised ``terms`` of a line: words without case and accents, or pairs of characters
for scripts without spaces.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from eaglenet.store.database import Database, read_state
from eaglenet.store.disk import damage, table_damage
from eaglenet.store.records import (
    Line,
    LineHit,
    LineQuery,
    Phrase,
    Source,
    SourceKey,
    SourceLines,
    TranscriptKind,
    WindowHit,
)
from eaglenet.store.schema import TEXT_INDEXES, TOKENIZER, insert_statement, put_row, row_of
from eaglenet.store.windows import NearWindows

SHORTEST_TERM = 4
"""Minimum characters of a term whose spelling is corrected."""
LONG_TERM = 6
"""Minimum characters of a term for which two edits are corrected."""
SIMILAR_CANDIDATES = 200
PREFIX_CANDIDATES = 2000
"""Words with a prefix that are read, in alphabetical order; the shortest of them are returned."""
INFINITY = float("inf")
LANGUAGE = "language"
"""Prefix of the term for the language of a line in the full-text index."""


def source_values(source: Source, content_id: int) -> tuple[Any, ...]:
    """Return values for the table ``sources``; NULL stands for infinity."""
    until = None if source.until == INFINITY else float(source.until)
    return tuple({**vars(source), "content": content_id, "until": until}.values())


def source_of(values: Sequence[Any], content: str) -> Source:
    """Return the source of values of the table; inverse of :func:`source_values`."""
    source = Source(content, *values[1:])
    return source if values[9] is not None else replace(source, until=INFINITY)


def put_source(connection: sqlite3.Connection, change: SourceLines, content_id: int) -> None:
    """Store a source with its lines, inside a transaction."""
    source = change.source
    key = (content_id, source.kind, source.path)
    row = connection.execute(
        "SELECT id FROM sources WHERE content_id = ? AND kind = ? AND path = ?", key
    ).fetchone()
    largest = "SELECT coalesce(max(id), 0) + 1 FROM"
    source_id = row[0] if row else connection.execute(f"{largest} sources").fetchone()[0]
    _remove_windows(connection, source_id)
    connection.execute(
        "DELETE FROM lines WHERE source_id = ? AND start >= ?",
        (source_id, float(change.keep_until) if change.keep_until else -INFINITY),
    )
    (num_earlier,) = connection.execute(
        "SELECT count(*) FROM lines WHERE source_id = ?", (source_id,)
    ).fetchone()
    values = source_values(replace(source, lines=num_earlier + len(change.lines)), content_id)
    put_row(connection, "sources", source_id, values)
    first = connection.execute(f"{largest} lines").fetchone()[0]
    origin = f"{source.kind} {_content_term(content_id)}"
    rows = [
        row_of("lines", line_id, _line_values(line, source_id, f"{origin} {_language_term(line)}"))
        for line_id, line in enumerate(change.lines, first)
    ]
    connection.executemany(insert_statement("lines"), rows)
    add_terms(connection, (line.terms for line in change.lines))


def _line_values(line: Line, source_id: int, origin: str) -> tuple[Any, ...]:
    """Return values for the table ``lines``; searches can be restricted by ``origin``."""
    times = float(line.start), float(line.end)
    return source_id, *times, line.language, line.text, line.terms, origin.rstrip()


def _content_term(content_id: int) -> str:
    return f"content{int(content_id)}"


def _language_term(line: Line) -> str:
    """Return the term for the language of a line, without its region; empty if unknown."""
    code = re.match("[A-Za-z]*", line.language)
    return f"{LANGUAGE}{code[0].lower()}" if code and code[0] else ""


def add_terms(connection: sqlite3.Connection, texts: Iterable[str]) -> None:
    """Add the words of lines to the table of distinct words."""
    words = {word for text in texts for word in text.split() if len(word) >= SHORTEST_TERM}
    connection.executemany(
        "INSERT OR IGNORE INTO terms (term) VALUES (?)", [(word,) for word in sorted(words)]
    )


def remove_source(connection: sqlite3.Connection, source_id: int) -> None:
    """Remove a source with its lines, inside a transaction."""
    _remove_windows(connection, source_id)
    connection.execute("DELETE FROM lines WHERE source_id = ?", (source_id,))
    connection.execute("DELETE FROM sources WHERE id = ?", (source_id,))


def _remove_windows(connection: sqlite3.Connection, source_id: int) -> None:
    """Remove the windows of a source whose lines change."""
    connection.execute("DELETE FROM windows WHERE id = ?", (source_id,))


def match_expression(query: LineQuery, content_ids: Sequence[int] | None = None) -> str:
    """Return a query in the syntax of FTS5; every term is quoted, so that none is an operator.

    >>> match_expression(LineQuery(("car", "vid*"), (Phrase(("no", "entry")),), kinds=("text",)))
    'terms : ("no entry" AND ("no entry" OR "car" OR "vid" *)) AND origin : ("text")'
    >>> match_expression(LineQuery(phrases=(Phrase(("keys", "table"), gap=3),), kinds=("text",)))
    'terms : (NEAR("keys" "table", 3)) AND origin : ("text")'
    """
    conditions = [_phrase(phrase) for phrase in query.phrases]
    terms = " OR ".join(map(_term, query.terms))
    if conditions and terms:
        # Terms besides a phrase rank lines higher but are not required.
        conditions.append(f"({conditions[0]} OR {terms})")
    expression = f"terms : ({' AND '.join(conditions) or terms})"
    for names in (query.kinds, map(_content_term, content_ids) if content_ids is not None else ()):
        origin = " OR ".join(f'"{name}"' for name in names)
        expression += f" AND origin : ({origin})" if origin else ""
    return expression


def _phrase(phrase: Phrase) -> str:
    if phrase.gap is None:
        return f'"{_escape_quotes(" ".join(phrase.terms))}"'
    terms = " ".join(f'"{_escape_quotes(term)}"' for term in phrase.terms)
    return f"NEAR({terms}, {phrase.gap})"


def _term(term: str) -> str:
    if term.endswith("*") and len(term) > 1:
        return f'"{_escape_quotes(term[:-1])}" *'
    return f'"{_escape_quotes(term)}"'


def _escape_quotes(text: str) -> str:
    return text.replace('"', '""').replace("\0", " ")


def find_lines(
    database: Database, query: LineQuery, limit: int, content_ids: Sequence[int] | None = None
) -> list[LineHit]:
    """Find the best lines by BM25; ``content_ids`` restricts them to some files."""
    if (
        not (query.terms or query.phrases)
        or not query.kinds
        or (content_ids is not None and not len(content_ids))
    ):
        return []
    statement = (
        "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words, 1.0, 0.0), rowid LIMIT ?"
    )
    with database.reading():
        rows = database.rows(statement, (match_expression(query, content_ids), limit))
        return _line_hits(database, [row[0] for row in rows])


def _line_hits(database: Database, ids: Sequence[int]) -> list[LineHit]:
    lines = {row[0]: row[1:] for row in database.verified_rows_by("lines", "id", ids)}
    source_ids = sorted({values[0] for values in lines.values()})
    sources = {row[0]: row[1:] for row in database.verified_rows_by("sources", "id", source_ids)}
    if len(lines) != len(ids) or len(sources) != len(source_ids):
        raise damage("the full-text index", database.location)
    contents = content_hashes(database, {values[0] for values in sources.values()})
    hits = []
    for source_id, *values, _ in map(lines.__getitem__, ids):
        content_id, kind = sources[source_id][:2]
        hits.append(LineHit(contents[content_id], content_id, kind, Line(*values)))
    return hits


def content_hashes(database: Database, ids: Iterable[int]) -> dict[int, str]:
    """Return content hashes by content id."""
    content_ids = sorted(ids)
    hashes = dict(database.verified_rows_by("contents", "id", content_ids))
    if len(hashes) != len(content_ids):
        raise table_damage("contents", database.location)
    return hashes


def similar_terms(database: Database, term: str, limit: int = 3) -> list[str]:
    """Return words of the transcripts that are spelled like ``term``, the most similar first.

    They differ by one edit if ``term`` has fewer than six letters, else by up to two.
    """
    if len(term) < SHORTEST_TERM or not term.isalnum():
        return []
    if len(term) < LONG_TERM:
        largest, words = 1, _one_edit_away(database, term)
    else:
        largest, words = 2, _with_common_trigrams(database, term)
    distances = {word: edit_distance(term, word, largest) for word in words}
    similar = [word for word, distance in distances.items() if 0 < distance <= largest]
    return sorted(similar, key=lambda word: (distances[word], word))[:limit]


def terms_beginning_with(database: Database, beginning: str, limit: int) -> list[str]:
    """Return words of the transcripts with this prefix, the shortest first."""
    rows = database.rows(
        "SELECT term FROM (SELECT term FROM terms WHERE term >= ? AND term < ? ORDER BY term "
        "LIMIT ?) ORDER BY length(term), term LIMIT ?",
        (beginning, beginning + chr(sys.maxunicode), PREFIX_CANDIDATES, limit),
    )
    return [word for (word,) in rows]


def languages_of_lines(database: Database, codes: Iterable[str]) -> list[str]:
    """Return the languages that a line has, read from the index, which has a checksum."""
    statement = "SELECT 1 FROM words WHERE words MATCH ? LIMIT 1"
    with database.reading():
        return [
            code for code in codes if database.rows(statement, (f'origin : "{LANGUAGE}{code}"',))
        ]


def _one_edit_away(database: Database, term: str) -> list[str]:
    """Return words that differ from ``term`` by one edit, and may share no trigram with it."""
    cuts = [(term[:position], term[position:]) for position in range(len(term) + 1)]
    patterns = [f"{head}?{tail}" for head, tail in cuts]  # One more letter.
    patterns += [f"{head}?{tail[1:]}" for head, tail in cuts if tail]  # Another letter.
    words = [head + tail[1:] for head, tail in cuts if tail]
    words += [head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1]
    conditions = " OR ".join(["term GLOB ?"] * len(patterns))
    marks = ", ".join("?" * len(words))
    rows = database.rows(
        f"SELECT term FROM terms WHERE {conditions} OR term IN ({marks})", [*patterns, *words]
    )
    return [word for (word,) in rows]


def _with_common_trigrams(database: Database, term: str) -> list[str]:
    trigrams = {term[start : start + 3] for start in range(len(term) - 2)}
    expression = " OR ".join(f'"{_escape_quotes(trigram)}"' for trigram in sorted(trigrams))
    rows = database.rows(
        "SELECT terms.term FROM term_trigrams JOIN terms ON terms.id = term_trigrams.rowid "
        "WHERE term_trigrams MATCH ? ORDER BY term_trigrams.rank LIMIT ?",
        (expression, SIMILAR_CANDIDATES),
    )
    return [word for (word,) in rows]


def edit_distance(one: str, other: str, largest: int) -> int:
    """Count insertions, deletions, replacements and swaps of neighbours; at most ``largest + 1``.

    >>> edit_distance("elefant", "elephant", 2), edit_distance("form", "from", 1)
    (2, 1)
    """
    if abs(len(one) - len(other)) > largest:
        return largest + 1
    before: list[int] = []
    previous = list(range(len(other) + 1))
    for row, character in enumerate(one, 1):
        current = [row]
        for column, candidate in enumerate(other, 1):
            is_same = character == candidate
            cost = min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (not is_same))
            is_swap = row > 1 and column > 1 and one[row - 2] == candidate
            if is_swap and character == other[column - 2]:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        if min(current) > largest:
            return largest + 1
        before, previous = previous, current
    return min(previous[-1], largest + 1)


def stored_sources(
    database: Database,
    kinds: Sequence[TranscriptKind] | None = None,
    content_id: int | None = None,
) -> list[tuple[int, Source]]:
    """Return all sources with their ids, or those of some kinds, or of one content."""
    conditions: list[str] = []
    values: list[Any] = []
    if kinds is not None:
        conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
        values += kinds
    if content_id is not None:
        conditions.append("content_id = ?")
        values.append(content_id)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    with database.reading():
        rows = database.verified_rows("sources", where, tuple(values))
        contents = content_hashes(database, {row[1] for row in rows})
    return [(row[0], source_of(row[1:], contents[row[1]])) for row in rows]


def sources_of_kinds(database: Database, kinds: Sequence[TranscriptKind]) -> list[int] | None:
    """Return the ids of the sources of some kinds; None if all are of these kinds."""
    marks = ", ".join("?" * len(kinds))
    if not database.rows(f"SELECT 1 FROM sources WHERE kind NOT IN ({marks}) LIMIT 1", kinds):
        return None
    rows = database.rows(f"SELECT id FROM sources WHERE kind IN ({marks})", kinds)
    return [number for (number,) in rows]


def source_id_of(database: Database, key: SourceKey) -> int | None:
    """Return the id of a source; None if it is not stored."""
    value: int | None = database.value(
        "SELECT sources.id FROM sources JOIN contents ON contents.id = sources.content_id "
        "WHERE contents.hash = ? AND sources.kind = ? AND sources.path = ?",
        key,
    )
    return value


def lines_of_source(database: Database, source_id: int) -> list[Line]:
    rows = database.verified_rows("lines", "WHERE source_id = ? ORDER BY start, id", (source_id,))
    return [Line(*row[2:-1]) for row in rows]


def window_hits(database: Database, near: NearWindows, limit: int) -> list[WindowHit]:
    """Return the windows that their sources still have, with their lines, nearest first."""
    hits: list[WindowHit] = []
    with database.reading():
        segment_ids = {number for (number,) in database.rows("SELECT id FROM window_segments")}
        if not segment_ids.issuperset(near.segment_ids.tolist()):  # Its windows have moved.
            raise table_damage("window_segments", database.location)
        source_ids = sorted(set(near.windows["source_id"].tolist()))
        rows_by_source = {
            row[0]: row[1:] for row in database.verified_rows_by("windows", "id", source_ids)
        }
        sources = {
            row[0]: row[1:] for row in database.verified_rows_by("sources", "id", source_ids)
        }
        contents = content_hashes(database, {values[0] for values in sources.values()})
        for window, segment_id, row, cosine in zip(
            near.windows, near.segment_ids, near.rows, near.cosines, strict=True
        ):
            if len(hits) >= limit:
                break
            source_id = int(window["source_id"])
            if source_id not in rows_by_source or source_id not in sources:
                continue
            segment, first_row, num_rows, _ = rows_by_source[source_id]
            if segment != segment_id or not first_row <= row < first_row + num_rows:
                continue
            span = int(window["num_lines"]), int(window["first_line"])
            where = "WHERE source_id = ? ORDER BY start, id LIMIT ? OFFSET ?"
            rows = database.verified_rows("lines", where, (source_id, *span))
            if len(rows) != span[0]:
                raise table_damage("windows", database.location)
            lines = tuple(Line(*values[2:-1]) for values in rows)
            content_id, kind = sources[source_id][:2]
            hits.append(WindowHit(contents[content_id], content_id, kind, lines, float(cosine)))
    return hits


def verify_text(database: Database) -> None:
    """Compare the full-text indexes with their checksum, unless it was compared before."""
    with database.reading():
        checksum = read_state(database).text_checksum
        if checksum is None or checksum == database.text_checksum:
            return  # A writer is active, or ended without storing a checksum.
        if text_checksum(database.connection) != checksum:
            raise damage("the full-text index", database.location)
        database.text_checksum = checksum


def text_checksum(connection: sqlite3.Connection) -> int:
    """Return the checksum of both full-text indexes: of every byte that FTS5 reads.

    FTS5 keeps changes in memory until they are committed, so call this after a commit.
    """
    total = 0
    for index in TEXT_INDEXES:
        for row in connection.execute(f"SELECT CAST(block AS BLOB) FROM {index}_data ORDER BY id"):
            total = zlib.crc32(row[0] or b"", total)
        terms = "segid || ' ' || hex(term) || ' ' || pgno"
        total = _add_table(connection, total, terms, "pgno", f"{index}_idx")
        total = _add_table(connection, total, "sz", "id", f"{index}_docsize")
    return _add_table(connection, total, "term", "id", "terms")


def _add_table(
    connection: sqlite3.Connection, total: int, column: str, number: str, table: str
) -> int:
    """Continue a checksum with the values of a table, joined by SQLite in the stored order.

    Without ``NOT INDEXED``, the order would depend on the index that a version of SQLite chooses.
    """
    values = connection.execute(
        f"SELECT CAST(group_concat({column}, '') AS BLOB), count(*), sum({number}) "
        f"FROM {table} NOT INDEXED"
    ).fetchone()
    return zlib.crc32(f" {values[1]} {values[2]}".encode(), zlib.crc32(values[0] or b"", total))


MAX_CACHED = 200_000


class Stemmer:
    """Stemmer that uses an FTS5 table in memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stems: dict[str, str] = {}
        self._connection: sqlite3.Connection | None = None

    def __call__(self, words: Iterable[str]) -> dict[str, str]:
        """Return the stem of each word; a word that the index would split is its own stem."""
        distinct = set(words)
        with self._lock:
            new = sorted(distinct - self._stems.keys())
            if new:
                if len(self._stems) > MAX_CACHED:
                    self._stems, new = {}, sorted(distinct)
                self._stems.update(self._stem(new))
            return {word: self._stems[word] for word in distinct}

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
