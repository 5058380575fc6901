"""What waits to be stored, and the order in which it is: clips, files, and then the snapshot.

A file is reported as done after all three. Clips without a finished file are left from a run that
was interrupted: they are taken up again if their content is met, and removed otherwise.
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
"""Work that a crash may cost is bounded by whichever of the two comes first."""
PAUSE = 4.0
"""A commit takes longer the more clips a store has: at least so many times as long passes before
the next, so that committing takes a fifth of the time at most."""
MOST_CLIPS = 16 * COMMIT_CLIPS
"""That may wait all the same: they are in memory."""


@dataclass(frozen=True)
class CommitResult:
    """What one commit made durable and visible."""

    rows: Sequence[FileRow]
    clips: int


class Commit:
    """Gathers clips and rows of files for one store, which is held for writing."""

    def __init__(self, store: Store, tables: ClipStore) -> None:
        self.store = store
        self.tables = tables
        self._clips: list[ClipRows] = []
        self._rows: list[FileRow] = []
        self._last = time.monotonic()
        self._spent = 0.0

    def add_clips(self, rows: ClipRows) -> None:
        """To be stored with the next commit."""
        if len(rows):
            self._clips.append(rows)

    def add_row(self, row: FileRow) -> None:
        """To be stored with the next commit, after the clips that were added before."""
        self._rows.append(row)

    @property
    def is_due(self) -> bool:
        waiting, since = sum(map(len, self._clips)), time.monotonic() - self._last
        if waiting < MOST_CLIPS and since < PAUSE * self._spent:
            return False
        return waiting >= COMMIT_CLIPS or since >= COMMIT_SECONDS

    def write(self) -> CommitResult:
        """Make what waits durable and visible. Where it fails, what is not stored still waits."""
        begun = time.monotonic()
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
        self._last = time.monotonic()
        self._spent = self._last - begun
        return CommitResult(rows, clips)

    def clean_up(self, homes: Mapping[str, str], left: AbstractSet[str]) -> int:
        """Remove clips that no file has any more; returns how many clips are left.

        ``homes``: a path for each content that a file has. ``left``: contents that went from the
        path they were read from; where a copy is elsewhere, it stands for them from now on.
        """
        unused = {content for content, _ in self.tables.clip_keys()} - set(homes)
        if unused:
            self.tables.remove_contents(sorted(unused))
        for content in sorted(left & homes.keys()):
            self.tables.set_path(content, homes[content])
        self.tables.optimize()
        return self.store.publish(self.tables)
