"""Verification of a store, and repair from its intact parts.

Verification reads every byte that a search or a writer trusts. A repair reads the rows of
``store.db`` page by page and the clips of every segment one by one, and writes a new ``store.db``
from those that are intact. Files that lost a clip are no longer marked as done: the next index run
encodes what is missing.

Every leaf page of a damaged ``store.db`` is read on its own, without indexes, roots or header, and
a row is used only if its checksum is right, so that damage to a page loses the rows on that page
alone. The format is that of https://www.sqlite.org/fileformat2.html (table leaf pages, record
format).
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError, shell_join, shell_quote
from eaglenet.store import transcripts
from eaglenet.store.database import Database, State, connect, create, put_state
from eaglenet.store.disk import (
    DATABASE,
    DamageError,
    damage,
    store_errors,
    table_damage,
    writer_lock,
)
from eaglenet.store.hubness import TOLERANCE, HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import Repaired, Verified
from eaglenet.store.schema import (
    COLUMNS,
    COUNTED,
    EARLIER_WIDTHS,
    HIDDEN,
    KEYFRAME_CLIPS,
    PAGE_SIZE,
    insert_statement,
    is_intact,
    names_of,
    quoted_names,
    require_total,
    row_of,
)
from eaglenet.store.segments import (
    FOLDER,
    KINDS,
    LABEL,
    NewRows,
    Segment,
    SegmentInfo,
    append_rows,
    checksums_of,
)
from eaglenet.store.snapshot import Snapshot
from eaglenet.store.windows import WindowSegment, WindowSegmentInfo, read_window_segments
from eaglenet.store.writer import DONE, LocalWriter

CHUNK = 4096
Rows = dict[int, tuple[Any, ...]]


def verify(snapshot: Snapshot) -> Verified:
    """Compare everything with its checksums; a :class:`DamageError` names the damaged part.

    It is also raised if a writer has committed since the snapshot.
    """
    database = snapshot.database
    with database.reading():
        counts = {table: _verify_table(database, table) for table in COLUMNS}
        if database.verified_rows("manifest") != database.verified_rows("manifest_copy"):
            raise table_damage("manifest_copy", database.location)
        _verify_visibility(snapshot)
        database.text_checksum = None
        transcripts.verify_text(database)
        bank, window_segments = snapshot.hubness_bank, read_window_segments(database)
        num_files = database.value("SELECT count(*) FROM files WHERE status = 'done'")
    for segment in snapshot.segments:
        _verify_segment(segment, bank)
    for info in window_segments:
        WindowSegment(database.folder, info).verify()
    return Verified(len(snapshot), int(num_files), counts["clips"], counts["lines"])


def _verify_table(database: Database, table: str) -> int:
    """Compare all rows of a table, a chunk at a time; return their number."""
    last, count, total = -1, 0, 0
    while True:
        rows = database.rows(
            f"SELECT {quoted_names(table)} FROM {table} WHERE id > ? ORDER BY id LIMIT {CHUNK}",
            (last,),
        )
        if not rows:
            break
        if not all(is_intact(table, row) for row in rows):
            raise table_damage(table, database.location)
        last, count, total = rows[-1][0], count + len(rows), total + sum(row[-1] for row in rows)
    if database.value("SELECT 1 FROM totals WHERE name = ?", (table,)):
        require_total(database.connection, database.location, table, count, total)
    return count


def _verify_visibility(snapshot: Snapshot) -> None:
    """Check that every clip is in a segment and every finished file has its clips, visible."""
    database = snapshot.database
    clip_ids = _int_array(database.rows("SELECT id FROM clips"))
    parts = [np.asarray(segment.labels["clip_id"]) for segment in snapshot.segments]
    in_segments = np.concatenate([np.zeros(0, np.int64), *parts])
    visible_ids = in_segments if snapshot.visible is None else in_segments[snapshot.visible]
    finished_ids = _int_array(database.rows(f"SELECT id FROM clips WHERE content_id IN ({DONE})"))
    if len(np.setdiff1d(clip_ids, in_segments)):
        raise table_damage("clips", snapshot.location)
    if not np.array_equal(np.sort(visible_ids), np.sort(finished_ids)):
        raise table_damage(HIDDEN, snapshot.location)
    incomplete = database.value(
        "SELECT path FROM files WHERE status = 'done' AND num_clips > "
        "(SELECT count(*) FROM clips WHERE clips.content_id = files.content_id)"
    )
    if incomplete is not None:
        raise damage(f"{incomplete} (some of its clips are missing), a file", snapshot.location)


def _verify_segment(segment: Segment, bank: HubnessBank | None) -> None:
    segment.codes_between(0, len(segment))
    for start in range(0, len(segment), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(segment)))
        vectors = segment.copy_of(rows).vectors
        segment.vectors_between(start, start + len(rows))
        offsets = segment.labels["hubness_offset"][rows]
        if bank is not None and not np.allclose(
            offsets, bank.offsets(vectors), rtol=0, atol=TOLERANCE
        ):
            raise segment.damage_error("labels")


def _int_array(rows: list[tuple[Any, ...]]) -> NDArray[np.int64]:
    return np.array([row[0] for row in rows], np.int64)


@dataclass
class Salvage:
    """Intact parts of a store, and what is missing from it."""

    folder: Path
    manifest: Manifest
    rows: dict[str, Rows]
    bank: HubnessBank | None = None
    segments: list[SegmentInfo] = field(default_factory=list)
    clip_ids: set[int] = field(default_factory=set)
    """Clips that are in a segment."""
    has_offsets: bool = False
    """True if clips have hubness offsets, so that there was a bank."""
    obsolete: list[str] = field(default_factory=list)
    incomplete: set[str] = field(default_factory=set)
    details: list[str] = field(default_factory=list)


def repair(folder: Path) -> Repaired:
    """Write a new ``store.db`` from everything that is intact."""
    if not (folder / DATABASE).exists():
        raise StoreError(f"no store at {folder}; there is nothing to repair")
    with writer_lock(folder), store_errors(folder):
        _merge_wal(folder)
        salvage = _read(folder)
        for info in _segment_infos(salvage):
            _salvage_segment(salvage, info)
        _drop_incomplete(salvage)
        _salvage_windows(salvage)
        _report_lost_bank(salvage)
        return _write(salvage)


def _merge_wal(folder: Path) -> None:
    """Copy commits that a killed writer left in the WAL into ``store.db``, if SQLite can."""
    with suppress(sqlite3.Error, OSError, UnicodeDecodeError):
        connection = connect(folder, is_writer=True)
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()


def _read(folder: Path) -> Salvage:
    rows = read_rows(folder / DATABASE)
    for table in ("manifest", "manifest_copy"):
        for _, text in rows[table].values():
            with suppress(ValueError, KeyError, TypeError):
                manifest = Manifest.from_json(text)
                salvage = Salvage(folder, manifest, rows)
                for row in rows["hubness"].values():
                    salvage.bank = HubnessBank.from_row(row[1:], manifest.dim)
                return salvage
    raise StoreError(
        f"both copies of the manifest of {folder} are damaged, so its model is unknown. Index "
        f"again with: mv {shell_quote(folder)} {shell_quote(folder)}.old && "
        f"eaglenet index FOLDER --store {shell_quote(folder)}"
    )


def _segment_infos(salvage: Salvage) -> Iterator[SegmentInfo]:
    """Return the segments that SQLite lists, and those known only from their files."""
    listed_segments = {
        number: SegmentInfo.from_row(row) for number, row in salvage.rows["segments"].items()
    }
    folder = salvage.folder / FOLDER
    sizes: dict[int, SegmentInfo] = {}
    for path in sorted(folder.glob("*.labels")):
        match = re.fullmatch(r"(\d{6})-(\d+)\.labels", path.name)
        if match and int(match[1]) not in listed_segments:
            num_rows = path.stat().st_size // LABEL.itemsize
            sizes[int(match[1])] = SegmentInfo(int(match[1]), int(match[2]), num_rows)
    yield from listed_segments.values()
    yield from sizes.values()


def _salvage_segment(salvage: Salvage, info: SegmentInfo) -> None:
    """Keep a segment that is intact; copy the intact clips of one that is not."""
    paths = [info.path(salvage.folder, kind) for kind in KINDS]
    is_named = info.id in salvage.rows["segments"]
    if is_named:
        with suppress(DamageError):
            segment = Segment(salvage.folder, info, salvage.manifest)
            _verify_segment(segment, salvage.bank)
            salvage.segments.append(info)
            salvage.clip_ids.update(segment.labels["clip_id"].tolist())
            salvage.has_offsets |= bool(segment.labels["hubness_offset"].any())
            return
    target = SegmentInfo(_free_segment_id(salvage))
    for rows in _intact_rows(salvage, info):
        target = append_rows(salvage.folder, target, rows)
        salvage.clip_ids.update(rows.labels["clip_id"].tolist())
        salvage.has_offsets |= bool(rows.labels["hubness_offset"].any())
    num_lost = info.num_rows - target.num_rows
    if is_named and num_lost:
        salvage.details.append(
            f"{num_lost} of {info.num_rows} clips of segment {info.id} are damaged"
        )
    if target.num_rows:
        salvage.segments.append(target)
    salvage.obsolete += [path.name for path in paths]


def _free_segment_id(salvage: Salvage) -> int:
    on_disk = (salvage.folder / FOLDER).glob("*.*")
    numbers = [int(path.name[:6]) for path in on_disk if path.name[:6].isdigit()]
    return max([0, *numbers, *(info.id for info in salvage.segments)]) + 1


def _intact_rows(salvage: Salvage, info: SegmentInfo) -> Iterator[NewRows]:
    """Yield rows of a damaged segment that belong to a clip in SQLite and match all checksums."""
    sizes = {
        "vectors": 4 * salvage.manifest.dim,
        "labels": LABEL.itemsize,
        "features": salvage.manifest.layout.dtype.itemsize,
    }
    content = {kind: _content(info.path(salvage.folder, kind)) for kind in (*sizes, "thumbnails")}
    count = min(len(content[kind]) // size for kind, size in sizes.items())
    labels = np.frombuffer(content["labels"], LABEL, count)
    for start in range(0, count, CHUNK):
        end = min(start + CHUNK, count)
        vectors = np.frombuffer(content["vectors"], np.float32, count * salvage.manifest.dim)
        vectors = vectors.reshape(count, -1)[start:end]
        features = np.frombuffer(content["features"], salvage.manifest.layout.dtype, count)
        features = features[start:end]
        part = labels[start:end].copy()
        thumbnails = [
            content["thumbnails"][first : first + size] if first >= 0 else b""
            for first, size in zip(
                part["thumbnail_start"].tolist(), part["thumbnail_size"].tolist(), strict=True
            )
        ]
        is_whole = _is_known(salvage, part)
        for name, values in (
            ("vector_checksum", vectors),
            ("features_checksum", [row.tobytes() for row in features]),
            ("thumbnail_checksum", thumbnails),
        ):
            is_whole &= checksums_of(values) == part[name]
        indices = np.flatnonzero(is_whole)
        if len(indices):
            rows = part[indices]
            if salvage.bank is not None:
                rows["hubness_offset"] = salvage.bank.offsets(vectors[indices])
            images = [thumbnails[index] for index in indices.tolist()]
            yield NewRows(rows, vectors[indices], features[indices], images)


def _is_known(salvage: Salvage, labels: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return a mask of labels whose clip SQLite has with this content, and no other segment has."""
    clips, ids_in_segments = salvage.rows["clips"], salvage.clip_ids
    pairs = zip(labels["clip_id"].tolist(), labels["content_id"].tolist(), strict=True)
    return np.array(
        [
            clip in clips and clips[clip][1] == content and clip not in ids_in_segments
            for clip, content in pairs
        ],
        bool,
    )


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _drop_incomplete(salvage: Salvage) -> None:
    """Drop clips that are in no segment, and files that lost a clip or their content."""
    rows = salvage.rows
    contents = rows["contents"]
    rows["clips"] = {
        number: row
        for number, row in rows["clips"].items()
        if number in salvage.clip_ids and row[1] in contents
    }
    rows[KEYFRAME_CLIPS] = {
        number: row for number, row in rows[KEYFRAME_CLIPS].items() if number in rows["clips"]
    }
    num_clips_of = Counter(row[1] for row in rows["clips"].values())
    for number, row in list(rows["files"].items()):
        path, content_id, status, num_clips = row[1], row[4], row[5], row[10]
        is_lost = content_id is not None and content_id not in contents
        if is_lost or (status == "done" and num_clips_of[content_id] < num_clips):
            salvage.incomplete.add(path)
            del rows["files"][number]
    sources = {number: row for number, row in rows["sources"].items() if row[1] in contents}
    lines = Counter(row[1] for row in rows["lines"].values() if row[1] in sources)
    # A source that lost a line is read again; the others keep theirs.
    rows["sources"] = {number: row for number, row in sources.items() if lines[number] == row[11]}
    rows["lines"] = {
        number: row for number, row in rows["lines"].items() if row[1] in rows["sources"]
    }
    num_lost = len(sources) - len(rows["sources"])
    if num_lost:
        salvage.details.append(f"{num_lost} transcripts lost lines and are read again")


