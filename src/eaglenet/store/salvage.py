"""Read rows from the pages of a damaged SQLite file, without its indexes, roots or header.

Every leaf page is looked at by itself, and a row is taken only if its own checksum is right: damage
to one page costs the rows on that page and no others. The format is that of
https://www.sqlite.org/fileformat2.html (table leaf pages, record format).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eaglenet.store.schema import COLUMNS, EARLIER_WIDTHS, PAGE_SIZE, is_intact, names_of

LEAF = 13
INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

_TABLES_BY_WIDTH: dict[int, list[str]] = {}
for _table in COLUMNS:
    _TABLES_BY_WIDTH.setdefault(len(names_of(_table)), []).append(_table)
for _table, _width in EARLIER_WIDTHS.items():
    _TABLES_BY_WIDTH.setdefault(_width + 2, []).append(_table)


def read_rows(path: Path) -> dict[str, dict[int, tuple[Any, ...]]]:
    """Intact rows by table and id, as ``(id, *values)``."""
    rows: dict[str, dict[int, tuple[Any, ...]]] = {table: {} for table in COLUMNS}
    file = path.read_bytes()
    for page in range(len(file) // PAGE_SIZE):
        for row_id, values in _cells(file, page):
            for table in _TABLES_BY_WIDTH.get(len(values), ()):
                row = (row_id, *_as_columns(table, values[1:]))
                if is_intact(table, row):
                    # Columns that an earlier schema did not have are unknown.
                    unknown = (None,) * (len(names_of(table)) - len(row))
                    rows[table][row_id] = (*row[:-1], *unknown)
    return rows


def _as_columns(table: str, values: list[Any]) -> list[Any]:
    """SQLite stores whole numbers of REAL columns as integers."""
    kinds = [*list(COLUMNS[table].values())[: len(values) - 1], "INTEGER"]
    return [
        float(value) if kind.startswith("REAL") and type(value) is int else value
        for value, kind in zip(values, kinds, strict=True)
    ]


def _cells(file: bytes, page: int) -> Iterator[tuple[int, list[Any]]]:
    """Rows on one page; none if it is no leaf page or damaged beyond reading."""
    start = page * PAGE_SIZE
    header = start + (100 if page == 0 else 0)
    if file[header] != LEAF:
        return
    (count,) = struct.unpack_from(">H", file, header + 3)
    for number in range(min(count, PAGE_SIZE // 4)):
        try:
            (offset,) = struct.unpack_from(">H", file, header + 8 + 2 * number)
            size, position = _varint(file, start + offset)
            row_id, position = _varint(file, position)
            values = _record(_payload(file, position, size))
        except (IndexError, ValueError, struct.error):
            continue
        if values and values[0] is None:  # Where the id would be: it is the row id.
            yield row_id, values


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number in SQLite's variable length, and the position after it."""
    value = 0
    for index in range(9):
        byte = data[position + index]
        if index == 8:
            value = value << 8 | byte
            break
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value - (1 << 64) if value >= 1 << 63 else value, position + index + 1


def _payload(file: bytes, position: int, size: int) -> bytes:
    """Bytes of a record, with those on overflow pages."""
    if not 0 < size <= len(file):
        raise ValueError("impossible size")
    largest = PAGE_SIZE - 35
    if size <= largest:
        return file[position : position + size]
    smallest = (PAGE_SIZE - 12) * 32 // 255 - 23
    local = smallest + (size - smallest) % (PAGE_SIZE - 4)
    local = local if local <= largest else smallest
    parts = [file[position : position + local]]
    (page,) = struct.unpack_from(">I", file, position + local)
    missing = size - local
    while missing > 0:
        start = (page - 1) * PAGE_SIZE
        if page < 1 or start + PAGE_SIZE > len(file):
            raise ValueError("impossible page")
        (page,) = struct.unpack_from(">I", file, start)
        parts.append(file[start + 4 : start + 4 + min(missing, PAGE_SIZE - 4)])
        missing -= len(parts[-1])
    return b"".join(parts)


def _record(payload: bytes) -> list[Any]:
    """Values of a record."""
    header_size, position = _varint(payload, 0)
    kinds = []
    while position < header_size:
        kind, position = _varint(payload, position)
        kinds.append(kind)
    values: list[Any] = []
    position = header_size
    for kind in kinds:
        size = _size_of(kind)
        part = payload[position : position + size]
        if len(part) != size:
            raise ValueError("the record is too short")
        values.append(_value(kind, part))
        position += size
    return values


def _size_of(kind: int) -> int:
    if kind < 0 or kind in (10, 11):
        raise ValueError("impossible type")
    if kind >= 12:
        return (kind - 12) // 2
    return 8 if kind == 7 else INTEGER_SIZES.get(kind, 0)


def _value(kind: int, part: bytes) -> Any:
    if kind == 0:
        return None
    if kind == 7:
        return struct.unpack(">d", part)[0]
    if kind in (8, 9):
        return kind - 8
    if kind >= 12:
        return part.decode() if kind % 2 else part
    return int.from_bytes(part, "big", signed=True)
