"""The embedded store in LanceDB tables. Only this file and ``lance_words`` import lancedb."""

from __future__ import annotations

import errno
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.core.errors import StoreError
from eaglenet.search.store.durability import TableSync
from eaglenet.search.store.faults import disk_errors
from eaglenet.search.store.lance_columns import clip_schema, dense, file_schema, fixed, row_check
from eaglenet.search.store.lance_words import SOURCES, WORDS, LanceWords, any_of
from eaglenet.search.store.layout import FeatureLayout, Records
from eaglenet.search.store.tables import ClipKey, ClipRows, FileRow, clip_id_of

logger = logging.getLogger(__name__)

CLIPS, FILES = "clips", "files"
TABLES = (CLIPS, FILES, WORDS, SOURCES)
OWN_COLUMNS = ("frames", "mask", "seconds")
"""Parts of a record with a column of their own; the rest (tokens, prepared...) is ``extra``."""


FOREVER = timedelta(days=36_500)
KEEP_VERSIONS = timedelta(hours=1)
"""Old versions that a reader of the tables may still be at; searching never is."""
MANY = 500
"""Values in one condition."""
REFUSALS = {
    "No space left": errno.ENOSPC,
    "os error 28": errno.ENOSPC,
    "Permission denied": errno.EACCES,
    "Read-only file system": errno.EROFS,
}
"""What the operating system said, as Lance's errors quote it."""


