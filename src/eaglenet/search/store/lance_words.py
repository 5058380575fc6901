"""Lines of words in two LanceDB tables, and LanceDB's full-text index over them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from eaglenet.core.errors import StoreError, shell_quote
from eaglenet.core.types import TranscriptKind
from eaglenet.search.store.words import SourceRow, WordQuestion, WordRow

logger = logging.getLogger(__name__)

WORDS, SOURCES = "words", "sources"
MANY = 500
"""Values in one condition."""
LINE_COLUMNS = ("content", "source", "start", "end", "kind", "language", "words", "terms")


class LanceWords:
    """The tables of one store, made when they are first written to.

    ``errors`` turns what Lance says into errors about the store; ``writing`` refuses besides where
    this process is not the one writer any more.
    """

    def __init__(
        self,
        database: Any,
        errors: Callable[[], AbstractContextManager[None]],
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._database = database
        self._errors, self._writing = errors, writing
        with errors():
            self._tables = {
                name: database.open_table(name)
                for name in (WORDS, SOURCES)
                if _exists(database, name)
            }
        if self._has_lost_one():
            logger.warning("a table of words was lost; all words are read again")
            with errors():
                for name in self._tables:
                    database.drop_table(name)
            self._tables = {}

    def _has_lost_one(self) -> bool:
        """Lines are made after their first source, and only where there are any."""
        if WORDS in self._tables:
            return SOURCES not in self._tables
        return any(source.lines for source in self.sources())

    def sources(self) -> list[SourceRow]:
        if SOURCES not in self._tables:
            return []
        with self._errors():
            rows = self._tables[SOURCES].search().to_arrow().to_pylist()
        for row in rows:
            row.pop("key")
        return [SourceRow(**row) for row in rows]

    def add_lines(self, rows: Sequence[WordRow]) -> None:
        if not rows:
            return
        import pyarrow as pa

        values = [{**vars(row), "check": row.check()} for row in rows]
        with self._writing():
            words = self._made(WORDS)
            words.add(pa.Table.from_pylist(values, schema=words.schema))

    def remove_lines(self, sources: Sequence[str], since: float = 0.0) -> None:
        later = f" AND start >= {float(since)!r}" if since else ""
        self._delete(WORDS, "source", sources, later)

    def put_sources(self, rows: Sequence[SourceRow]) -> None:
        if not rows:
            return
        import pyarrow as pa

        values = [{**vars(row), "key": row.key} for row in rows]
        with self._writing():
            sources = self._made(SOURCES)
            table = pa.Table.from_pylist(values, schema=sources.schema)
            merge = sources.merge_insert("key")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(table)

    def remove_sources(self, keys: Sequence[str]) -> None:
        # The lines first: a source without lines is read again, lines without one stay for ever.
        self._delete(WORDS, "source", keys)
        self._delete(SOURCES, "key", keys)

    def tables(self) -> list[Any]:
        """Those that there are, for upkeep."""
        return list(self._tables.values())

    def _delete(self, name: str, column: str, values: Sequence[str], rest: str = "") -> None:
        if name not in self._tables:
            return
        for start in range(0, len(values), MANY):
            condition = any_of(column, values[start : start + MANY])
            with self._writing():
                self._tables[name].delete(f"{condition}{rest}")

    def _made(self, name: str) -> Any:
        if name not in self._tables:
            schema = _word_schema() if name == WORDS else _source_schema()
            table = self._database.create_table(name, schema=schema, exist_ok=True)
            if name == WORDS:
                self._made(SOURCES)
                _make_index(table)
            self._tables[name] = table
        return self._tables[name]


class LanceWordIndex:
    """See :class:`eaglenet.search.store.words.WordIndex`; ``version`` is one that is whole."""

    def __init__(
        self, folder: Path | str, version: int, storage: Mapping[str, str] | None = None
    ) -> None:
        try:
            import lancedb
        except ImportError as error:
            raise StoreError(
                f"searching words needs lancedb ({error}); install it with: "
                "pip install 'eaglenet[search]', or search pictures alone: --in visual"
            ) from error
        self.folder = folder
        with self._errors():
            database = lancedb.connect(folder, storage_options=dict(storage or {}))
            self._table = database.open_table(WORDS)
            self._table.checkout(version)
            self._database = database

    def find(
        self, question: WordQuestion, most: int, contents: Sequence[str] | None = None
    ) -> list[WordRow]:
        condition = any_of("kind", question.kinds)
        if contents is not None:
            condition += f" AND {any_of('content', contents)}"
        with self._errors():
            query = self._table.search(_query(question)).where(condition, prefilter=True)
            table = query.select([*LINE_COLUMNS, "check", "_score"]).limit(most).to_arrow()
        return [self._checked(row) for row in table.select([*LINE_COLUMNS, "check"]).to_pylist()]

    def lines_of(self, kinds: Sequence[TranscriptKind]) -> list[tuple[SourceRow, list[WordRow]]]:
        condition = any_of("kind", kinds)
        with self._errors():
            query = self._table.search().where(condition)
            rows = query.select([*LINE_COLUMNS, "check"]).to_arrow().to_pylist()
            found = (
                self._database.open_table(SOURCES).search().where(condition).to_arrow().to_pylist()
            )
        lines: dict[str, list[WordRow]] = {row["key"]: [] for row in found}
        for row in rows:
            if row["source"] in lines:
                lines[row["source"]].append(self._checked(row))
        sources = [(row.pop("key"), SourceRow(**row)) for row in found]
        # A run that goes on meanwhile may have stored more lines than its source tells, or fewer.
        return [(row, lines[key]) for key, row in sources if len(lines[key]) == row.lines]

    def count(self) -> int:
        with self._errors():
            return int(self._table.count_rows())

    def verify(self) -> int:
        with self._errors():
            rows = self._table.search().select([*LINE_COLUMNS, "check"]).to_arrow().to_pylist()
        return len([self._checked(row) for row in rows])

    def _checked(self, row: dict[str, Any]) -> WordRow:
        check = row.pop("check")
        line = WordRow(**row)
        if line.check() != check:
            raise self._damaged("a line is not as it was written")
        return line

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            # Damage comes as any error, a panic of Rust among them.
            text = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise self._damaged(text) from error

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            f"the words of {self.folder} are damaged ({what}); frames can be searched with --in "
            "visual. Forget the words with: eaglenet store repair --store "
            f"{shell_quote(self.folder)}; read them again with: eaglenet index FOLDER --store "
            f"{shell_quote(self.folder)}"
        )


def _exists(database: Any, name: str) -> bool:
    try:
        database.open_table(name)
    except ValueError as error:
        if "was not found" not in str(error):
            raise
        return False
    return True


def _make_index(words: Any) -> None:
    """Terms come from ``transcripts.lines``; Lance only has to split them at spaces."""
    from lancedb.index import FTS

    config = FTS(
        with_position=True,
        base_tokenizer="whitespace",
        max_token_length=None,
        lower_case=False,
        stem=False,
        remove_stop_words=False,
        ascii_folding=False,
    )
    words.create_index("terms", config=config)


def _query(question: WordQuestion) -> Any:
    from lancedb.query import BooleanQuery, MatchQuery, Occur, PhraseQuery

    parts: list[Any] = []
    for phrase in question.phrases:
        kind = PhraseQuery if len(phrase) > 1 else MatchQuery
        parts.append((Occur.MUST, kind(" ".join(phrase), "terms")))
    if question.terms:
        any_term = MatchQuery(" ".join(question.terms), "terms")
        parts.append((Occur.SHOULD, any_term))
    return parts[0][1] if len(parts) == 1 else BooleanQuery(parts)


def _word_schema() -> Any:
    import pyarrow as pa

    texts = {name: pa.string() for name in LINE_COLUMNS}
    times = {"start": pa.float64(), "end": pa.float64(), "check": pa.uint32()}
    return pa.schema(list({**texts, **times}.items()))


def _source_schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("key", pa.string()),
            ("content", pa.string()),
            ("kind", pa.string()),
            ("path", pa.string()),
            ("size", pa.int64()),
            ("modified_ns", pa.int64()),
            ("reader", pa.string()),
            ("status", pa.string()),
            ("reason", pa.string()),
            ("language", pa.string()),
            ("until", pa.float64()),
            ("lines", pa.int64()),
        ]
    )


def any_of(column: str, values: Any) -> str:
    """A condition on rows."""
    quoted = ", ".join("'" + str(value).replace("'", "''") + "'" for value in values)
    return f"{column} IN ({quoted})"