def _salvage_windows(salvage: Salvage) -> None:
    """Keep segments of windows that are intact, and the windows of sources in them."""
    rows = salvage.rows
    infos = [WindowSegmentInfo.from_row(row) for row in rows["window_segments"].values()]
    intact = {}
    for info in infos:
        with suppress(DamageError):
            WindowSegment(salvage.folder, info).verify()
            intact[info.id] = info
    num_lost = 0
    for number, (_, segment_id, first_row, num_rows, _) in list(rows["windows"].items()):
        is_inside = segment_id in intact and first_row + num_rows <= intact[segment_id].num_rows
        if number not in rows["sources"] or (num_rows and not is_inside):
            del rows["windows"][number]
            num_lost += number in rows["sources"]
    rows["window_segments"] = {
        number: row for number, row in rows["window_segments"].items() if number in intact
    }
    for info in infos:
        if info.id not in intact:
            salvage.obsolete += [path.name for path in info.paths(salvage.folder)]
    if num_lost:
        salvage.details.append(
            f"{num_lost} transcripts lost the vectors of their meaning; the next index run "
            "computes them"
        )


def _report_lost_bank(salvage: Salvage) -> None:
    if salvage.bank is None and salvage.has_offsets:
        roots = salvage.manifest.roots or ("FOLDER",)
        salvage.details.append(
            "the hubness bank is damaged, so hubness is no longer corrected. Set it again, as "
            f"own or as a file of texts, with: eaglenet index {shell_join(roots)} --store "
            f"{shell_quote(salvage.folder)} --hubness own"
        )