class LanceStore:
    """Clips and files of one store folder.

    ``is_searched``: whether clips of it were published, so that its tables cannot be new.
    On object storage ``folder`` is its address, ``storage`` what reaching it takes, and
    ``before_writing`` refuses where this process is not the one writer any more.
    """

    def __init__(
        self,
        folder: Path | str,
        layout: FeatureLayout,
        dim: int,
        *,
        is_searched: bool = False,
        before_writing: Callable[[], None] | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        try:
            import lancedb
        except ImportError as error:
            raise StoreError(
                f"writing a store needs lancedb ({error}); install it with: "
                "pip install 'eaglenet[search]'"
            ) from error
        self.folder = folder
        self.layout = layout
        self.dim = dim
        self.is_searched = is_searched
        self._before_writing = before_writing or (lambda: None)
        self._is_remote = not isinstance(folder, Path)
        self._sync: Callable[[], None] = self._before_writing  # An object is durable once written.
        if isinstance(folder, Path):
            self._sync = TableSync(folder, [f"{name}.lance" for name in TABLES])
        names = [name for name in layout.dtype.names or () if name not in OWN_COLUMNS]
        self._extra = np.dtype([(name, layout.dtype[name]) for name in names]) if names else None
        with self._errors():
            self._database = lancedb.connect(folder, storage_options=dict(storage or {}))
            self._require_both_tables()
            self._clips = self._table(CLIPS, clip_schema(layout, dim))
            self._files = self._table(FILES, file_schema())
        self._words: LanceWords | None = None

    def words(self) -> LanceWords:
        if self._words is None:
            self._words = LanceWords(self._database, self._errors, self._writing)
        return self._words

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._before_writing()
        with self._errors():
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Lance says in words what went wrong; a disk's refusals are given their numbers back."""
        with disk_errors(self.folder, is_searched=self.is_searched):
            try:
                yield
            except StoreError:
                raise
            except Exception as error:
                text = str(error)
                for words, number in REFUSALS.items():
                    if words in text:
                        raise OSError(number, text.splitlines()[0]) from error
                if self._is_remote and ("LanceError(IO)" in text or "Generic" in text):
                    cause = " ".join(text.split())[:400]
                    raise StoreError(
                        f"{self.folder}: {cause}; what was reported as done is safe, try again"
                    ) from error
                if isinstance(error, OSError):
                    raise
                # Damage comes as any error, a panic of Rust among them.
                cause = (text.splitlines() or [type(error).__name__])[0][:200]
                raise self._damaged("", cause) from error

    def _damaged(self, table: str, what: str) -> StoreError:
        where = f"{table}.lance: " if table else ""
        return StoreError(
            f"the tables of {self.folder} are damaged ({where}{what}); what can be "
            "searched now stays searchable. Restore the folder, or index the videos into a new "
            "--store"
        )

    def _require_both_tables(self) -> None:
        """A table that got lost is not made anew: that would empty what can be searched."""
        rows = {name: self._count_rows(name) for name in (CLIPS, FILES)}
        missing = [f"{name}.lance" for name, count in rows.items() if count is None]
        # Both tables are made before the first snapshot, and are empty until then.
        if missing and (self.is_searched or any(rows.values())):
            rest = "; what can be searched now stays searchable" if self.is_searched else ""
            raise StoreError(
                f"{self.folder} has lost {' and '.join(missing)}{rest}. Restore the folder, or "
                "index the videos into a new --store"
            )

    def _count_rows(self, name: str) -> int | None:
        """None where there is no such table."""
        try:
            return int(self._database.open_table(name).count_rows())
        except ValueError as error:
            if "was not found" not in str(error):
                raise
            return None

    def _table(self, name: str, schema: Any) -> Any:
        """Opened as it is: one that an earlier version made may lack a column."""
        if self._count_rows(name) is not None:
            return self._database.open_table(name)
        return self._database.create_table(name, schema=schema, exist_ok=True)

    def add_clips(self, rows: ClipRows) -> None:
        if not len(rows):
            return
        import pyarrow as pa

        # A table that was made before there were checks goes on without them.
        schema = self._clips.schema
        records = rows.records
        columns = {
            "clip_id": [clip_id_of(key) for key in rows.keys],
            "content": [content for content, _ in rows.keys],
            "number": [number for _, number in rows.keys],
            "path": rows.paths,
            "start": rows.starts,
            "end": rows.ends,
            "vector": fixed(rows.coarse, np.float32),
            "frames": fixed(records["frames"], np.float16),
            "mask": fixed(records["mask"], np.uint8),
            "seconds": fixed(records["seconds"], np.float32),
            "extra": self._pack_extra(records),
            "thumbnail": rows.thumbnails,
            "check": rows.checks(),
        }
        arrays = [
            value if isinstance(value, pa.Array) else pa.array(value, schema.field(name).type)
            for name, value in columns.items()
            if name in schema.names
        ]
        self._before_writing()
        with self._errors():
            self._clips.add(pa.Table.from_arrays(arrays, schema=schema))
        if self._is_remote:
            self._require_once(rows)

    def _require_once(self, rows: ClipRows) -> None:
        """Where the answer to a commit got lost, Lance commits once more: one of each is kept."""
        contents = sorted({content for content, _ in rows.keys})
        counts = Counter(self.clip_keys(contents))
        twice = [place for place, key in enumerate(rows.keys) if counts[key] > 1]
        if twice:
            logger.warning("%s: %d clips were stored twice; one is kept", self.folder, len(twice))
            with self._errors():
                ids = [clip_id_of(rows.keys[place]) for place in twice]
                self._clips.delete(any_of("clip_id", ids))
            self.add_clips(rows[twice])

    def clip_keys(self, contents: Sequence[str] | None = None) -> list[ClipKey]:
        if contents is None or len(contents) > MANY:
            keys = self._clip_keys(None)
            wanted = None if contents is None else set(contents)
            return [key for key in keys if wanted is None or key[0] in wanted]
        return self._clip_keys(any_of("content", contents)) if contents else []

    def _clip_keys(self, condition: str | None) -> list[ClipKey]:
        with self._errors():
            query = self._clips.search().select(["content", "number"])
            table = (query.where(condition) if condition else query).to_arrow()
        return list(zip(table["content"].to_pylist(), table["number"].to_pylist(), strict=True))

    def read_clips(self, keys: Sequence[ClipKey]) -> ClipRows:
        """In the order of ``keys``."""
        wanted = any_of("clip_id", map(clip_id_of, keys))
        with self._errors():
            table = self._clips.search().where(wanted).to_arrow()
        found = zip(table["content"].to_pylist(), table["number"].to_pylist(), strict=True)
        place = {key: row for row, key in enumerate(found)}
        if not set(keys) <= set(place):
            raise self._damaged(CLIPS, "clips are missing")
        table = table.take([place[key] for key in keys])
        records: Records = np.zeros(len(keys), self.layout.dtype)
        for name in OWN_COLUMNS:
            records[name] = dense(table[name]).reshape(records[name].shape)
        if self._extra is not None:
            extra = np.frombuffer(b"".join(table["extra"].to_pylist()), self._extra)
            for name in self._extra.names or ():
                records[name] = extra[name]
        rows = ClipRows(
            keys=list(keys),
            paths=table["path"].to_pylist(),
            starts=table["start"].to_numpy(),
            ends=table["end"].to_numpy(),
            coarse=dense(table["vector"]).reshape(len(keys), self.dim),
            records=records,
            thumbnails=table["thumbnail"].to_pylist(),
        )
        if "check" in table.column_names and rows.checks() != table["check"].to_pylist():
            raise self._damaged(CLIPS, "clips are not as they were written")
        return rows

    def remove_contents(self, contents: Sequence[str]) -> None:
        for part in _parts(list(contents), MANY):
            self._before_writing()
            with self._errors():
                self._clips.delete(any_of("content", part))

    def set_path(self, content: str, path: str) -> None:
        with self._writing():
            self._clips.update(where=any_of("content", [content]), values={"path": path})

    def files(self) -> list[FileRow]:
        with self._errors():
            rows = self._files.search().to_arrow().to_pylist()
        found = []
        for row in rows:
            check = row.pop("check", None)
            if check is not None and check != row_check(row):
                raise self._damaged(FILES, "a file's row is not as it was written")
            found.append(FileRow(**{**row, "tags": tuple(json.loads(row["tags"]))}))
        return found

    def put_files(self, rows: Sequence[FileRow]) -> None:
        if not rows:
            return
        import pyarrow as pa

        values: list[dict[str, Any]] = []
        for row in rows:
            plain = {**vars(row), "tags": json.dumps(row.tags)}
            values.append({**plain, "check": row_check(plain)})
        table = pa.Table.from_pylist(values, schema=self._files.schema)
        self._before_writing()
        with self._errors():
            merge = self._files.merge_insert("path")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(table)

    def remove_files(self, paths: Sequence[str]) -> None:
        for part in _parts(list(paths), MANY):
            self._before_writing()
            with self._errors():
                self._files.delete(any_of("path", part))

    def optimize(self) -> None:
        self._before_writing()
        tables = (self._clips, self._files, *self.words().tables())
        with self._errors():
            for table in tables:
                table.optimize(cleanup_older_than=FOREVER)
        # What the new version replaces is deleted once the new one is on the disk.
        self.sync()
        with self._errors():
            for table in tables:
                # A folder's lock has one holder: files that no version reads were left by a writer
                # that ended. One that lost its lease of a bucket may still be writing them.
                table.optimize(
                    cleanup_older_than=KEEP_VERSIONS, delete_unverified=not self._is_remote
                )
        self.sync()

    def sync(self) -> None:
        with self._errors():
            self._sync()

    def _pack_extra(self, records: Records) -> list[bytes]:
        if self._extra is None:
            return [b""] * len(records)
        extra = np.zeros(len(records), self._extra)
        for name in self._extra.names or ():
            extra[name] = records[name]
        return [row.tobytes() for row in extra]


def _parts(values: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
