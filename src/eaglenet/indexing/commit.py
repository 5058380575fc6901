"""Batched writes to a store: clips first, then files, then the published snapshot.

A file is reported as done after all three. Clips without a finished file remain from an
interrupted run: the next run reuses them if it meets their content, and removes them otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from eaglenet.search.store.base import Store
from eaglenet.search.store.tables import ClipRows, ClipStore, FileRow

COMMIT_CLIPS = 256
COMMIT_SECONDS = 15.0
"""A crash costs at most this many clips or seconds of work, whichever comes first."""
PAUSE_FACTOR = 4.0
"""Commits take longer in larger stores; the pause between two is at least this many times as long
as the last one took, so committing takes at most a fifth of the time."""
MAX_CLIPS = 16 * COMMIT_CLIPS
"""Clips held in memory at most, even during the pause."""


@dataclass(frozen=True)
class CommitResult:
    """Rows and clips that one commit made durable and visible."""

    rows: Sequence[FileRow]
    clips: int


class Commit:
    """Collects clips and file rows for one store, which is locked for writing."""

    def __init__(self, store: Store, tables: ClipStore) -> None:
        self.store = store
        self.tables = tables
        self._clips: list[ClipRows] = []
        self._rows: list[FileRow] = []
        self._last_time = time.monotonic()
        self._last_seconds = 0.0

    def add_clips(self, rows: ClipRows) -> None:
        if len(rows):
            self._clips.append(rows)

    def add_row(self, row: FileRow) -> None:
        """Add a file; call this after adding its clips."""
        self._rows.append(row)

    @property
    def is_due(self) -> bool:
        num_clips = sum(map(len, self._clips))
        seconds = time.monotonic() - self._last_time
        if num_clips < MAX_CLIPS and seconds < PAUSE_FACTOR * self._last_seconds:
            return False
        return num_clips >= COMMIT_CLIPS or seconds >= COMMIT_SECONDS

    def write(self) -> CommitResult:
        """Make everything durable and visible; after an error, what is not stored still waits."""
        start = time.monotonic()
        rows, clips = self._rows, sum(map(len, self._clips))
        if self._clips:
            self.tables.add_clips(ClipRows.concatenate(self._clips))
            self._clips = []
        if rows:
            self.tables.put_files(rows)
            self.store.publish(self.tables)
            self._rows = []
        elif clips:
            self.tables.sync()
        self._last_time = time.monotonic()
        self._last_seconds = self._last_time - start
        return CommitResult(rows, clips)

    def clean_up(self, paths: Mapping[str, str], moved: AbstractSet[str]) -> int:
        """Remove clips that no file has any more; returns the number of clips left.

        ``paths``: a path per content in use. ``moved``: contents that left the path they were read
        from; their clips now belong to the path of a copy.
        """
        unused = {content for content, _ in self.tables.clip_keys()} - set(paths)
        if unused:
            self.tables.remove_contents(sorted(unused))
        for content in sorted(moved & paths.keys()):
            self.tables.set_path(content, paths[content])
        self.tables.optimize()
        return self.store.publish(self.tables)
