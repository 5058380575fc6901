"""The writer of a local store: commits, hubness correction and maintenance."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError
from eaglenet.store import transcripts
from eaglenet.store.database import (
    Database,
    State,
    connect,
    put_bank,
    put_manifest,
    put_state,
    read_bank,
    read_files,
    read_manifest,
    read_segments,
    read_state,
)
from eaglenet.store.disk import DATABASE, store_errors
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.records import (
    Changes,
    ClipBatch,
    IndexedFile,
    Line,
    Source,
    SourceKey,
    SourceWindows,
)
from eaglenet.store.schema import HIDDEN, KEYFRAME_CLIPS, insert_statement, migrate, put_row, row_of
from eaglenet.store.segments import (
    FOLDER,
    KINDS,
    MAPPED,
    REMOVED_FRACTION,
    NewRows,
    Segment,
    SegmentInfo,
    append_rows,
    block_checksums,
    new_labels,
    write_file,
)
from eaglenet.store.windows import WindowWriter, read_window_segments, sparse_segments

COPY_ROWS = 4096
DONE = "SELECT content_id FROM files WHERE status = 'done' AND content_id IS NOT NULL"
ORPHANS = (
    f"SELECT id FROM contents WHERE id NOT IN ({DONE}) AND ("
    "EXISTS (SELECT 1 FROM clips WHERE clips.content_id = contents.id) OR "
    "EXISTS (SELECT 1 FROM sources WHERE sources.content_id = contents.id) OR "
    "NOT EXISTS (SELECT 1 FROM files WHERE files.content_id = contents.id))"
)
"""Contents without a finished file that have anything to remove."""


@dataclass
class Transaction:
    """An open transaction: the connection, the state it will store, ids of contents by hash."""

    connection: sqlite3.Connection
    database: Database
    state: State
    content_ids: dict[str, int] = field(default_factory=dict)

    def content_id(self, content: str) -> int:
        """Return the id of a content; a new content gets a new id."""
        if content not in self.content_ids:
            rows = self.database.verified_rows("contents", "WHERE hash = ?", (content,))
            self.content_ids[content] = rows[0][0] if rows else self._add(content)
        return self.content_ids[content]

    def _add(self, content: str) -> int:
        number = self.state.next_content_id
        self.state.next_content_id += 1
        self.put("contents", number, (content,))
        return number

    def put(self, table: str, row_id: int, values: Sequence[Any]) -> None:
        """Insert a row, or replace the one with this id."""
        put_row(self.connection, table, row_id, values)

    def ids(self, statement: str, *parameters: Any) -> list[int]:
        return [row[0] for row in self.connection.execute(statement, parameters)]

    def next_id(self, table: str) -> int:
        return self.ids(f"SELECT coalesce(max(id), 0) + 1 FROM {table}")[0]


class LocalWriter:
    """Implementation of :class:`eaglenet.store.base.Writer`. The caller holds the writer lock."""

    def __init__(
        self, folder: Path, location: str | None = None, *, is_trusted: bool = False
    ) -> None:
        """``is_trusted``: skip SQLite's check of all pages, for a copy that can be rebuilt."""
        self.folder = folder
        self.location = location or str(folder)
        with store_errors(folder):
            connection = connect(folder, is_writer=True)
            try:
                migrate(connection)
            finally:
                connection.close()
            self.mode = stat.S_IMODE(os.stat(folder / DATABASE).st_mode) & 0o666
        self.database = Database(folder, self.location, is_writer=True)
        if not is_trusted:  # Changes to a damaged database would spread the damage.
            self.database.check_integrity()
        self.manifest = read_manifest(self.database)
        self._remove_obsolete()

    def close(self) -> None:
        with suppress(StoreError, sqlite3.Error):
            self.database.checkpoint()
        self.database.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Make all changes in the block durable and visible at its end, or none of them."""
        with self.database.writing() as connection:
            change = Transaction(connection, self.database, read_state(self.database))
            yield change
            put_state(connection, replace(change.state, version=change.state.version + 1))

    def add_roots(self, roots: Sequence[str]) -> None:
        manifest = self.manifest.with_roots(roots)
        if manifest != self.manifest:
            with self.transaction() as change:
                put_manifest(change.connection, manifest)
            self.manifest = manifest

    def files(self) -> list[IndexedFile]:
        return read_files(self.database)

    def incomplete_contents(self) -> dict[str, frozenset[int]]:
        rows = self.database.rows(
            "WITH held AS "
            "  (SELECT content_id, count(*) AS num_clips FROM clips GROUP BY content_id),"
            "needed AS (SELECT content_id, max(num_clips) AS num_clips FROM files "
            "  WHERE status = 'done' AND content_id IS NOT NULL GROUP BY content_id),"
            "incomplete AS ("
            "  SELECT held.content_id FROM held LEFT JOIN needed USING (content_id) "
            "  WHERE held.num_clips < coalesce(needed.num_clips, 9e9) "
            "  UNION SELECT needed.content_id FROM needed LEFT JOIN held USING (content_id) "
            "  WHERE needed.num_clips > coalesce(held.num_clips, 0)) "
            "SELECT contents.hash, clips.number FROM incomplete "
            "JOIN contents ON contents.id = incomplete.content_id "
            "LEFT JOIN clips ON clips.content_id = incomplete.content_id"
        )
        numbers: dict[str, set[int]] = {content: set() for content, _ in rows}
        for content, number in rows:
            numbers[content].update([] if number is None else [number])
        return {content: frozenset(each) for content, each in numbers.items()}

    def clip_numbers(self, content: str) -> frozenset[int]:
        rows = self.database.rows(
            "SELECT number FROM clips JOIN contents ON contents.id = clips.content_id "
            "WHERE contents.hash = ?",
            (content,),
        )
        return frozenset(number for (number,) in rows)

    def keyframe_clips(self) -> dict[str, frozenset[int]]:
        numbers: dict[str, set[int]] = {}
        for content, number in self.database.rows(
            "SELECT contents.hash, clips.number FROM keyframe_clips "
            "JOIN clips ON clips.id = keyframe_clips.id "
            "JOIN contents ON contents.id = clips.content_id"
        ):
            numbers.setdefault(content, set()).add(number)
        return {content: frozenset(each) for content, each in numbers.items()}

    def sources(self, *, without_windows_of: str | None = None) -> Mapping[SourceKey, Source]:
        with self.database.reading():
            sources = transcripts.stored_sources(self.database)
            if without_windows_of is not None:
                rows = self.database.verified_rows(
                    "windows", "WHERE encoder = ?", (without_windows_of,)
                )
                encoded_ids = {row[0] for row in rows}
                sources = [
                    (number, source)
                    for number, source in sources
                    if source.lines and source.until == math.inf and number not in encoded_ids
                ]
        return {source.key: source for _, source in sources}

    def lines(self, key: SourceKey) -> list[Line]:
        source_id = transcripts.source_id_of(self.database, key)
        return [] if source_id is None else transcripts.lines_of_source(self.database, source_id)

    def commit(self, changes: Changes) -> None:
        if not changes:
            return
        with self.transaction() as change:
            content_ids: set[int] = set()
            if changes.clips:
                content_ids |= self._add_clips(change, ClipBatch.concatenate(changes.clips))
            content_ids |= _remove_files(change, changes.removed_files)
            content_ids |= _put_files(change, changes.files)
            for content_id in sorted(content_ids):
                _set_visibility(change, content_id)
            _change_transcripts(change, changes)
            self._add_windows(change, changes.windows)
        self.database.checkpoint()

    def set_hubness(self, bank: HubnessBank | None) -> None:
        if read_bank(self.database, self.manifest) == bank:
            return
        with self.transaction() as change:
            change.connection.execute("DELETE FROM hubness")
            if bank is not None:
                put_bank(change.connection, bank)
            for segment in self._segments():
                self._relabel(change, segment, bank)
        self._remove_obsolete()

    def finish(self) -> int:
        if self.database.rows(f"{ORPHANS} LIMIT 1"):
            with self.transaction() as change:
                _remove_orphans(change)
        for segment in self._segments():
            self._compact(segment)
        sparse = sparse_segments(self.database)
        if sparse:
            with self.transaction() as change:
                _make_obsolete(change, self._window_writer(change).compact(sparse))
        self._remove_obsolete()
        if read_state(self.database).text_checksum is None:
            with self.transaction() as change:
                change.state.text_checksum = transcripts.text_checksum(change.connection)
        self.database.checkpoint()
        return self.num_visible()

    def num_visible(self) -> int:
        """Return the number of clips that can be found."""
        total = self.database.value("SELECT num_rows FROM totals WHERE name = 'clips'")
        num_hidden = self.database.value(
            "SELECT count(*) FROM hidden JOIN clips ON clips.id = hidden.clip_id"
        )
        return int(total) - int(num_hidden)

    def _add_clips(self, change: Transaction, batch: ClipBatch) -> set[int]:
        """Append clips that are not stored yet; return the contents they belong to.

        Exact clips replace those from keyframes.
        """
        owners = [change.content_id(content) for content, _ in batch.keys]
        pairs = list(zip(owners, batch.keys, strict=True))
        exact = {(owner, key[1]) for owner, key in pairs if key not in batch.keyframe_keys}
        if exact:
            _remove_keyframe_clips(change, exact)
        stored_keys = {
            (owner, number)
            for owner in set(owners)
            for number in change.ids("SELECT number FROM clips WHERE content_id = ?", owner)
        }
        indices = []
        for index, (owner, (_, number)) in enumerate(pairs):
            if (owner, number) not in stored_keys:
                stored_keys.add((owner, number))
                indices.append(index)
        if indices:
            self._append_clips(change, batch[indices], [owners[index] for index in indices])
        return set(owners)

    def _append_clips(self, change: Transaction, batch: ClipBatch, owners: Sequence[int]) -> None:
        first = change.state.next_clip_id
        change.state.next_clip_id += len(batch)
        ids = range(first, first + len(batch))
        segments = read_segments(self.database)
        rows = self._new_rows(np.arange(first, first + len(batch)), batch, owners)
        self._append_rows(change, rows, segments[-1] if segments else None)
        spans = zip(batch.starts.tolist(), batch.ends.tolist(), strict=True)
        values = [
            row_of("clips", clip, (owner, number, *span))
            for clip, owner, (_, number), span in zip(ids, owners, batch.keys, spans, strict=True)
        ]
        change.connection.executemany(insert_statement("clips"), values)
        keyframe_clips = [
            row_of(KEYFRAME_CLIPS, clip, (owner,))
            for clip, owner, key in zip(ids, owners, batch.keys, strict=True)
            if key in batch.keyframe_keys
        ]
        change.connection.executemany(insert_statement(KEYFRAME_CLIPS), keyframe_clips)

    def _new_rows(self, ids: NDArray[np.int64], batch: ClipBatch, owners: Sequence[int]) -> NewRows:
        vectors = np.ascontiguousarray(batch.vectors, np.float32)
        is_same = vectors.shape == (len(batch), self.manifest.dim)
        if not is_same or batch.features.dtype != self.manifest.layout.dtype:
            raise StoreError(
                f"the model gave features of another size than {self.location} has; index into a "
                "new store"
            )
        bank = read_bank(self.database, self.manifest)
        offsets = bank.offsets(vectors) if bank is not None else None
        labels = new_labels(
            ids, np.array(owners, np.uint32), vectors, batch.features, batch.thumbnails, offsets
        )
        return NewRows(labels, vectors, batch.features, batch.thumbnails)

    def _append_rows(self, change: Transaction, rows: NewRows, segment: SegmentInfo | None) -> None:
        """Append rows to ``segment`` until it is full, then to new segments."""
        start = 0
        while start < len(rows):
            if segment is None or not segment.free_rows:
                segment = SegmentInfo(change.state.next_segment_id)
                change.state.next_segment_id += 1
            part = rows[start : start + segment.free_rows]
            segment = append_rows(self.folder, segment, part, self.mode)
            change.put("segments", segment.id, segment.to_values())
            start += len(part)

    def _window_writer(self, change: Transaction) -> WindowWriter:
        return WindowWriter(self.folder, self.database, change.connection, change.state, self.mode)

    def _add_windows(self, change: Transaction, windows: Sequence[SourceWindows]) -> None:
        """Store windows of sources that still exist."""
        batches = []
        for each in windows:
            source_id = transcripts.source_id_of(self.database, each.key)
            if source_id is not None:
                batches.append((source_id, change.content_id(each.key[0]), each))
        self._window_writer(change).add(batches)

    def _segments(self) -> list[Segment]:
        infos = read_segments(self.database)
        return [Segment(self.folder, info, self.manifest) for info in infos]

    def _relabel(self, change: Transaction, segment: Segment, bank: HubnessBank | None) -> None:
        """Rewrite the labels of a segment with the offsets of another bank; 0 without one."""
        info, labels = segment.info, segment.labels.copy()
        for start in range(0, len(labels), COPY_ROWS):
            end = min(start + COPY_ROWS, len(labels))
            vectors = segment.vectors_between(start, end)
            labels["hubness_offset"][start:end] = 0 if bank is None else bank.offsets(vectors)
        checksums = info.block_checksums.copy()
        checksums[:, MAPPED.index("labels")] = block_checksums(labels)
        version = info.labels_version + 1
        new_info = replace(info, labels_version=version, block_checksums=checksums)
        write_file(new_info.path(self.folder, "labels"), labels.tobytes(), self.mode)
        change.put("segments", info.id, new_info.to_values())
        _make_obsolete(change, [info.path(self.folder, "labels")])

    def _compact(self, segment: Segment) -> None:
        """Rewrite a segment if many of its clips were removed."""
        removed_clips = np.array(
            [
                row[0]
                for row in self.database.rows(
                    f"SELECT clip_id FROM {HIDDEN} WHERE clip_id BETWEEN ? AND ? "
                    "AND clip_id NOT IN (SELECT id FROM clips)",
                    (segment.first_clip_id, segment.last_clip_id),
                )
            ],
            np.int64,
        )
        rows = segment.rows_of_clips(removed_clips)
        removed_clips = removed_clips[rows >= 0]
        if not len(removed_clips) or len(removed_clips) < REMOVED_FRACTION * len(segment):
            return
        live = np.setdiff1d(np.arange(len(segment)), rows)
        with self.transaction() as change:
            target: SegmentInfo | None = None
            for start in range(0, len(live), COPY_ROWS):
                part = segment.copy_of(live[start : start + COPY_ROWS])
                self._append_rows(change, part, target)
                target = read_segments(self.database)[-1]
            change.connection.execute("DELETE FROM segments WHERE id = ?", (segment.info.id,))
            change.connection.executemany(
                f"DELETE FROM {HIDDEN} WHERE clip_id = ?",
                [(clip,) for clip in removed_clips.tolist()],
            )
            _make_obsolete(change, [segment.info.path(self.folder, kind) for kind in KINDS])

    def _remove_obsolete(self) -> None:
        """Remove files that a committed transaction has replaced."""
        names = [name for (name,) in self.database.rows("SELECT name FROM obsolete")]
        if not names:
            return
        in_use = {
            info.path(self.folder, kind).name
            for info in read_segments(self.database)
            for kind in KINDS
        }
        for segment in read_window_segments(self.database):
            in_use |= {path.name for path in segment.paths(self.folder)}
        with store_errors(self.location):
            for name in names:
                if name not in in_use and Path(name).name == name:
                    _remove(self.folder / FOLDER / name)
        with self.database.writing() as connection:
            connection.execute("DELETE FROM obsolete")


def _remove(path: Path) -> None:
    """Remove a file, or a folder of that name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _make_obsolete(change: Transaction, paths: Iterable[Path]) -> None:
    """List files to be removed after the transaction."""
    names = [(path.name,) for path in paths]
    change.connection.executemany("INSERT OR IGNORE INTO obsolete VALUES (?)", names)


