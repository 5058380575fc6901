"""Segments: append-only files of vectors, codes, labels, features and thumbnails.

A segment holds up to ``CAPACITY`` clips, one row each, in five files that only grow::

    segments/000001.vectors       coarse vectors, float32 [rows, dim]
    segments/000001.codes         one-bit codes of the vectors, uint8 [rows, bytes]
    segments/000001-1.labels      per row: clip id, content id, hubness offset, checksums
    segments/000001.features      features of all frames, one fixed-size record per row
    segments/000001.thumbnails    JPEG files end to end

SQLite knows how many rows are committed; bytes beyond them are left from a writer that was killed
and are overwritten. Vectors, codes and labels are mapped and compared with a checksum per block of
``BLOCK`` rows on first use; features and thumbnails are read row by row and compared with the
checksums in the labels.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.platform import read_at, sync
from eaglenet.store.codes import Block, code_bytes, codes_of, scan_blocks
from eaglenet.store.disk import FILE_MODE, damage
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import Features

FOLDER = "segments"
CAPACITY = 65_536
BLOCK = 4096
REMOVED_FRACTION = 0.2
"""Fraction of removed rows above which a segment is rewritten without them."""
BINARY = getattr(os, "O_BINARY", 0)
READ_AHEAD = 8
"""Minimum rows for which all reads are announced to the disk before the first one. Without it, a
mapped row that is not in memory waits for one read after another, of 128 KiB each on Linux."""
MAPPED = ("vectors", "codes", "labels")
KINDS = (*MAPPED, "features", "thumbnails")

LABEL = np.dtype(
    [
        ("clip_id", "<i8"),
        ("thumbnail_start", "<i8"),
        ("thumbnail_size", "<u4"),
        ("content_id", "<u4"),
        ("hubness_offset", "<f4"),
        ("vector_checksum", "<u4"),
        ("features_checksum", "<u4"),
        ("thumbnail_checksum", "<u4"),
    ]
)
Labels = NDArray[np.void]


def checksums_of(rows: Sequence[Any] | NDArray[Any]) -> NDArray[np.uint32]:
    """Return a checksum of the bytes of each row."""
    return np.array([*map(zlib.crc32, rows)], np.uint32)


@dataclass(frozen=True)
class SegmentInfo:
    """Row of the table ``segments``; ``block_checksums``: ``[blocks, 3]``, columns as in MAPPED."""

    id: int
    labels_version: int = 1
    num_rows: int = 0
    thumbnail_bytes: int = 0
    block_checksums: NDArray[np.uint32] = field(
        default_factory=lambda: np.zeros((0, len(MAPPED)), np.uint32)
    )

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> SegmentInfo:
        number, version, num_rows, thumbnail_bytes, checksums = row
        array = np.frombuffer(checksums, np.uint32).reshape(-1, len(MAPPED))
        return cls(number, version, num_rows, thumbnail_bytes, array)

    def to_values(self) -> tuple[int, int, int, bytes]:
        checksums = self.block_checksums.tobytes()
        return self.labels_version, self.num_rows, self.thumbnail_bytes, checksums

    @property
    def free_rows(self) -> int:
        return CAPACITY - self.num_rows

    def path(self, folder: Path, kind: str) -> Path:
        version = f"-{self.labels_version}" if kind == "labels" else ""
        return folder / FOLDER / f"{self.id:06d}{version}.{kind}"


class Segment:
    """One segment, open for reading."""

    def __init__(self, folder: Path, info: SegmentInfo, manifest: Manifest) -> None:
        self.folder = folder
        self.info = info
        self.manifest = manifest
        dim = manifest.dim
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "vectors": (np.float32, (dim,)),
            "codes": (np.uint8, (code_bytes(dim),)),
            "labels": (LABEL, ()),
        }
        self._maps: dict[str, mmap.mmap] = {}
        self._arrays = {kind: self._map(kind, *shapes[kind]) for kind in MAPPED}
        self._is_checked = np.zeros(info.block_checksums.shape, bool)
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}

    def __len__(self) -> int:
        return self.info.num_rows

    def __del__(self) -> None:
        for descriptor in getattr(self, "_files", {}).values():
            os.close(descriptor)

    def vectors_between(self, first: int, end: int) -> NDArray[np.float32]:
        """``[rows, dim]``, mapped and compared with their checksums."""
        return self._checked_rows("vectors", first, end)

    def codes_between(self, first: int, end: int) -> NDArray[np.uint8]:
        """``[rows, bytes]``."""
        return self._checked_rows("codes", first, end)

    @cached_property
    def code_blocks(self) -> list[Block]:
        """All codes, copied into memory for scanning."""
        return scan_blocks(self.codes_between(0, len(self)))

    @property
    def labels(self) -> Labels:
        return self._checked_rows("labels", 0, len(self))

    @cached_property
    def clip_ids(self) -> NDArray[np.int64]:
        """Ascending."""
        return np.ascontiguousarray(self.labels["clip_id"])

    @property
    def first_clip_id(self) -> int:
        return int(self._checked_rows("labels", 0, 1)["clip_id"][0])

    @property
    def last_clip_id(self) -> int:
        return int(self._checked_rows("labels", len(self) - 1, len(self))["clip_id"][-1])

    def rows_of_clips(self, clip_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of clips; -1 for those that are not in this segment."""
        first, last = self.first_clip_id, self.last_clip_id
        if last - first + 1 == len(self):  # Nothing was ever removed.
            inside = (clip_ids >= first) & (clip_ids <= last)
            return np.where(inside, clip_ids - first, -1)
        rows = np.searchsorted(self.clip_ids, clip_ids)
        rows[rows == len(self)] = 0
        return np.where(self.clip_ids[rows] == clip_ids, rows, -1)

    def read_ahead(self, kind: str, rows: NDArray[np.int64]) -> None:
        """Ask the operating system to read the vectors or features of some rows all at once.

        Does nothing on systems without such a call.
        """
        if kind == "vectors" and hasattr(mmap, "MADV_WILLNEED"):
            size = self._arrays[kind].strides[0]
            for start in (rows * size).tolist():
                page = start - start % mmap.PAGESIZE
                self._maps[kind].madvise(mmap.MADV_WILLNEED, page, start + size - page)
        elif kind == "features" and hasattr(os, "posix_fadvise"):
            size, descriptor = self.manifest.layout.dtype.itemsize, self._descriptor(kind)
            for start in (rows * size).tolist():
                os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_WILLNEED)

    def vectors_at(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """``[rows, dim]`` of a few rows, compared one by one; the rest of the file stays unread."""
        vectors = np.ascontiguousarray(self._arrays["vectors"][rows])
        if [*map(zlib.crc32, vectors)] != self.labels["vector_checksum"][rows].tolist():
            raise self.damage_error("vectors")
        return vectors

    def features_at(self, rows: NDArray[np.int64]) -> Features:
        """Return features of a few rows, read because mapped pages would count as memory in use."""
        size = self.manifest.layout.dtype.itemsize
        spans = [(int(row) * size, size) for row in rows]
        parts = self._read("features", spans, self.labels["features_checksum"][rows])
        return np.frombuffer(bytearray(b"".join(parts)), self.manifest.layout.dtype)

    def thumbnails_at(self, rows: NDArray[np.int64]) -> list[bytes]:
        labels = self.labels[rows]
        spans = list(
            zip(labels["thumbnail_start"].tolist(), labels["thumbnail_size"].tolist(), strict=True)
        )
        return self._read("thumbnails", spans, labels["thumbnail_checksum"])

    def copy_of(self, rows: NDArray[np.int64]) -> NewRows:
        """Return rows to append to another segment, compared with all their checksums."""
        return NewRows(
            self.labels[rows],
            self.vectors_at(rows),
            self.features_at(rows),
            self.thumbnails_at(rows),
        )

    def adopt(self, before: Segment) -> None:
        """Skip the comparison of blocks that an earlier version of this segment has compared."""
        checksums = before.info.block_checksums
        same = self.info.block_checksums[: len(checksums)] == checksums[: len(self._is_checked)]
        self._is_checked[: len(same)] = same & before._is_checked[: len(same)]
        if before.info.labels_version != self.info.labels_version:
            self._is_checked[:, MAPPED.index("labels")] = False

    def damage_error(self, kind: str) -> Exception:
        name = self.info.path(self.folder, kind).name
        return damage(f"{FOLDER}/{name}", self.folder)

    def _map(self, kind: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        path = self.info.path(self.folder, kind)
        size = self.info.num_rows * np.dtype(dtype).itemsize * int(np.prod(shape))
        if not self.info.num_rows:
            return np.zeros((0, *shape), dtype)
        try:
            status = path.stat()
            # Opening a FIFO would block.
            if not stat.S_ISREG(status.st_mode) or status.st_size < size:
                raise self.damage_error(kind)
            with path.open("rb") as stream:
                # Copy-on-write, because torch refuses read-only memory; nothing writes to it.
                self._maps[kind] = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_COPY)
        except (FileNotFoundError, NotADirectoryError):  # A writer may have just removed it.
            raise self.damage_error(kind) from None
        return np.frombuffer(self._maps[kind], dtype).reshape(self.info.num_rows, *shape)

    def _checked_rows(self, kind: str, first: int, end: int) -> NDArray[Any]:
        """Return rows of a mapped file, after comparing their blocks with the checksums."""
        array, column = self._arrays[kind], MAPPED.index(kind)
        blocks = slice(first // BLOCK, -(-end // BLOCK))
        if not self._is_checked[blocks, column].all():
            with self._lock:
                new_blocks = blocks.start + np.flatnonzero(~self._is_checked[blocks, column])
                check = partial(self._check_block, kind)
                if len(new_blocks) > 1:
                    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(new_blocks))) as pool:
                        list(pool.map(check, new_blocks.tolist()))
                else:
                    list(map(check, new_blocks.tolist()))
        return array[first:end]

    def _check_block(self, kind: str, block: int) -> None:
        column = MAPPED.index(kind)
        rows = self._arrays[kind][block * BLOCK : (block + 1) * BLOCK]
        if zlib.crc32(bytes_of(rows)) != self.info.block_checksums[block, column]:
            raise self.damage_error(kind)
        self._is_checked[block, column] = True

    def _read(
        self, kind: str, spans: Sequence[tuple[int, int]], checksums: NDArray[np.uint32]
    ) -> list[bytes]:
        descriptor = self._descriptor(kind)
        parts = [read_at(descriptor, size, start) for start, size in spans]
        lengths = [size for _, size in spans]
        if list(map(len, parts)) != lengths or [*map(zlib.crc32, parts)] != checksums.tolist():
            raise self.damage_error(kind)
        return parts

    def _descriptor(self, kind: str) -> int:
        with self._lock:
            if kind not in self._files:
                path = self.info.path(self.folder, kind)
                try:
                    self._files[kind] = os.open(path, os.O_RDONLY | BINARY)
                except FileNotFoundError:
                    raise self.damage_error(kind) from None
            return self._files[kind]