def _write(salvage: Salvage) -> Repaired:
    """Write the new ``store.db`` beside the old one, then replace the old one."""
    folder = salvage.folder
    create(folder, salvage.manifest, fill=lambda connection: _fill(connection, salvage))
    with closing(LocalWriter(folder)) as writer:
        visible = writer.num_visible()
    rows = salvage.rows
    return Repaired(
        clips=visible,
        files=sum(row[5] == "done" for row in rows["files"].values()),
        lines=len(rows["lines"]),
        incomplete_files=tuple(sorted(salvage.incomplete)),
        details=tuple(salvage.details),
    )


def _fill(connection: sqlite3.Connection, salvage: Salvage) -> None:
    """Insert all intact rows; triggers build the full-text indexes from the lines."""
    rows = salvage.rows
    rows["segments"] = {info.id: (info.id, *info.to_values()) for info in salvage.segments}
    for table in (name for name in COUNTED if name != HIDDEN):
        values = [row_of(table, row[0], row[1:]) for _, row in sorted(rows[table].items())]
        connection.executemany(insert_statement(table), values)
    transcripts.add_terms(connection, (row[6] for row in rows["lines"].values()))
    connection.execute("COMMIT")  # FTS5 writes its changes; see text_checksum.
    connection.execute("BEGIN IMMEDIATE")
    finished_contents = {row[4] for row in rows["files"].values() if row[5] == "done"}
    clips = rows["clips"]
    hidden_ids = sorted(
        clip
        for clip in salvage.clip_ids
        if clip not in clips or clips[clip][1] not in finished_contents
    )
    connection.executemany(
        f"INSERT INTO {HIDDEN} (clip_id) VALUES (?)", [(clip,) for clip in hidden_ids]
    )
    names = [(name,) for name in salvage.obsolete]
    connection.executemany("INSERT OR IGNORE INTO obsolete VALUES (?)", names)
    before = [State(*row[1:]) for row in rows["state"].values()]
    state = State(
        version=max([0, *(each.version for each in before)]) + 1,
        next_clip_id=max([0, *salvage.clip_ids, *(each.next_clip_id for each in before)]) + 1,
        next_content_id=max([0, *rows["contents"], *(each.next_content_id for each in before)]) + 1,
        next_segment_id=_free_segment_id(salvage),
        text_checksum=transcripts.text_checksum(connection),
    )
    put_state(connection, state)


