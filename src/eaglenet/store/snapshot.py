"""A snapshot: the clips of a store as of one commit, for searching.

Opening one reads the list of segments and maps their files; nothing is read per clip. Everything
else is read from SQLite on demand. Clip ids are never reused and rows of a segment never change, so
a search continues while a writer commits. If a clip was removed meanwhile, :class:`OutdatedError`
is raised, and the caller takes a new snapshot.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError, UnknownClipError
from eaglenet.store import transcripts
from eaglenet.store.codes import Codes, scan_blocks
from eaglenet.store.database import Database, read_bank
from eaglenet.store.disk import DamageError, table_damage
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.name_dates import time_from_name
from eaglenet.store.records import (
    ID_CHARACTERS,
    Clip,
    Features,
    FileTable,
    Line,
    LineHit,
    LineQuery,
    Source,
    TranscriptKind,
    WindowHit,
    clip_id,
)
from eaglenet.store.schema import HIDDEN
from eaglenet.store.segments import LABEL, READ_AHEAD, Segment
from eaglenet.store.windows import (
    WindowIndex,
    WindowSegment,
    WindowSegmentInfo,
    read_window_segments,
)

CLIP_ID = re.compile(r"([0-9a-z]+)-(0|[1-9][0-9]{0,8})", re.ASCII)
SHORTEST_ID = 4
"""Minimum characters of the content hash in a shortened clip id."""


class OutdatedError(StoreError):
    """A writer removed clips of this snapshot; take a new snapshot and search again."""


class _ClipsOfContent:
    """Clips of one content in order of time; an object is created when a clip is read."""

    def __init__(
        self, content_id: int, content: str, values: Sequence[tuple[float, int, int, float]]
    ) -> None:
        """``values``: start, number, row and end of each clip."""
        self.content_id = content_id
        self.content = content
        self.values = values
        self.starts = np.array([value[0] for value in values])
        self.ends = np.array([value[3] for value in values])

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Clip:
        start, number, row, end = self.values[index]
        return Clip(row, self.content_id, self.content, number, start, end)

    def nearest(self, second: float) -> Clip | None:
        if not self.values:
            return None
        return self[int(np.minimum(second - self.starts, self.ends - second).argmax())]


class Snapshot:
    """Clips of one version of a store. A row is an index into all stored clips, hidden included."""

    def __init__(
        self,
        database: Database,
        manifest: Manifest,
        version: int,
        segments: Sequence[Segment],
        hidden_clip_ids: NDArray[np.int64],
    ) -> None:
        self.database = database
        self.manifest = manifest
        self.version = version
        self.segments = segments
        sizes = [len(segment) for segment in segments]
        self._edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.num_rows = int(self._edges[-1])
        self.visible = self._visibility_mask(hidden_clip_ids)
        self._clips_of: dict[int, _ClipsOfContent] = {}
        self._windows: dict[str, WindowIndex] = {}

    @property
    def location(self) -> str:
        return self.database.location

    @property
    def stamp(self) -> Hashable:
        """Value of :meth:`eaglenet.store.base.Store.stamp` while this is the newest version."""
        return self.database.opened_file, self.version

    def __len__(self) -> int:
        """Return the number of clips that can be found."""
        return self.num_rows if self.visible is None else int(self.visible.sum())

    def _visibility_mask(self, hidden_clip_ids: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return a mask over rows; None if all clips can be found."""
        rows = self.rows_of_clips(hidden_clip_ids)
        if (rows < 0).any():
            raise table_damage(HIDDEN, self.location)
        if not len(rows):
            return None
        visible = np.ones(self.num_rows, bool)
        visible[rows] = False
        return visible

    def visible_rows(self) -> NDArray[np.int64]:
        """Return the rows of the clips that can be found."""
        return np.arange(self.num_rows) if self.visible is None else np.flatnonzero(self.visible)

    def rows_of_clips(self, clip_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows by clip id; -1 if this snapshot has no such clip."""
        rows = np.full(len(clip_ids), -1, np.int64)
        if len(clip_ids):
            for segment, base in zip(self.segments, self._edges.tolist(), strict=False):
                inside = segment.rows_of_clips(clip_ids)
                rows = np.where(inside >= 0, inside + base, rows)
        return rows

    @cached_property
    def from_keyframes(self) -> NDArray[np.bool_] | None:
        """Mask over rows: clips encoded from keyframes only; None if there are none."""
        with self._current():
            rows = self.database.verified_rows("keyframe_clips")
        indices = self.rows_of_clips(np.array([row[0] for row in rows], np.int64))
        if not len(indices):
            return None
        mask = np.zeros(self.num_rows, bool)
        mask[indices[indices >= 0]] = True  # Others are newer than this snapshot.
        return mask if self.visible is None else mask & self.visible

    def is_outdated(self) -> bool:
        """Return whether a writer has committed since, or the store was replaced."""
        version = self.database.value("SELECT version FROM state")
        return version != self.version or self.database.is_replaced()

    # Vectors and codes

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Raise ``OutdatedError`` instead of a damage error if the store has changed since."""
        try:
            yield
        except DamageError as error:
            if self.is_outdated():
                raise OutdatedError(
                    f"{self.location} changed during the search; search again"
                ) from error
            raise

    def vector_parts(
        self, first: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield vectors ``[rows, dim]`` between two rows by segment, each with its first row."""
        row = first
        for segment, low, high in self._segments_between(first, end):
            yield row, segment.vectors_between(low, high)
            row += high - low

    def codes(self, first: int = 0, end: int | None = None) -> Codes:
        """Return codes of the clips between two rows, copied into memory for scanning."""
        blocks = [
            block
            for segment, low, high in self._segments_between(first, end)
            for block in (
                segment.code_blocks
                if (low, high) == (0, len(segment))
                else scan_blocks(segment.codes_between(low, high))
            )
        ]
        return Codes(blocks, self.num_rows, first)

    def vectors_at(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """``[rows, dim]`` of a few clips, compared with their checksums; reads no others."""
        vectors = np.empty((len(rows), self.manifest.dim), np.float32)
        return self._gather(rows, vectors, Segment.vectors_at, "vectors")

    @cached_property
    def hubness_bank(self) -> HubnessBank | None:
        """The bank that hubness offsets come from; None if the store corrects no hubness."""
        return read_bank(self.database, self.manifest)

    @cached_property
    def hubness_offsets(self) -> NDArray[np.float32] | None:
        """``[rows]``; None if the store corrects no hubness."""
        with self._current(), self.database.reading():
            counts = (
                self.database.value("SELECT count(*) FROM hubness"),
                self.database.value("SELECT num_rows FROM totals WHERE name = 'hubness'"),
            )
            if counts not in ((0, 0), (1, 1)):
                raise table_damage("hubness", self.location)
        if counts == (0, 0):
            return None
        return self._label("hubness_offset", np.float32)

    @cached_property
    def content_ids(self) -> NDArray[np.uint32]:
        """Content id of each row."""
        return self._label("content_id", np.uint32)

    def rows_of_contents(self, content_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask over rows: clips of these contents."""
        is_selected = np.zeros(int(self.content_ids.max(initial=0)) + 1, bool)
        ids = np.asarray(content_ids, np.int64)
        is_selected[ids[ids < len(is_selected)]] = True
        return is_selected[self.content_ids]

    # Clips

    def fingerprints(self, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return checksums of the vector and the features of each clip."""
        names = ["vector_checksum", "features_checksum"]
        labels = self._gather(rows, np.zeros(len(rows), LABEL), lambda each, at: each.labels[at])
        return list(zip(*(labels[name].tolist() for name in names), strict=True))

    def features_at(self, rows: NDArray[np.int64]) -> Features:
        """Return features of a few clips, compared with their checksums."""
        features = np.empty(len(rows), self.manifest.layout.dtype)
        return self._gather(rows, features, Segment.features_at, "features")

    def thumbnail(self, row: int) -> bytes:
        """Return the JPEG of a clip."""
        with self._current():
            ((segment, _, inside),) = self._by_segment(np.array([row]))
            return segment.thumbnails_at(inside)[0]

    def clips(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Clip]:
        """Return the clips of rows, with their times and contents."""
        indices = np.asarray(rows, np.int64)
        with self._current(), self.database.reading():
            empty = np.zeros(len(indices), LABEL)
            labels = self._gather(indices, empty, lambda each, at: each.labels[at])
            ids, owners = labels["clip_id"], labels["content_id"]
            stored_rows = self.database.verified_rows_by("clips", "id", sorted(set(ids.tolist())))
            values = {row[0]: row[1:] for row in stored_rows}
            pairs = list(zip(indices.tolist(), ids.tolist(), owners.tolist(), strict=True))
            if any(clip not in values or values[clip][0] != owner for _, clip, owner in pairs):
                raise table_damage("clips", self.location)
            contents = transcripts.content_hashes(self.database, set(owners.tolist()))
        return [Clip(row, owner, contents[owner], *values[clip][1:]) for row, clip, owner in pairs]

    def clips_of_content(self, content: str) -> list[Clip]:
        """Return the clips of a content that can be found, in order of time."""
        with self.database.reading():
            rows = self.database.verified_rows("contents", "WHERE hash = ?", (content,))
            return self.clips_of_contents([rows[0][0]])[rows[0][0]] if rows else []

    def clips_of_contents(self, content_ids: Iterable[int]) -> dict[int, list[Clip]]:
        """Return the clips that can be found, by content id and in order of time."""
        return {
            content_id: [clips[index] for index in range(len(clips))]
            for content_id, clips in self._clips_by_content(content_ids).items()
        }

    def clips_beside(self, clip: Clip, count: int) -> list[Clip]:
        """Return the clip with up to ``count`` clips before and after it, in order of time."""
        clips = self._clips_by_content([clip.content_id])[clip.content_id]
        index = int(np.searchsorted(clips.starts, clip.start))
        while index < len(clips) and clips.values[index][2] != clip.row:
            index += 1  # Clips may start at the same time.
        if index == len(clips):
            return [clip]
        first, end = max(0, index - count), min(len(clips), index + count + 1)
        return [clips[number] for number in range(first, end)]

    def clips_at(self, times: Sequence[tuple[int, float]]) -> list[Clip | None]:
        """Return, for each content id and second, the clip around it, or None without clips.

        Of several clips, it is the one whose nearer end is farthest from the second.
        """
        by_content = self._clips_by_content(content_id for content_id, _ in times)
        return [by_content[content_id].nearest(second) for content_id, second in times]

    def _clips_by_content(self, content_ids: Iterable[int]) -> dict[int, _ClipsOfContent]:
        ids = set(map(int, content_ids))
        new = sorted(ids - self._clips_of.keys())
        if new:
            self._clips_of.update(self._read_clips(new))
        return {content_id: self._clips_of[content_id] for content_id in ids}

    def _read_clips(self, ids: Sequence[int]) -> dict[int, _ClipsOfContent]:
        with self._current(), self.database.reading():
            values = list(self.database.verified_rows_by("clips", "content_id", ids))
            expected_counts = dict.fromkeys(ids, 0)
            for row in self.database.verified_rows_by("files", "content_id", ids):
                if row[5] == "done":
                    expected_counts[row[4]] = max(expected_counts[row[4]], row[10])
            counts = Counter(row[1] for row in values)
            if any(counts[number] < expected_counts[number] for number in ids):
                raise table_damage("clips", self.location)
            contents = transcripts.content_hashes(self.database, ids)
            rows = self.rows_of_clips(np.array([row[0] for row in values], np.int64)).tolist()
            if -1 in rows:  # Without the new clips, their neighbours would stand for them.
                raise table_damage("clips", self.location)
        clips: dict[int, list[tuple[float, int, int, float]]] = {number: [] for number in ids}
        for row, (_, owner, number, start, end) in zip(rows, values, strict=True):
            if self.visible is None or self.visible[row]:
                clips[owner].append((start, number, row, end))
        return {
            owner: _ClipsOfContent(owner, contents[owner], sorted(each))
            for owner, each in clips.items()
        }

    # Clip ids

    def row(self, name: str) -> int:
        """Return the row of the clip with an id of :func:`clip_id`, or with a shortened one."""
        row = None
        if isinstance(name, str):
            row = self._row(name)
            row = self._row(self.full_id(name)) if row is None else row
        if row is None:
            raise UnknownClipError(
                f"no clip {name!r:.60} in this store; clip ids come from hits, like 3f9c-0"
            )
        return row

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._row(name) is not None

    def full_id(self, text: str) -> str:
        """Return the clip id that is or begins with ``text``; unknown text is returned as is."""
        match = CLIP_ID.fullmatch(text)
        if text in self or match is None or len(match[1]) < SHORTEST_ID:
            return text
        names = {clip_id((content, int(match[2]))) for content in self._beginning_with(match[1])}
        matches = sorted(name for name in names if name in self)
        if len(matches) > 1:
            raise UnknownClipError(
                f"{text!r:.60} is ambiguous ({len(matches)} clips); type more characters"
            )
        return matches[0] if matches else text

    def short_id(self, name: str) -> str:
        """Return the shortest form of a clip id that no clip of another content has."""
        beginning, _, number = name.partition("-")
        neighbours = [
            self.database.value(
                f"SELECT {function}(hash) FROM contents WHERE hash {sign} ?", (end,)
            )
            for function, sign, end in (("max", "<", beginning), ("min", ">", beginning + "g"))
        ]
        length = SHORTEST_ID
        for other in neighbours:
            while other and length < ID_CHARACTERS and other[:length] == beginning[:length]:
                length += 1
        return f"{beginning[:length]}-{number}"

    def _row(self, name: str) -> int | None:
        match = CLIP_ID.fullmatch(name)
        if match is None or not self.num_rows:
            return None
        rows = [
            clip.row
            for content in self._beginning_with(match[1])
            if content[:ID_CHARACTERS] == match[1]
            for clip in self.clips_of_content(content)
            if clip.number == int(match[2])
        ]
        return rows[0] if rows else None

    def _beginning_with(self, beginning: str) -> list[str]:
        """Return the content hashes with this prefix."""
        bounds = (beginning, beginning + "\uffff")
        # An index may be damaged: read the table before reporting that a clip does not exist.
        for source in ("", "NOT INDEXED "):
            where = f"{source}WHERE hash >= ? AND hash < ?"
            rows = self.database.verified_rows("contents", where, bounds)
            if rows:
                break
        return [row[1] for row in rows]

    # Files

    def files(self, content_ids: Iterable[int] | None = None) -> FileTable:
        """Return the files that can be found: those of some contents, or all."""
        with self._current(), self.database.reading():
            if content_ids is None:
                rows = self.database.verified_rows("files")
                ids = {row[4] for row in rows if row[5] == "done"}
                hashes = dict(self.database.verified_rows("contents"))
                hashes = {number: hashes[number] for number in ids if number in hashes}
            else:
                ids = set(map(int, content_ids))
                rows = list(self.database.verified_rows_by("files", "content_id", sorted(ids)))
                hashes = transcripts.content_hashes(self.database, ids)
            # Ids ascend in the order in which paths were indexed.
            files = [row[1:] for row in sorted(rows) if row[5] == "done"]
            if ids != {row[3] for row in files} or len(hashes) != len(ids):
                raise table_damage("files", self.location)
        return _file_table(files, hashes, self.manifest.roots)

    # Transcripts

    @property
    def num_lines(self) -> int:
        return int(self.database.value("SELECT num_rows FROM totals WHERE name = 'lines'") or 0)

    def find_lines(
        self, query: LineQuery, limit: int, content_ids: Sequence[int] | None = None
    ) -> list[LineHit]:
        """Find the best transcript lines; see :func:`eaglenet.store.transcripts.find_lines`."""
        transcripts.verify_text(self.database)
        return transcripts.find_lines(self.database, query, limit, content_ids)

    @cached_property
    def _window_segments(self) -> list[WindowSegmentInfo]:
        return read_window_segments(self.database)

    @property
    def encoders(self) -> frozenset[str]:
        """Encoders of the windows of transcript lines."""
        return frozenset(info.encoder for info in self._window_segments)

    @property
    def num_windows(self) -> int:
        """Number of windows of transcript lines, some of replaced lines included."""
        return sum(info.num_rows for info in self._window_segments)

    def windows(self, encoder: str) -> WindowIndex:
        """Return the windows of an encoder, mapped on first use."""
        if encoder not in self._windows:
            with self._current():
                segments = [
                    WindowSegment(self.database.folder, info)
                    for info in self._window_segments
                    if info.encoder == encoder
                ]
            self._windows[encoder] = WindowIndex(segments)
        return self._windows[encoder]

    def find_windows(
        self,
        encoder: str,
        vector: NDArray[np.float32],
        limit: int,
        *,
        kinds: Sequence[TranscriptKind],
        content_ids: Sequence[int] | None = None,
        min_cosine: float = -1.0,
    ) -> list[WindowHit]:
        """Find the windows nearest to a unit vector of the encoder."""
        with self._current():
            source_ids = transcripts.sources_of_kinds(self.database, kinds)
            near = self.windows(encoder).nearest(vector, source_ids, content_ids)
            # Some rows belong to replaced lines; finish() leaves at most a fifth of them.
            near = near.above(min_cosine, 2 * limit)
            return transcripts.window_hits(self.database, near, limit)

    def similar_terms(self, term: str, limit: int = 3) -> list[str]:
        """Return words of the transcripts that are spelled like ``term``."""
        transcripts.verify_text(self.database)
        return transcripts.similar_terms(self.database, term, limit)

    def terms_beginning_with(self, beginning: str, limit: int) -> list[str]:
        """Return words of the transcripts with this prefix, the shortest first."""
        transcripts.verify_text(self.database)
        return transcripts.terms_beginning_with(self.database, beginning, limit)

    def languages(self, codes: Iterable[str]) -> list[str]:
        """Return those of the languages that a transcript line has."""
        transcripts.verify_text(self.database)
        return transcripts.languages_of_lines(self.database, codes)

    def transcripts(
        self, kinds: Sequence[TranscriptKind] | None = None, content_id: int | None = None
    ) -> Iterator[tuple[Source, list[Line]]]:
        """Yield all sources of some kinds, or of one content, with their lines."""
        for source_id, source in transcripts.stored_sources(self.database, kinds, content_id):
            with self._current():
                lines = transcripts.lines_of_source(self.database, source_id)
                if len(lines) != source.lines:  # Replaced since, or damaged.
                    raise table_damage("lines", self.location)
            yield source, lines

    # Segments

    def _label(self, name: str, dtype: Any) -> NDArray[Any]:
        with self._current():
            parts = [np.asarray(segment.labels[name], dtype) for segment in self.segments]
        return np.concatenate([np.zeros(0, dtype), *parts])

    def _segments_between(self, first: int, end: int | None) -> Iterator[tuple[Segment, int, int]]:
        """Yield the segments with rows between two rows, with the span of their own rows."""
        end = self.num_rows if end is None else end
        for number, segment in enumerate(self.segments):
            base = int(self._edges[number])
            low, high = max(first - base, 0), min(end - base, len(segment))
            if low < high:
                yield segment, low, high

    def _gather(
        self,
        rows: NDArray[np.int64],
        values: NDArray[Any],
        read: Callable[[Segment, NDArray[np.int64]], NDArray[Any]],
        kind: str | None = None,
    ) -> NDArray[Any]:
        """Fill ``values`` with the result of ``read`` for the rows of each segment.

        ``kind``: file whose reads are announced to the disk before the first one.
        """
        with self._current():
            segment_rows = list(self._by_segment(rows))
            if kind is not None and len(rows) >= READ_AHEAD:
                for segment, _, inside in segment_rows:
                    segment.read_ahead(kind, inside)
            for segment, indices, inside in segment_rows:
                values[indices] = read(segment, inside)
        return values

    def _by_segment(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each segment with indices into ``rows``, and the rows inside the segment."""
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        ends = np.searchsorted(ascending, self._edges[1:]).tolist()
        start = 0
        for number, end in enumerate(ends):
            if start < end:
                inside = ascending[start:end] - self._edges[number]
                yield self.segments[number], order[start:end], inside
            start = end


def _recording_time(group: Sequence[tuple[Any, ...]]) -> float | None:
    """Return the recording time of a content, or the earliest in the names of its copies."""
    recorded: float | None = group[0][11]
    if recorded is not None:
        return recorded
    times = (time_from_name(os.path.basename(row[0])) for row in group)
    return min((seconds for seconds in times if seconds is not None), default=None)


def _file_table(
    rows: Sequence[tuple[Any, ...]], hashes: dict[int, str], roots: tuple[str, ...]
) -> FileTable:
    """Group rows of ``files`` by their content; sort the groups by their first path."""
    unsorted_groups: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        if row[3] in hashes:
            unsorted_groups.setdefault(row[3], []).append(row)
    groups = dict(sorted(unsorted_groups.items(), key=lambda item: item[1][0][0]))
    first = [group[0] for group in groups.values()]
    return FileTable(
        ids=np.array(list(groups), np.int64),
        contents=[hashes[number] for number in groups],
        paths=[[row[0] for row in group] for group in groups.values()],
        modification_times=np.array([row[2] / 1e9 for row in first], np.float64),
        durations=np.array([row[6] for row in first], np.float64),
        widths=[row[7] for row in first],
        heights=[row[8] for row in first],
        tags=[
            sorted({tag for row in group if row[10] != "[]" for tag in json.loads(row[10])})
            for group in groups.values()
        ],
        sizes=[row[1] for row in first],
        recording_times=np.array([_recording_time(group) for group in groups.values()], np.float64),
        latitudes=np.array([row[12] for row in first], np.float64),
        longitudes=np.array([row[13] for row in first], np.float64),
        cameras=[row[14] for row in first],
        damage={number: row[5] for number, row in enumerate(first) if row[5]},
        roots=roots,
    )