@dataclass(frozen=True)
class NewRows:
    """Rows to append to a segment; appending sets the ``thumbnail_start`` of their labels."""

    labels: Labels
    vectors: NDArray[np.float32]
    features: Features
    thumbnails: Sequence[bytes]

    def __getitem__(self, part: slice) -> NewRows:
        return NewRows(
            self.labels[part], self.vectors[part], self.features[part], self.thumbnails[part]
        )

    def __len__(self) -> int:
        return len(self.labels)


def new_labels(
    clip_ids: NDArray[np.int64],
    content_ids: NDArray[np.uint32],
    vectors: NDArray[np.float32],
    features: Features,
    thumbnails: Sequence[bytes],
    hubness_offsets: NDArray[np.float32] | None,
) -> Labels:
    """Return labels of new clips, without the position of their thumbnails."""
    labels = np.zeros(len(clip_ids), LABEL)
    labels["clip_id"], labels["content_id"] = clip_ids, content_ids
    labels["thumbnail_size"] = [len(image) for image in thumbnails]
    labels["vector_checksum"] = checksums_of(vectors)
    labels["features_checksum"] = checksums_of([row.tobytes() for row in features])
    labels["thumbnail_checksum"] = checksums_of(thumbnails)
    if hubness_offsets is not None:
        labels["hubness_offset"] = hubness_offsets
    return labels


