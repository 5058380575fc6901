"""Export a store as tables for other programs, and import such tables again.

::

    export.json    manifest, hubness correction, number of rows of each table
    clips.*        id, file, span, vector, features, thumbnail
    files.*        path, size, date, content hash, status, tags
    sources.*      origins of transcript lines
    lines.*        transcript lines
    hubness.*      texts and vectors of the hubness bank

Features are lists of numbers, flat; their shapes are in the manifest.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from eaglenet.core import untrusted
from eaglenet.core.errors import ConfigError, StoreError, UsageError, cause_of, naming_extra
from eaglenet.core.files import atomic_write
from eaglenet.core.settings import from_plain
from eaglenet.core.text import format_bytes
from eaglenet.indexing.transcripts import make_store_lines
from eaglenet.store.base import Store, Writer
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import Changes, ClipBatch, IndexedFile, Source, SourceLines
from eaglenet.store.snapshot import Snapshot
from eaglenet.store.store import kind_of, open_store
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.video.recording import Place, Recording

Format = Literal["parquet", "lance", "csv"]
Columns = Mapping[str, Any]
"""Arrays and lists of one length by name; a row of an array ``[rows, n]`` is a list of numbers."""
BATCH_ROWS = 1024
MAX_UNPACKED_BYTES, MAX_EXPANSION = 2**28, 16
"""Maximum size of an unpacked row group: so many bytes, or so many times the size of its file if
that is more. Reading takes about four times as much memory."""
MAX_ROWS = 10**6
"""Maximum rows of a Parquet file; one per byte of the file if that is more."""


def require(kind: Format) -> None:
    """Raise an error that names the extra, if a format needs one that is not installed."""
    if kind == "lance":
        _lancedb()
    if kind == "parquet":
        _pyarrow("parquet")


def _pyarrow(extra: str) -> Any:
    with naming_extra(extra, "this needs pyarrow"):
        import pyarrow
    return pyarrow


def _lancedb() -> Any:
    with naming_extra("lance", "this needs lancedb"):
        import lancedb
    return lancedb


def write_table(folder: Path, name: str, kind: Format, chunks: Iterable[Columns]) -> int:
    """Write a table into a folder, unless it has no rows; return the number of rows."""
    if kind == "csv":
        return _write_csv(folder / f"{name}.csv", chunks)
    arrow = _pyarrow(kind)
    writer: Any = None
    count = 0
    try:
        for chunk in chunks:
            table = arrow.table({column: _to_arrow(arrow, chunk[column]) for column in chunk})
            count += table.num_rows
            if kind == "lance":
                if writer is None:
                    database = _lancedb().connect(str(folder))
                    writer = database.create_table(name, schema=table.schema)
                writer.add(table)
                continue
            if writer is None:
                from pyarrow import parquet

                writer = parquet.ParquetWriter(folder / f"{name}.parquet", table.schema)
            writer.write_table(table)
    finally:
        if writer is not None and kind == "parquet":
            writer.close()
    return count


def read_table(folder: Path, name: str, kind: Format) -> Iterator[dict[str, Any]]:
    """Yield a table of :func:`write_table` in chunks of rows; nothing if there is no table."""
    if kind == "csv":
        raise UsageError(
            f"{folder}: CSV has no features, so it cannot be imported; export as parquet or lance"
        )
    for batch in _batches(folder, name, kind):
        yield {column: _from_arrow(batch.column(column)) for column in batch.schema.names}


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """Convert a table to one dictionary per row."""
    lists = [
        values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _batches(folder: Path, name: str, kind: Format) -> Iterator[Any]:
    if kind == "lance":
        lancedb = _lancedb()
        if (folder / f"{name}.lance").is_dir():
            table = lancedb.connect(str(folder)).open_table(name)
            yield from table.search().to_batches(BATCH_ROWS)
        return
    path = folder / f"{name}.parquet"
    if path.is_file():
        with open_parquet(path) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS)


def open_parquet(path: Path) -> Any:
    """Open a Parquet file; ``ValueError`` if it unpacks to much more than its size.

    The file states its sizes. If they are wrong, the format still limits a page to 2 GiB.
    """
    _pyarrow("parquet")
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    metadata, size = file.metadata, path.stat().st_size
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    num_bytes = max((group.total_byte_size for group in groups), default=0)
    rows = sum(group.num_rows for group in groups)
    if num_bytes > max(MAX_UNPACKED_BYTES, MAX_EXPANSION * size) or rows > max(MAX_ROWS, size):
        file.close()
        raise ValueError(
            f"{format_bytes(size)} that unpack to {rows:,} rows and {format_bytes(num_bytes)}"
        )
    return file


def _to_arrow(arrow: Any, values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        # A copy: fields of features are not aligned, but Arrow requires it.
        flat = np.array(values, order="C").reshape(-1)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(flat), values.shape[1])
    return arrow.array(values, from_pandas=True)  # NaN becomes null.


def _from_arrow(column: Any) -> Any:
    kind = str(column.type)
    if kind.startswith("fixed_size_list"):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(column), column.type.list_size)
    if kind in ("string", "large_string", "binary", "large_binary"):
        return column.to_pylist()
    return column.to_numpy(zero_copy_only=False)


def _write_csv(path: Path, chunks: Iterable[Columns]) -> int:
    """Write ``[1,2,3]`` for a vector, as pgvector reads it; leave out other lists and bytes.

    Cells of unknown values (NaN) are empty.
    """
    count = 0
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream:
        writer = csv.writer(stream)
        for chunk in chunks:
            columns = {name: values for name, values in chunk.items() if _is_plain(name, values)}
            if not count:
                writer.writerow(columns)
            rows = list(zip(*map(_cells, columns.values()), strict=True))
            writer.writerows(rows)
            count += len(rows)
    return count


def _is_plain(name: str, values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.ndim == 1 or name == "vector"
    return not isinstance(values[0], bytes)


def _cells(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return ["[" + ",".join(f"{value:.9g}" for value in row) + "]" for row in values]
    values = values.tolist() if isinstance(values, np.ndarray) else values
    return [None if value != value else value for value in values]


DESCRIPTION = "export.json"
VERSION = 1
TABLES = ("clips", "files", "sources", "lines", "hubness")
HASH = re.compile(r"[0-9a-f]{32}")
MAX_INTEGER = 2**63 - 1
"""Maximum integer that SQLite stores."""
OPTIONAL = ("recorded", "latitude", "longitude", "camera")
"""Fields that may be unknown."""
Record = TypeVar("Record", IndexedFile, Source)


def export_store(location: str | Path, folder: Path, kind: Format) -> dict[str, int]:
    """Write the tables of a store into a new folder; return the number of rows of each."""
    require(kind)
    store = open_store(location)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; export into a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    database = store.snapshot().database
    # In one transaction, so that all tables are of one version while a writer works.
    with database.reading(), _empty_on_failure(folder):
        snapshot = store.snapshot()
        if snapshot.database is not database:
            raise StoreError(f"{location} was replaced while it was exported; export it again")
        bank = snapshot.hubness_bank
        chunks = {
            "clips": _clip_chunks(snapshot),
            "files": _file_chunks(store),
            "sources": _row_chunks([vars(source) for source, _ in snapshot.transcripts()]),
            "lines": _line_chunks(snapshot),
            "hubness": _bank_chunks(bank),
        }
        rows = {name: write_table(folder, name, kind, chunks[name]) for name in TABLES}
        _describe(folder, kind, rows, store.manifest, bank)
    return rows


@contextmanager
def _empty_on_failure(folder: Path) -> Iterator[None]:
    """Empty a folder if the block fails or is interrupted, so that it can be written again."""
    try:
        yield
    except BaseException as error:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"{folder}: cannot be written: {cause_of(error)}") from error
        raise


def _describe(
    folder: Path, kind: Format, rows: dict[str, int], manifest: Manifest, bank: HubnessBank | None
) -> None:
    description = {
        "version": VERSION,
        "format": kind,
        "rows": rows,
        "manifest": json.loads(manifest.to_json()),
        "hubness": (
            None
            if bank is None
            else {"source": bank.source, "weight": bank.weight, "scale": bank.scale}
        ),
    }
    # Written last: a folder without it is incomplete.
    with atomic_write(folder / DESCRIPTION) as partial:
        partial.write_text(json.dumps(description, indent=2) + "\n")


def _clip_chunks(snapshot: Snapshot) -> Iterator[Columns]:
    files = snapshot.files()
    paths = {content: paths[0] for content, paths in zip(files.contents, files.paths, strict=True)}
    rows = np.arange(snapshot.num_rows)
    rows = rows if snapshot.visible is None else rows[snapshot.visible]
    for start in range(0, len(rows), BATCH_ROWS):
        batch_rows = rows[start : start + BATCH_ROWS]
        clips, features = snapshot.clips(batch_rows), snapshot.features_at(batch_rows)
        yield {
            "clip_id": [clip.id for clip in clips],
            "content": [clip.content for clip in clips],
            "number": np.array([clip.number for clip in clips], np.int32),
            "path": [paths[clip.content] for clip in clips],
            "start": np.array([clip.start for clip in clips]),
            "end": np.array([clip.end for clip in clips]),
            "from_keyframes": (
                np.zeros(len(batch_rows), bool)
                if snapshot.from_keyframes is None
                else snapshot.from_keyframes[batch_rows]
            ),
            "vector": snapshot.vectors_at(batch_rows),
            **{
                name: features[name].reshape(len(batch_rows), -1)
                for name in snapshot.manifest.layout.dtype.names or ()
            },
            "thumbnail": [snapshot.thumbnail(row) for row in batch_rows.tolist()],
        }


def _file_chunks(store: Store) -> Iterator[Columns]:
    rows = [
        {name: math.nan if value is None else value for name, value in vars(file).items()}
        | {"tags": json.dumps(file.tags), "camera": file.camera or ""}
        for file in store.files()
    ]
    return _row_chunks(sorted(rows, key=lambda row: str(row["path"])))


def _line_chunks(snapshot: Snapshot) -> Iterator[Columns]:
    for source, lines in snapshot.transcripts():
        origin = {"content": source.content, "kind": source.kind, "path": source.path}
        rows = [{**origin, **vars(line)} for line in lines]
        for row in rows:
            del row["terms"]  # Made again from the text.
        yield from _row_chunks(rows)


def _bank_chunks(bank: HubnessBank | None) -> Iterator[Columns]:
    if bank is not None:
        texts = bank.texts or ("",) * len(bank.vectors)
        yield {"text": list(texts), "vector": bank.vectors}


def _row_chunks(rows: Sequence[dict[str, Any]]) -> Iterator[Columns]:
    """Yield rows as columns; numbers become arrays, so that a column has one type in all chunks."""
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS]
        columns = {name: [row[name] for row in batch] for name in batch[0]}
        yield {
            name: values if isinstance(values[0], str) else np.array(values)
            for name, values in columns.items()
        }


def import_store(folder: Path, location: str | Path) -> int:
    """Add an export to a store, which is created if necessary; return its number of clips.

    Clips that the store has are skipped, and files with the same path replaced.
    """
    try:
        description = untrusted.read_object(folder / DESCRIPTION)
        kind, rows = description["format"], description["rows"]
        if description["version"] != VERSION or kind not in ("parquet", "lance", "csv"):
            raise ValueError(f"version {description['version']!r:.20}, format {kind!r:.20}")
        manifest = Manifest.from_json(json.dumps(description["manifest"]))
        reader = _Reader(folder, kind, rows)
        bank = reader.bank(description["hubness"], manifest.dim)
        with kind_of(location).write(str(location), manifest, bank) as writer:
            reader.copy(writer)
            return writer.finish()
    except (ConfigError, KeyError, ValueError, TypeError, OverflowError, OSError) as error:
        raise UsageError(
            f"{folder} is not a whole export ({cause_of(error):.200}); make one with: eaglenet "
            "store export FOLDER --format parquet"
        ) from error


class _Reader:
    """Reads the tables of an export, and compares their sizes with those in its description."""

    def __init__(self, folder: Path, kind: Format, rows: dict[str, int]) -> None:
        self.folder = folder
        self.kind = kind
        self.rows = rows

    def bank(self, values: dict[str, Any] | None, dim: int) -> HubnessBank | None:
        if values is None:
            return None
        chunks = list(self._chunks("hubness"))
        vectors = np.concatenate([np.asarray(chunk["vector"], np.float32) for chunk in chunks])
        if vectors.shape[1:] != (dim,) or not _have_unit_length(vectors):
            raise ValueError("a hubness bank without unit vectors of the model")
        texts = tuple(text for chunk in chunks for text in chunk["text"])
        weight, scale = float(values["weight"]), float(values["scale"])
        return HubnessBank(
            str(values["source"]), vectors, weight, scale, texts if any(texts) else ()
        )

    def copy(self, writer: Writer) -> None:
        for chunk in self._chunks("clips"):
            writer.commit(Changes(clips=[clip_batch(chunk, writer.manifest)]))
        for chunk in self._chunks("files"):
            files = [_indexed_file(row) for row in rows_of(chunk)]
            _require_clips(writer, files)
            writer.commit(Changes(files=files))
        lines: dict[tuple[str, str, str], list[TranscriptLine]] = {}
        for chunk in self._chunks("lines"):
            for row in rows_of(chunk):
                key = (row["content"], row["kind"], row["path"])
                line = TranscriptLine(row["start"], row["end"], row["text"], row["language"])
                if not (math.isfinite(line.start) and math.isfinite(line.end)):
                    raise ValueError("a time of a transcript line is not finite")
                lines.setdefault(key, []).append(line)
        for chunk in self._chunks("sources"):
            sources = [_read_record(Source, row) for row in rows_of(chunk)]
            for each in sources:
                num_lines = len(lines.get(each.key, ()))
                if num_lines < each.lines:
                    raise ValueError(
                        f"a transcript of {each.content} has {num_lines} of {each.lines} lines"
                    )
            changes = [
                SourceLines(each, make_store_lines(lines.get(each.key, ()))) for each in sources
            ]
            writer.commit(Changes(transcripts=changes))

    def _chunks(self, name: str) -> Iterator[dict[str, Any]]:
        count = 0
        for chunk in read_table(self.folder, name, self.kind):
            count += len(next(iter(chunk.values())))
            yield chunk
        if count != self.rows[name]:
            raise ValueError(f"{name} has {count} rows instead of {self.rows[name]!r:.20}")


def clip_batch(columns: Columns, manifest: Manifest) -> ClipBatch:
    """Return the clips of a table of an export, which is untrusted."""
    contents, numbers = columns["content"], np.asarray(columns["number"])
    vectors = np.asarray(columns["vector"], np.float32)
    spans = np.stack([np.asarray(columns[name], np.float64) for name in ("start", "end")])
    if not all(HASH.fullmatch(content) for content in contents):
        raise ValueError("a content hash is not 32 hexadecimal digits")
    if (
        numbers.dtype.kind not in "iu"
        or numbers.min(initial=0) < 0
        or numbers.max(initial=0) > MAX_INTEGER
    ):
        raise ValueError("a clip number is negative, too large or not a whole number")
    if not np.isfinite(spans).all() or not (spans[0] <= spans[1]).all():
        raise ValueError("a time is not finite, or a clip ends before it starts")
    if not _have_unit_length(vectors):
        raise ValueError("the length of a vector is not 1")
    if not all(isinstance(image, bytes) for image in columns["thumbnail"]):
        raise ValueError("a thumbnail is not bytes")
    # Tables of earlier versions have no clips from keyframes.
    from_keyframes = np.asarray(columns.get("from_keyframes", np.zeros(len(contents), bool)))
    if from_keyframes.dtype != bool:
        raise ValueError("from_keyframes is neither true nor false")
    features = np.zeros(len(contents), manifest.layout.dtype)
    for name in manifest.layout.dtype.names or ():
        features[name] = np.asarray(columns[name]).reshape(features[name].shape)
        if not np.isfinite(features[name]).all():
            raise ValueError(f"a value of {name} is not finite")
    if not features["mask"].any(axis=1).all():
        raise ValueError("a clip has no frames")
    keys = list(zip(contents, numbers.tolist(), strict=True))
    return ClipBatch(
        keys=keys,
        starts=spans[0],
        ends=spans[1],
        vectors=vectors,
        features=features,
        thumbnails=list(columns["thumbnail"]),
        keyframe_keys=frozenset(itertools.compress(keys, from_keyframes.tolist())),
    )


def _have_unit_length(vectors: NDArray[np.float32]) -> bool:
    with np.errstate(over="ignore"):
        return np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.01)


def _require_clips(writer: Writer, files: Sequence[IndexedFile]) -> None:
    """Refuse finished files that lack clips, which would count as damage of the whole store."""
    for file in (file for file in files if file.status == "done"):
        num_clips = len(writer.clip_numbers(file.content))
        if num_clips < file.num_clips:
            raise ValueError(f"{file.path!r:.60} has {num_clips} of {file.num_clips} clips")


def _indexed_file(row: dict[str, Any]) -> IndexedFile:
    optional_values = {
        name: None for name in OPTIONAL if row.get(name) in ("", None) or row[name] != row[name]
    }
    file = _read_record(IndexedFile, {**row, **optional_values, "tags": json.loads(row["tags"])})
    if not math.isfinite(file.duration):
        raise ValueError(f"the duration of {file.path!r:.60} is not finite")
    # Raises an error for impossible values.
    Recording(file.recorded, Place(file.latitude or 0, file.longitude or 0), file.camera or "")
    return file


def _read_record(kind: type[Record], row: dict[str, Any]) -> Record:
    """Read a row of a table; refuse values that the store would not have written."""
    record = from_plain(kind, row)
    is_unread = record.content == "" and isinstance(record, IndexedFile)
    if not is_unread and not HASH.fullmatch(record.content):
        raise ValueError(f"content is {record.content!r:.60}")
    for value in vars(record).values():
        if value != value or (isinstance(value, int) and abs(value) > MAX_INTEGER):
            raise ValueError(f"a value of {record.path!r:.60} is not a number, or too large")
    return record
