"""Derive the snapshot from the durable store: append what is new, leave out what is gone."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.files import write_bytes
from eaglenet.search.store.checks import checks_of, file_check, sealed
from eaglenet.search.store.codes import code_bytes, codes_of
from eaglenet.search.store.file_table import FileTable
from eaglenet.search.store.hub_bank import HubBank
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.search.store.snapshot import CURRENT, LEVEL, ROW_COLUMNS, Snapshot
from eaglenet.search.store.tables import ClipKey, ClipStore, FileRow

CHUNK = 1024
"""Clips copied at a time."""
DEAD_FRACTION = 0.5
"""Share of slots of removed clips from which on the files are written anew."""


def publish(
    folder: Path,
    store: ClipStore,
    layout: FeatureLayout,
    dim: int,
    previous: Snapshot | None,
    bank: HubBank | None = None,
) -> int:
    """Make the clips of all finished files visible to readers; returns how many there are.

    The only writer is the holder of the store's lock. Everything is on disk before the one
    rename that makes it visible, so a crash leaves the version before. The clips of a content
    never change, so contents that are visible in ``previous`` are not read again. ``bank`` levels
    the clips; with another one than before everything is derived anew.
    """
    if previous is not None and previous.bank != (None if bank is None else bank.note.file):
        previous = None
    rows = store.files()
    files = _file_table(rows)
    if previous is not None and previous.num_slots > 2 * CHUNK:
        wanted = set(files.contents)
        visible = np.array([content in wanted for content in previous.files.contents])
        alive = int(visible[previous.columns["file_number"]].sum())
        if alive < previous.num_slots * (1 - DEAD_FRACTION) and not missing_clips(store):
            previous = None
    counts = {row.content: row.num_clips for row in rows if row.status == "done"}
    return _Writer(folder, layout, dim, previous, bank).write(store, files, counts)


def remove_others(folder: Path, kept: Snapshot) -> None:
    """Remove every file of a snapshot folder but those of one version."""
    numbers = [(kept.version, "npz"), (kept.version, "json")]
    numbers += [(kept.generation, suffix) for suffix in ("f32", "bin", "bits")]
    ends = tuple(f"-{number}.{suffix}" for number, suffix in numbers)
    for path in folder.glob("*-*"):
        if not path.name.endswith(ends):
            path.unlink(missing_ok=True)


def missing_clips(store: ClipStore) -> dict[str, int]:
    """How many clips the table lacks of each finished content; whole ones are not in it."""
    held = Counter(content for content, _ in set(store.clip_keys()))
    return {
        row.content: row.num_clips - held[row.content]
        for row in store.files()
        if row.status == "done" and held[row.content] < row.num_clips
    }


def _file_table(rows: list[FileRow]) -> FileTable:
    """One entry a content; of several paths the first by name gives the times."""
    groups: dict[str, list[FileRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.path):
        if row.status == "done":
            groups[row.content].append(row)
    first = [group[0] for group in groups.values()]
    return FileTable(
        contents=list(groups),
        paths=[[row.path for row in group] for group in groups.values()],
        modified=np.array([row.modified_ns / 1e9 for row in first], np.float64),
        durations=np.array([row.duration for row in first], np.float64),
        widths=[row.width for row in first],
        heights=[row.height for row in first],
        tags=[sorted({tag for row in group for tag in row.tags}) for group in groups.values()],
        sizes=[row.size for row in first],
    )


class _Writer:
    def __init__(
        self,
        folder: Path,
        layout: FeatureLayout,
        dim: int,
        previous: Snapshot | None,
        bank: HubBank | None = None,
    ) -> None:
        self.bank = bank
        levels = {} if bank is None else {LEVEL: np.float32}
        self.column_types = {**ROW_COLUMNS, **levels}
        self.folder = folder
        self.layout = layout
        self.dim = dim
        self.previous = previous
        self.version = 1 + max([0, *(_number(path) for path in folder.glob("rows-*.npz"))])
        fresh = 1 + max([0, *(_number(path) for path in folder.glob("vectors-*.f32"))])
        self.generation = previous.generation if previous is not None else fresh
        self.num_slots = previous.num_slots if previous is not None else 0
        self.thumbnail_bytes = previous.thumbnail_bytes if previous is not None else 0
        # A snapshot that was made without codes goes on without until it is made anew.
        self.codes_check = previous.codes_check if previous is not None else 0

    def write(self, store: ClipStore, files: FileTable, counts: Mapping[str, int]) -> int:
        """``counts``: how many clips each content should have."""
        number_of = {content: number for number, content in enumerate(files.contents)}
        kept = {name: np.zeros(0, dtype) for name, dtype in self.column_types.items()}
        fresh = set(number_of)
        if self.previous is not None:
            old = self.previous.files.contents
            visible = np.bincount(self.previous.columns["file_number"], minlength=len(old))
            pairs = zip(old, visible.tolist(), strict=True)
            fresh -= {content for content, count in pairs if count >= counts.get(content, 0)}
            # -1 marks contents that are gone; the numbers of the others may have moved.
            moved = np.array([number_of.get(content, -1) for content in old], np.int32)
            file = moved[self.previous.columns["file_number"]]
            kept = {name: column[file >= 0] for name, column in self.previous.columns.items()}
            kept["file_number"] = file[file >= 0]
            if not fresh and self._is_same(files):
                return len(self.previous)
        keys = sorted(key for key in set(store.clip_keys(sorted(fresh))) if not self._shows(key))
        added = self._append(store, keys, number_of)
        columns = {name: np.concatenate([kept[name], added[name]]) for name in kept}
        self._commit(columns, files)
        return len(columns["slot"])

    def _shows(self, key: ClipKey) -> bool:
        return self.previous is not None and self.previous.row_of_key(key) is not None

    def _is_same(self, files: FileTable) -> bool:
        before = self.previous
        return before is not None and before.files.to_json() == files.to_json()

    def _append(
        self, store: ClipStore, keys: list[ClipKey], number_of: dict[str, int]
    ) -> dict[str, NDArray[Any]]:
        added: list[dict[str, Any]] = []
        with (
            self._open("vectors-{}.f32", self.num_slots * self.dim * 4) as vectors,
            self._open("records-{}.bin", self.num_slots * self.layout.dtype.itemsize) as records,
            self._open("thumbnails-{}.bin", self.thumbnail_bytes) as thumbnails,
            self._open_codes() as codes,
        ):
            for start in range(0, len(keys), CHUNK):
                clips = store.read_clips(keys[start : start + CHUNK])
                coarse = np.ascontiguousarray(clips.coarse, np.float32)
                vectors.write(coarse.tobytes())
                records.write(clips.records.tobytes())
                if codes is not None:
                    self._add_codes(codes, coarse)
                sizes = np.array([len(image) for image in clips.thumbnails], np.int64)
                added.append(
                    {
                        "slot": np.arange(self.num_slots, self.num_slots + len(clips)),
                        "file_number": [number_of[content] for content, _ in clips.keys],
                        "number": [number for _, number in clips.keys],
                        "start": clips.starts,
                        "end": clips.ends,
                        "thumbnail_offset": thumbnails.tell() + np.cumsum(sizes) - sizes,
                        "thumbnail_size": sizes,
                        "vector_check": checks_of(coarse),
                        "record_check": checks_of(row.tobytes() for row in clips.records),
                        "thumbnail_check": checks_of(clips.thumbnails),
                        **({} if self.bank is None else {LEVEL: self.bank.levels(coarse)}),
                    }
                )
                thumbnails.write(b"".join(clips.thumbnails))
                self.num_slots += len(clips)
            self.thumbnail_bytes = thumbnails.tell()
            for stream in (vectors, records, thumbnails, codes):
                if stream is not None:
                    stream.flush()
                    os.fsync(stream.fileno())
        return {
            name: np.concatenate([np.zeros(0, dtype), *(part[name] for part in added)], dtype=dtype)
            for name, dtype in self.column_types.items()
        }

    def _open_codes(self) -> AbstractContextManager[BinaryIO | None]:
        if self.codes_check is None:
            return nullcontext()
        return self._open("codes-{}.bits", self.num_slots * code_bytes(self.dim))

    def _add_codes(self, stream: BinaryIO, vectors: NDArray[np.float32]) -> None:
        content = codes_of(vectors).tobytes()
        stream.write(content)
        self.codes_check = zlib.crc32(content, self.codes_check or 0)

    def _open(self, name: str, committed: int) -> BinaryIO:
        """Append after the committed length; what a killed writer left beyond it is cut off."""
        path = self.folder / name.format(self.generation)
        stream: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        stream.truncate(committed)
        stream.seek(committed)
        return stream

    def _commit(self, columns: dict[str, NDArray[Any]], files: FileTable) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **columns)  # type: ignore[arg-type]
        names = {"rows": f"rows-{self.version}.npz", "files": f"files-{self.version}.json"}
        parts = {"rows": buffer.getvalue(), "files": json.dumps(files.to_json()).encode()}
        for part, content in parts.items():
            write_bytes(self.folder / names[part], content)
        current = {
            "version": self.version,
            "generation": self.generation,
            "codes_check": self.codes_check,
            "slots": self.num_slots,
            "thumbnail_bytes": self.thumbnail_bytes,
            **names,
            **({} if self.bank is None else {"bank": self.bank.note.file}),
            "checks": {part: file_check(content) for part, content in parts.items()},
        }
        write_bytes(self.folder / CURRENT, sealed(current))
        self._remove_old()

    def _remove_old(self) -> None:
        """A reader that is just opening may still want the version before this one."""
        for path in [*self.folder.glob("rows-*.npz"), *self.folder.glob("files-*.json")]:
            if _number(path) < self.version - 1:
                path.unlink(missing_ok=True)
        for pattern in ("vectors-*.f32", "records-*.bin", "thumbnails-*.bin", "codes-*.bits"):
            for path in self.folder.glob(pattern):
                if _number(path) < self.generation - 1:
                    path.unlink(missing_ok=True)


def _number(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0
