"""Transcript windows: neighbouring lines with one vector, in append-only files.

::

    000007.windows     per window: its source, its lines, checksum of its vector, one-bit code
    000007.meanings    its vector, one byte per number

Both are mapped. The table ``window_segments`` lists the files and has the checksums of the blocks
of ``.windows``, which has the checksum of each vector. The table ``windows`` lists the rows of each
source. Other rows belong to replaced lines, and stay until the segment is rewritten without them.
"""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.store.codes import Codes, code_bytes, codes_of, scan_blocks
from eaglenet.store.database import Database, State
from eaglenet.store.disk import FILE_MODE, damage
from eaglenet.store.manifest import MAX_DIM
from eaglenet.store.records import SourceWindows
from eaglenet.store.schema import put_row
from eaglenet.store.segments import (
    BLOCK,
    CAPACITY,
    FOLDER,
    REMOVED_FRACTION,
    append_files,
    block_checksums,
    bytes_of,
    checksums_of,
    extended_checksums,
)

KINDS = ("windows", "meanings")
CANDIDATES = 2048
"""Number of windows with the nearest codes whose exact cosines are computed."""
LARGEST = 127
"""Largest absolute value of a number of a vector, which takes one byte."""


def window_dtype(dim: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("source_id", "<u4"),
            ("content_id", "<u4"),
            ("first_line", "<u4"),
            ("num_lines", "<u4"),
            ("scale", "<f4"),
            ("vector_checksum", "<u4"),
            ("code", "u1", (code_bytes(dim),)),
        ]
    )


@dataclass(frozen=True)
class WindowSegmentInfo:
    """Row of the table ``window_segments``; all vectors are of one encoder."""

    id: int
    encoder: str
    dim: int
    num_rows: int = 0
    block_checksums: NDArray[np.uint32] = field(default_factory=lambda: np.zeros((0, 1), np.uint32))

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> WindowSegmentInfo:
        number, encoder, dim, num_rows, checksums = row
        return cls(number, encoder, dim, num_rows, np.frombuffer(checksums, np.uint32)[:, None])

    def to_values(self) -> tuple[str, int, int, bytes]:
        return self.encoder, self.dim, self.num_rows, self.block_checksums.tobytes()

    def paths(self, folder: Path) -> list[Path]:
        """Return the files of the segment, in the order of KINDS."""
        return [folder / FOLDER / f"{self.id:06d}.{kind}" for kind in KINDS]