def _file_values(file: IndexedFile, content_id: int | None) -> tuple[Any, ...]:
    tags = json.dumps(list(file.tags))
    changes = {"content": content_id, "tags": tags}
    numbers = {
        name: None if value is None else float(value)
        for name, value in vars(file).items()
        if name in ("duration", "recorded", "latitude", "longitude")
    }
    return tuple({**vars(file), **numbers, **changes}.values())


def _put_files(change: Transaction, files: Sequence[IndexedFile]) -> set[int]:
    """Store files; return the contents they have now and had before."""
    content_ids: set[int] = set()
    for file in files:
        before = change.connection.execute(
            "SELECT id, content_id FROM files WHERE path = ?", (file.path,)
        ).fetchone()
        content_id = change.content_id(file.content) if file.content else None
        number = before[0] if before else change.next_id("files")
        change.put("files", number, _file_values(file, content_id))
        ids = (content_id, before[1] if before else None)
        content_ids.update(each for each in ids if each is not None)
    return content_ids


def _remove_files(change: Transaction, paths: Sequence[str]) -> set[int]:
    """Remove files; return the contents they had."""
    content_ids: set[int] = set()
    for path in paths:
        content_ids.update(change.ids("SELECT content_id FROM files WHERE path = ?", path))
        change.connection.execute("DELETE FROM files WHERE path = ?", (path,))
    return content_ids - {None}


