"""What searching reads: plain files, mapped or read in place, swapped in one step.

The durable table answers a shortlist in about 100 ms at 100,000 clips and takes seconds to
import; a matrix product over mapped vectors takes a tenth of that and needs nothing but numpy.
So the writer keeps, beside the table, a snapshot that is derived from it and can be rebuilt at
any time::

    snapshot/current.json        version, number of slots, names of the files below
    snapshot/vectors-G.f32       coarse vectors, one row a slot, only ever appended to
    snapshot/codes-G.bits        codes of the vectors (see ``codes``), one row a slot
    snapshot/records-G.bin       frame features, masks and times, one record a slot
    snapshot/thumbnails-G.bin    JPEG files end to end
    snapshot/rows-V.npz          the clips of version V: slot, file, times, thumbnail span, level
    snapshot/files-V.json        the files of version V, column by column

A reader holds the files of one version open, so it is consistent while a writer goes on.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import StoreError, UsageError, shell_quote
from eaglenet.search.store.byte_sources import ByteSource, LocalBytes
from eaglenet.search.store.checked import checked_slots
from eaglenet.search.store.checks import checks_of, damaged, file_check, unsealed
from eaglenet.search.store.clip_ids import ClipIds
from eaglenet.search.store.codes import Codes, load_codes
from eaglenet.search.store.file_table import FileTable
from eaglenet.search.store.layout import FeatureLayout, Records
from eaglenet.search.store.tables import ClipKey, clip_id_of

CURRENT = "current.json"
ROW_COLUMNS = {
    "slot": np.int64,
    "file_number": np.int32,
    "number": np.int32,
    "start": np.float64,
    "end": np.float64,
    "thumbnail_offset": np.int64,
    "thumbnail_size": np.int32,
    "vector_check": np.uint32,
    "record_check": np.uint32,
    "thumbnail_check": np.uint32,
}
LEVEL = "level"
"""The column of what clips lose for being near to every sentence, where the store has a bank."""
MAX_PART = 4 * 2**30
"""Bytes of a list of files or rows."""


class Snapshot:
    """One version of the clips of a store, for reading.

    ``folder`` holds its files; ``location`` is the store's, for messages. ``source`` reads the
    records and thumbnails, where they do not lie in the folder.
    """

    def __init__(
        self,
        folder: Path,
        layout: FeatureLayout,
        dim: int,
        *,
        location: str,
        source: Callable[[str], ByteSource] | None = None,
    ) -> None:
        self._source = source or (lambda name: LocalBytes(folder / name))
        self.folder = folder
        self.layout = layout
        self.dim = dim
        self.location = location
        # The writer may remove this version's files between the two reads: then there is a newer.
        for attempt in range(5):
            try:
                self._load()
                return
            except FileNotFoundError as error:
                if attempt == 4 or not (self.folder / CURRENT).exists():
                    raise StoreError(
                        f"{location} has no readable snapshot ({error}); rebuild it with: "
                        f"eaglenet store repair --store {shell_quote(location)}"
                    ) from error
            except OSError as error:
                raise StoreError(
                    f"the snapshot in {location} cannot be read ({error}); make it readable"
                ) from error
            except (ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
                raise StoreError(
                    f"the snapshot in {location} is damaged ({error}); rebuild it with: "
                    f"eaglenet store repair --store {shell_quote(location)}"
                ) from error

    def _load(self) -> None:
        current = unsealed(untrusted.read_json(self.folder / CURRENT))
        self.version: int = current["version"]
        self.num_slots: int = current["slots"]
        self.codes_check: int | None = current.get("codes_check")
        """Checksum of all codes; None where the snapshot was made without."""
        self.thumbnail_bytes: int = current["thumbnail_bytes"]
        self.generation: int = current["generation"]
        with np.load(io.BytesIO(self._part(current, "rows"))) as columns:
            self.bank: str | None = current.get("bank")
            """The file of the bank that levels the clips; None: they are not levelled."""
            levels = () if self.bank is None else (LEVEL,)
            self.columns = {name: columns[name] for name in (*ROW_COLUMNS, *levels)}
        self.files = FileTable.from_json(untrusted.parse_json(self._part(current, "files")))
        name = f"{self.generation}"
        self._records = self._source(f"records-{name}.bin")
        self._thumbnails = self._source(f"thumbnails-{name}.bin")
        path = self.folder / f"vectors-{name}.f32"
        if path.stat().st_size < self.num_slots * self.dim * 4:
            raise ValueError(f"{path.name} is shorter than it should be")
        vectors: NDArray[np.float32] = np.zeros((0, self.dim), np.float32)
        if self.num_slots:
            # Copy-on-write only because torch refuses read-only memory; nothing writes to it.
            vectors = np.memmap(path, np.float32, "c", shape=(self.num_slots, self.dim))
        self._vectors = vectors
        self._vector_bytes = LocalBytes(path)
        self._checked = checked_slots(self._vector_bytes.key)
        self._checked_parts: set[tuple[int, int]] = set()
        self._codes: dict[tuple[int, int], Codes] = {}

    def _part(self, current: dict[str, Any], part: str) -> bytes:
        content = untrusted.read_bytes(self.folder / current[part], MAX_PART)
        if file_check(content) != current["checks"][part]:
            raise ValueError(f"{current[part]} is not as it was written")
        return content

    @cached_property
    def vectors(self) -> Tensor:
        """``[slots, dim]``, mapped; slots of removed clips are still in it.

        Compared with their checksums when they are first used: that takes a moment for each
        100,000 clips, which opening a store should not.
        """
        self.check_new_vectors()
        return torch.from_numpy(self._vectors)

    @property
    def levels(self) -> NDArray[np.float32] | None:
        """``[rows]``: what each clip loses against every sentence; None: nothing is taken off."""
        return self.columns.get(LEVEL)

    @property
    def has_codes(self) -> bool:
        return self.codes_check is not None

    @property
    def codes(self) -> Codes:
        """Codes of all slots, read into memory and compared when they are first used."""
        return self.codes_between(0, self.num_slots)

    def codes_between(self, first: int, end: int) -> Codes:
        """Codes of these slots alone in memory; all are compared."""
        if (first, end) not in self._codes:
            name, check = f"codes-{self.generation}.bits", self.codes_check or 0
            try:
                self._codes[first, end] = load_codes(
                    self.folder / name, self.dim, self.num_slots, check, (first, end)
                )
            except (ValueError, OSError) as error:
                raise damaged(name, self.location) from error
        return self._codes[first, end]

    def check_codes(self) -> None:
        """Compare the codes, where there are any."""
        if self.has_codes and self.num_slots:
            _ = self.codes

    def rows_at(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of these slots, each of which has one."""
        return slots if self.is_dense else np.searchsorted(self.columns["slot"], slots)

    def part(self, number: int, parts: int) -> tuple[int, int]:
        """First slot of part ``number`` (from 1 on) of ``parts`` equal ones, and the one after."""
        return (number - 1) * self.num_slots // parts, number * self.num_slots // parts

    def vectors_between(self, first: int, end: int) -> Tensor:
        """``[slots, dim]`` of these slots alone, mapped; no other is read or compared."""
        if (first, end) == (0, self.num_slots):
            return self.vectors
        if (first, end) not in self._checked_parts:
            self.check_new_vectors(first, end)
            self._checked_parts.add((first, end))
        return torch.from_numpy(self._vectors[first:end])

    def vectors_of(self, rows: NDArray[np.int64]) -> Tensor:
        """``[rows, dim]`` of a few clips, compared with their checksums; reads no other.

        Read in place: a mapped page would bring its neighbours with it.
        """
        vectors = np.empty((len(rows), self.dim), np.float32)
        if not len(rows):
            return torch.from_numpy(vectors)
        offsets = (self.columns["slot"][rows] * self.dim * 4).tolist()
        view, size = memoryview(vectors.data).cast("B"), self.dim * 4
        parts = [view[place * size : (place + 1) * size] for place in range(len(rows))]
        is_whole = self._vector_bytes.read_into(list(zip(offsets, parts, strict=True)))
        if not is_whole or not np.array_equal(
            checks_of(vectors), self.columns["vector_check"][rows]
        ):
            raise damaged(f"vectors-{self.generation}.f32", self.location)
        return torch.from_numpy(vectors)

    def check_vectors(self) -> None:
        """Compare the vectors of all clips."""
        self._check_rows(np.arange(len(self)))

    def check_new_vectors(self, first: int = 0, end: int | None = None) -> None:
        """Compare those between two slots that no snapshot of this process has compared yet."""
        slots = self.columns["slot"]
        rows = np.flatnonzero((slots >= first) & (slots < (self.num_slots if end is None else end)))
        self._check_rows(rows[self._checked.are_new(slots[rows])])

    def _check_rows(self, rows: NDArray[np.int64]) -> None:
        slots = self.columns["slot"][rows]
        found = checks_of(self._vectors[slot] for slot in slots.tolist())
        if not np.array_equal(found, self.columns["vector_check"][rows]):
            raise damaged(f"vectors-{self.generation}.f32", self.location)
        self._checked.add(slots)

    def __len__(self) -> int:
        return len(self.columns["slot"])

    @cached_property
    def is_dense(self) -> bool:
        """Whether row i is slot i, so that no row has to be picked out."""
        slots = self.columns["slot"]
        return len(slots) == self.num_slots and bool((slots == np.arange(len(slots))).all())

    def key(self, row: int) -> ClipKey:
        file = int(self.columns["file_number"][row])
        return self.files.contents[file], int(self.columns["number"][row])

    def names(self, rows: NDArray[np.int64]) -> list[tuple[ClipKey, int]]:
        """Of clips and what is stored of each, in this store and any that takes its place."""
        checks = self.columns["record_check"][rows].tolist()
        return [(self.key(row), check) for row, check in zip(rows.tolist(), checks, strict=True)]

    def clip_id(self, row: int) -> str:
        return clip_id_of(self.key(row))

    def row_of_key(self, key: ClipKey) -> int | None:
        number = self._file_of_content.get(key[0])
        return None if number is None else self._row_in_file(number, key[1])

    def _row_in_file(self, file: int, number: int) -> int | None:
        """The row of a clip of a file; no table of all clips is kept for it."""
        order, begins = self._rows_by_file
        rows = order[begins[file] : begins[file + 1]]
        found = rows[self.columns["number"][rows] == number]
        return int(found[0]) if len(found) else None

    @cached_property
    def _ids(self) -> ClipIds:
        return ClipIds(self.files.contents, self._row_in_file)

    def row(self, clip_id: str) -> int:
        row = self._ids.row(clip_id)
        if row is None:
            raise UsageError(
                f"no clip {clip_id[:60]!r} in this store; ids come from search results, like 3f9c-0"
            )
        return row

    def short_id(self, clip_id: str) -> str:
        """The beginning of an id that is enough to tell it from others."""
        return self._ids.short(self.key(self.row(clip_id)))

    def full_id(self, text: str) -> str:
        """The clip that an id or the beginning of one stands for; refuses what is not clear."""
        return self._ids.full(text)

    def __contains__(self, clip_id: object) -> bool:
        return isinstance(clip_id, str) and self._ids.row(clip_id) is not None

    def span(self, row: int) -> tuple[float, float]:
        """First and last second of a clip in its file."""
        return float(self.columns["start"][row]), float(self.columns["end"][row])

    def rows_of(self, files: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mask over rows from a mask over files."""
        rows: NDArray[np.bool_] = files[self.columns["file_number"]]
        return rows

    @cached_property
    def _rows_by_file(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows in the order of their files, and where those of each file begin."""
        files = self.columns["file_number"]
        order = np.argsort(files, kind="stable")
        return order, np.searchsorted(files[order], np.arange(len(self.files) + 1))

    @cached_property
    def _file_of_content(self) -> dict[str, int]:
        return {content: number for number, content in enumerate(self.files.contents)}

    def rows_of_content(self, content: str) -> NDArray[np.int64]:
        """Rows of the clips of a content; none where it is not in this version."""
        number = self._file_of_content.get(content)
        if number is None:
            return np.zeros(0, np.int64)
        order, begins = self._rows_by_file
        rows: NDArray[np.int64] = order[begins[number] : begins[number + 1]]
        return rows

    def records(self, rows: NDArray[np.int64]) -> Records:
        """Records of these rows, read in place: mapping them would count as memory for ever."""
        size = self.layout.dtype.itemsize
        buffer = np.empty(len(rows), self.layout.dtype)
        if not len(rows):
            return buffer
        view = memoryview(buffer.data).cast("B")
        parts = [view[place * size : (place + 1) * size] for place in range(len(rows))]
        offsets = (self.columns["slot"][rows] * size).tolist()
        is_whole = self._records.read_into(list(zip(offsets, parts, strict=True)))
        checks = self.columns["record_check"][rows].tolist()
        if not is_whole or [zlib.crc32(part) for part in parts] != checks:
            raise damaged(f"records-{self.generation}.bin", self.location)
        return buffer

    def thumbnail(self, row: int) -> bytes:
        content = bytearray(int(self.columns["thumbnail_size"][row]))
        span = (int(self.columns["thumbnail_offset"][row]), memoryview(content))
        is_whole = self._thumbnails.read_into([span])
        if not is_whole or zlib.crc32(content) != self.columns["thumbnail_check"][row]:
            raise damaged(f"thumbnails-{self.generation}.bin", self.location)
        return bytes(content)