class WindowSegment:
    """One segment of windows, open for reading."""

    def __init__(self, folder: Path, info: WindowSegmentInfo) -> None:
        self.folder = folder
        self.info = info
        paths = info.paths(folder)
        is_valid = 1 <= info.dim <= MAX_DIM and info.num_rows > 0
        sizes = (window_dtype(info.dim).itemsize, info.dim) if is_valid else (0, 0)
        rows = info.num_rows
        try:
            for path, size in zip(paths, sizes, strict=True):
                status = path.stat()
                is_whole = stat.S_ISREG(status.st_mode) and status.st_size >= rows * size
                if not (is_valid and is_whole):
                    raise damage(f"{FOLDER}/{path.name}", folder)
            self._windows = np.memmap(paths[0], window_dtype(info.dim), "r", shape=(rows,))
            self._vectors = np.memmap(paths[1], np.int8, "r", shape=(rows, info.dim))
        except (FileNotFoundError, NotADirectoryError) as error:  # A writer may have removed it.
            raise damage(f"{FOLDER}/{Path(error.filename).name}", folder) from None
        self._is_checked = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.info.num_rows

    @property
    def windows(self) -> NDArray[np.void]:
        """All windows, compared with the checksums of their blocks on first use."""
        with self._lock:
            if not self._is_checked:
                if block_checksums(self._windows) != self.info.block_checksums[:, 0].tolist():
                    raise self._damage(0)
                self._is_checked = True
        return self._windows.view(np.ndarray)

    def vectors_at(self, rows: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the stored vectors of some windows, compared one by one."""
        vectors = np.ascontiguousarray(self._vectors[rows])
        if not np.array_equal(checksums_of(vectors), self.windows["vector_checksum"][rows]):
            raise self._damage(1)
        return vectors

    def cosines(self, vector: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the cosines of a unit vector with some windows."""
        products = self.vectors_at(rows).astype(np.float32) @ vector
        result: NDArray[np.float32] = products * self.windows["scale"][rows]
        return result

    def verify(self) -> None:
        """Compare every row with its checksums."""
        for start in range(0, len(self), BLOCK):
            self.vectors_at(np.arange(start, min(start + BLOCK, len(self))))

    def _damage(self, kind: int) -> Exception:
        return damage(f"{FOLDER}/{self.info.paths(self.folder)[kind].name}", self.folder)


@dataclass(frozen=True)
class NearWindows:
    """Windows near a query, nearest first."""

    windows: NDArray[np.void]
    segment_ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    """Rows in their segments."""
    cosines: NDArray[np.float32]

    def above(self, min_cosine: float, count: int) -> NearWindows:
        """Return the first ``count`` windows with at least this cosine."""
        end = min(count, int((self.cosines >= min_cosine).sum()))
        return NearWindows(
            self.windows[:end], self.segment_ids[:end], self.rows[:end], self.cosines[:end]
        )


class WindowIndex:
    """All windows of one encoder."""

    def __init__(self, segments: Sequence[WindowSegment]) -> None:
        self.segments = segments
        sizes = [len(segment) for segment in segments]
        self._edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._edges[-1])

    @cached_property
    def codes(self) -> Codes:
        """Codes of all windows, copied into memory: 64 bytes each for 384 numbers."""
        blocks = [
            block
            for segment in self.segments
            for block in scan_blocks(np.ascontiguousarray(segment.windows["code"]))
        ]
        return Codes(blocks, len(self))

    def nearest(
        self,
        vector: NDArray[np.float32],
        source_ids: Sequence[int] | None = None,
        content_ids: Sequence[int] | None = None,
    ) -> NearWindows:
        """Return the ``CANDIDATES`` nearest windows, of some sources or contents or of all."""
        rows = self.codes.nearest(vector, CANDIDATES, self._mask(source_ids, content_ids))
        numbers = np.searchsorted(self._edges, rows, side="right") - 1
        parts = []
        for number in sorted(set(numbers.tolist())):  # np.unique would import numpy.ma.
            segment, inside = self.segments[number], rows[numbers == number] - self._edges[number]
            cosines = segment.cosines(vector, inside)
            ids = np.full(len(inside), segment.info.id, np.int64)
            parts.append((segment.windows[inside], ids, inside, cosines))
        if not parts:
            empty = np.zeros(0, np.int64)
            return NearWindows(np.zeros(0, window_dtype(1)), empty, empty, np.zeros(0, np.float32))
        windows, ids, inside, cosines = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(-cosines, kind="stable")
        return NearWindows(windows[order], ids[order], inside[order], cosines[order])

    def _mask(
        self, source_ids: Sequence[int] | None, content_ids: Sequence[int] | None
    ) -> NDArray[np.bool_] | None:
        """Return a mask over all windows; None if all are allowed."""
        if source_ids is None and content_ids is None:
            return None
        mask = np.ones(len(self), bool)
        for name, ids in (("source_id", source_ids), ("content_id", content_ids)):
            if ids is not None:
                values = [segment.windows[name] for segment in self.segments]
                mask &= np.isin(np.concatenate(values), np.asarray(ids, np.uint32))
        return mask


def read_window_segments(database: Database) -> list[WindowSegmentInfo]:
    """Return the segments of windows."""
    return [WindowSegmentInfo.from_row(row) for row in database.verified_rows("window_segments")]


def sparse_segments(database: Database) -> list[WindowSegmentInfo]:
    """Return the segments in which many rows no longer have a source."""
    live = dict(database.rows("SELECT segment_id, sum(num_rows) FROM windows GROUP BY segment_id"))
    return [
        info
        for info in read_window_segments(database)
        if info.num_rows - live.get(info.id, 0) >= REMOVED_FRACTION * info.num_rows
    ]