def _set_visibility(change: Transaction, content_id: int) -> None:
    """Show the clips of a content if a finished file has it; hide them otherwise."""
    is_visible = change.ids(
        "SELECT 1 FROM files WHERE content_id = ? AND status = 'done'", content_id
    )
    clips = "SELECT id FROM clips WHERE content_id = ?"
    statement = (
        f"DELETE FROM {HIDDEN} WHERE clip_id IN ({clips})"
        if is_visible
        else f"INSERT OR IGNORE INTO {HIDDEN} (clip_id) {clips}"
    )
    change.connection.execute(statement, (content_id,))


def _remove_keyframe_clips(change: Transaction, keys: set[tuple[int, int]]) -> None:
    """Remove the clips from keyframes with these content ids and numbers.

    Their rows stay in the segment, hidden, until it is compacted.
    """
    for owner in {owner for owner, _ in keys}:
        clips = change.connection.execute(
            "SELECT id, number FROM clips WHERE content_id = ? AND id IN "
            "(SELECT id FROM keyframe_clips)",
            (owner,),
        ).fetchall()
        ids = [(clip,) for clip, number in clips if (owner, number) in keys]
        for statement in (
            f"INSERT OR IGNORE INTO {HIDDEN} (clip_id) VALUES (?)",
            "DELETE FROM clips WHERE id = ?",
            f"DELETE FROM {KEYFRAME_CLIPS} WHERE id = ?",
        ):
            change.connection.executemany(statement, ids)