LEAF = 13
INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

_TABLES_BY_WIDTH: dict[int, list[str]] = {}
for _table in COLUMNS:
    _TABLES_BY_WIDTH.setdefault(len(names_of(_table)), []).append(_table)
for _table, _width in EARLIER_WIDTHS.items():
    _TABLES_BY_WIDTH.setdefault(_width + 2, []).append(_table)


def read_rows(path: Path) -> dict[str, dict[int, tuple[Any, ...]]]:
    """Return intact rows by table and id, as ``(id, *values)``."""
    rows: dict[str, dict[int, tuple[Any, ...]]] = {table: {} for table in COLUMNS}
    file = path.read_bytes()
    for page in range(len(file) // PAGE_SIZE):
        for row_id, values in _cells(file, page):
            for table in _TABLES_BY_WIDTH.get(len(values), ()):
                row = (row_id, *_as_columns(table, values[1:]))
                if is_intact(table, row):
                    # Columns that an earlier schema did not have are unknown.
                    missing_values = (None,) * (len(names_of(table)) - len(row))
                    rows[table][row_id] = (*row[:-1], *missing_values)
    return rows


def _as_columns(table: str, values: list[Any]) -> list[Any]:
    """Return values as their columns have them: SQLite stores whole REAL numbers as integers."""
    kinds = [*list(COLUMNS[table].values())[: len(values) - 1], "INTEGER"]
    return [
        float(value) if kind.startswith("REAL") and type(value) is int else value
        for value, kind in zip(values, kinds, strict=True)
    ]


def _cells(file: bytes, page: int) -> Iterator[tuple[int, list[Any]]]:
    """Return the rows on one page; none if it is not a leaf page or cannot be read."""
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
    """Return a number of SQLite's variable-length format, and the position after it."""
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
    """Return the bytes of a record, with those on overflow pages."""
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
    """Return the values of a record."""
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
