"""Tables as Parquet files, Lance tables or CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eaglenet.core.errors import UsageError, naming_extra
from eaglenet.core.text import format_bytes

Format = Literal["parquet", "lance", "csv"]
Columns = Mapping[str, Any]
"""Arrays and lists of one length by name; a row of an array ``[rows, n]`` is a list of numbers."""
BATCH_ROWS = 1024
UNPACKED_BYTES, EXPANSION = 2**28, 16
"""Bytes that a row group may unpack to in any case, and in relation to the size of its file.
Reading takes about four times as much memory."""
UNPACKED_ROWS = 10**6
"""Rows that a Parquet file may have in any case; beyond it, at most one per byte."""


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
    """Write a table into a folder; returns its number of rows. Without rows, nothing is written."""
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
    """Read a table that :func:`write_table` wrote, some rows at a time; none if there is none."""
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

    Sizes are those that the file states. A file that states wrong ones is limited by the format, to
    2 GiB per page.
    """
    _pyarrow("parquet")
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    metadata, size = file.metadata, path.stat().st_size
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = max((group.total_byte_size for group in groups), default=0)
    rows = sum(group.num_rows for group in groups)
    if unpacked > max(UNPACKED_BYTES, EXPANSION * size) or rows > max(UNPACKED_ROWS, size):
        file.close()
        raise ValueError(
            f"{format_bytes(size)} that unpack to {rows:,} rows and {format_bytes(unpacked)}"
        )
    return file


def _to_arrow(arrow: Any, values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        # A copy: fields of features are not aligned, but Arrow requires it.
        flat = np.array(values, order="C").reshape(-1)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(flat), values.shape[1])
    return arrow.array(values)


def _from_arrow(column: Any) -> Any:
    kind = str(column.type)
    if kind.startswith("fixed_size_list"):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(column), column.type.list_size)
    if kind in ("string", "large_string", "binary", "large_binary"):
        return column.to_pylist()
    return column.to_numpy(zero_copy_only=False)


def _write_csv(path: Path, chunks: Iterable[Columns]) -> int:
    """Vectors become ``[1,2,3]``, as pgvector reads them; other lists and bytes are left out."""
    count = 0
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream:
        writer = csv.writer(stream)
        for chunk in chunks:
            columns = {name: values for name, values in chunk.items() if _is_plain(name, values)}
            if not count:
                writer.writerow(columns)
            rows = list(zip(*map(_texts, columns.values()), strict=True))
            writer.writerows(rows)
            count += len(rows)
    return count


def _is_plain(name: str, values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.ndim == 1 or name == "vector"
    return not isinstance(values[0], bytes)


def _texts(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return ["[" + ",".join(f"{value:.9g}" for value in row) + "]" for row in values]
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