def _change_transcripts(change: Transaction, changes: Changes) -> None:
    if not changes.transcripts and not changes.removed_sources:
        return
    change.state.text_checksum = None
    for content, kind, path in changes.removed_sources:
        for source_id in change.ids(
            "SELECT id FROM sources WHERE content_id = ? AND kind = ? AND path = ?",
            change.content_id(content),
            kind,
            path,
        ):
            transcripts.remove_source(change.connection, source_id)
    for each in changes.transcripts:
        content_id = change.content_id(each.source.content)
        transcripts.put_source(change.connection, each, content_id)


def _remove_orphans(change: Transaction) -> None:
    """Remove clips and transcripts of contents that no finished file has.

    Rows of clips stay in their segment, hidden, until it is compacted.
    """
    for content_id in change.ids(ORPHANS):
        _set_visibility(change, content_id)
        for table in ("clips", KEYFRAME_CLIPS):
            change.connection.execute(f"DELETE FROM {table} WHERE content_id = ?", (content_id,))
        for source_id in change.ids("SELECT id FROM sources WHERE content_id = ?", content_id):
            transcripts.remove_source(change.connection, source_id)
            change.state.text_checksum = None
        if not change.ids("SELECT 1 FROM files WHERE content_id = ?", content_id):
            change.connection.execute("DELETE FROM contents WHERE id = ?", (content_id,))