def append_rows(
    folder: Path, segment: SegmentInfo, rows: NewRows, mode: int = FILE_MODE
) -> SegmentInfo:
    """Write rows after the committed ones and sync them; return the info to commit to SQLite."""
    labels = rows.labels.copy()
    sizes = labels["thumbnail_size"].astype(np.int64)
    labels["thumbnail_start"] = segment.thumbnail_bytes + np.cumsum(sizes) - sizes
    vectors = np.ascontiguousarray(rows.vectors, np.float32)
    arrays: list[NDArray[Any]] = [vectors, codes_of(vectors), labels]
    content = [
        *map(bytes_of, arrays),
        bytes_of(rows.features),
        memoryview(b"".join(rows.thumbnails)),
    ]
    starts = [segment.num_rows * (len(part) // len(rows)) for part in content[:-1]]
    paths = [segment.path(folder, kind) for kind in KINDS]
    append_files(paths, [*starts, segment.thumbnail_bytes], content, mode)
    return replace(
        segment,
        num_rows=segment.num_rows + len(rows),
        thumbnail_bytes=segment.thumbnail_bytes + int(sizes.sum()),
        block_checksums=extended_checksums(segment.block_checksums, segment.num_rows, arrays),
    )


def append_files(
    paths: Sequence[Path], starts: Sequence[int], content: Sequence[memoryview], mode: int
) -> None:
    """Write to several files, each from an offset on, and sync all of them."""
    is_new = not all(path.exists() for path in paths)
    descriptors: list[int] = []
    try:
        for path, start, part in zip(paths, starts, content, strict=True):
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | BINARY, mode)
            descriptors.append(descriptor)
            os.ftruncate(descriptor, start)  # Drops rows of a writer that was killed.
            os.lseek(descriptor, start, os.SEEK_SET)
            _write_all(descriptor, part)
            if hasattr(os, "posix_fadvise"):  # Starts writing; the syncs below wait for all files.
                os.posix_fadvise(descriptor, start, len(part), os.POSIX_FADV_DONTNEED)
        for descriptor in descriptors:
            os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if is_new:
        sync(paths[0].parent)


def write_file(path: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Write a new file and sync it to the disk."""
    path.unlink(missing_ok=True)
    append_files([path], [0], [memoryview(content)], mode)


def _write_all(descriptor: int, content: memoryview) -> None:
    """Write everything; one call may write only a part."""
    while len(content):
        content = content[os.write(descriptor, content) :]


def block_checksums(rows: NDArray[Any]) -> list[int]:
    """Return the checksum of each block of ``BLOCK`` rows."""
    return [
        zlib.crc32(bytes_of(rows[first : first + BLOCK])) for first in range(0, len(rows), BLOCK)
    ]


def extended_checksums(
    before: NDArray[np.uint32], num_rows: int, arrays: Sequence[NDArray[Any]]
) -> NDArray[np.uint32]:
    """Return the block checksums ``[blocks, arrays]`` of ``num_rows`` rows and these after them."""
    total = num_rows + len(arrays[0])
    checksums = np.zeros((-(-total // BLOCK), len(arrays)), np.uint32)
    checksums[: len(before)] = before
    for block in range(num_rows // BLOCK, len(checksums)):
        part = slice(max(block * BLOCK - num_rows, 0), (block + 1) * BLOCK - num_rows)
        for column, array in enumerate(arrays):
            start = int(checksums[block, column])
            checksums[block, column] = zlib.crc32(bytes_of(array[part]), start)
    return checksums


def bytes_of(array: NDArray[Any]) -> memoryview:
    return memoryview(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