@dataclass
class WindowWriter:
    """Changes the windows of a store, inside a transaction of its writer."""

    folder: Path
    database: Database
    connection: sqlite3.Connection
    state: State
    mode: int = FILE_MODE

    def add(self, batches: Sequence[tuple[int, int, SourceWindows]]) -> None:
        """Store windows of sources, each with the ids of the source and its content."""
        for encoder, dim in dict.fromkeys((each.encoder, each.dim) for _, _, each in batches):
            group = [
                batch for batch in batches if (batch[2].encoder, batch[2].dim) == (encoder, dim)
            ]
            for source_id, _, each in group:
                if not len(each.vectors):  # None of its lines can be encoded.
                    put_row(self.connection, "windows", source_id, (0, 0, 0, encoder))
            group = [batch for batch in group if len(batch[2].vectors)]
            if not group:
                continue
            windows = np.concatenate([_stored_windows(*batch) for batch in group])
            vectors, scales = _quantise(np.concatenate([each.vectors for _, _, each in group]))
            windows["scale"], windows["vector_checksum"] = scales, checksums_of(vectors)
            info = self._open_segment(encoder, dim)
            first = info.num_rows
            info = self._append(info, windows, vectors)
            for source_id, _, each in group:
                put_row(
                    self.connection,
                    "windows",
                    source_id,
                    (info.id, first, len(each.vectors), encoder),
                )
                first += len(each.vectors)

    def compact(self, infos: Sequence[WindowSegmentInfo]) -> list[Path]:
        """Rewrite segments without rows that have no source; return the files to remove."""
        obsolete: list[Path] = []
        for info in infos:
            spans = self._spans(info)
            if spans:
                segment = WindowSegment(self.folder, info)
                target = self._new_segment(info.encoder, info.dim)
                rows = np.concatenate([np.arange(first, first + size) for _, first, size in spans])
                self._append(target, segment.windows[rows], segment.vectors_at(rows))
                start = 0
                for source_id, _, num_rows in spans:
                    values = (target.id, start, num_rows, info.encoder)
                    put_row(self.connection, "windows", source_id, values)
                    start += num_rows
            self.connection.execute("DELETE FROM window_segments WHERE id = ?", (info.id,))
            obsolete += info.paths(self.folder)
        return obsolete

    def _spans(self, info: WindowSegmentInfo) -> list[tuple[int, int, int]]:
        """Return source, first row and number of rows of all windows of a segment with a source."""
        rows = self.database.verified_rows("windows", "WHERE segment_id = ?", (info.id,))
        return sorted(((row[0], row[2], row[3]) for row in rows), key=lambda span: span[1])

    def _open_segment(self, encoder: str, dim: int) -> WindowSegmentInfo:
        """Return a segment of this encoder that is not full, or a new one."""
        for info in read_window_segments(self.database):
            if (info.encoder, info.dim) == (encoder, dim) and info.num_rows < CAPACITY:
                return info
        return self._new_segment(encoder, dim)

    def _new_segment(self, encoder: str, dim: int) -> WindowSegmentInfo:
        number = self.state.next_segment_id
        self.state.next_segment_id += 1
        return WindowSegmentInfo(number, encoder, dim)

    def _append(
        self, info: WindowSegmentInfo, windows: NDArray[np.void], vectors: NDArray[np.int8]
    ) -> WindowSegmentInfo:
        content = [bytes_of(windows), bytes_of(vectors)]
        starts = [info.num_rows * windows.dtype.itemsize, info.num_rows * info.dim]
        append_files(info.paths(self.folder), starts, content, self.mode)
        info = replace(
            info,
            num_rows=info.num_rows + len(windows),
            block_checksums=extended_checksums(info.block_checksums, info.num_rows, [windows]),
        )
        put_row(self.connection, "window_segments", info.id, info.to_values())
        return info


def _stored_windows(source_id: int, content_id: int, each: SourceWindows) -> NDArray[np.void]:
    windows = np.zeros(len(each.vectors), window_dtype(each.dim))
    windows["source_id"], windows["content_id"] = source_id, content_id
    windows["first_line"], windows["num_lines"] = each.first_lines, each.num_lines
    windows["code"] = codes_of(np.ascontiguousarray(each.vectors, np.float32))
    return windows


def _quantise(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return vectors as integers up to 127, and the factors that restore them."""
    scales = np.maximum(np.abs(vectors).max(axis=1), np.float32(1e-12)) / np.float32(LARGEST)
    return np.round(vectors / scales[:, None]).astype(np.int8), scales.astype(np.float32)
