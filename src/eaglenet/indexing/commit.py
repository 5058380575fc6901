"""Batched writes to a store: clips and files are collected and committed together.

A file is reported as done after its commit. Clips without a finished file remain from an
interrupted run: the next run reuses them if it meets their content, and removes them otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from eaglenet.store.base import Writer
from eaglenet.store.records import Changes, ClipBatch, IndexedFile

COMMIT_CLIPS = 256
COMMIT_SECONDS = 15.0
"""A crash costs at most this many clips or seconds of work, whichever comes first."""
PAUSE_FACTOR = 4.0
"""Commits to object storage take long; the pause between two is at least this many times as long
as the last one took, so committing takes at most a fifth of the time."""
MAX_CLIPS = 16 * COMMIT_CLIPS
"""Clips held in memory at most, even during the pause."""


@dataclass(frozen=True)
class CommitResult:
    """Files and clips that one commit made durable and visible."""

    files: Sequence[IndexedFile]
    clips: int


class Commit:
    """Collects clips and files for the writer of one store."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._clips: list[ClipBatch] = []
        self._files: list[IndexedFile] = []
        self._last_time = time.monotonic()
        self._last_seconds = 0.0

    def add_clips(self, batch: ClipBatch) -> None:
        if len(batch):
            self._clips.append(batch)

    def add_file(self, file: IndexedFile) -> None:
        """Add a file; call this after adding its clips."""
        self._files.append(file)

    @property
    def is_due(self) -> bool:
        num_clips = sum(map(len, self._clips))
        seconds = time.monotonic() - self._last_time
        if num_clips < MAX_CLIPS and seconds < PAUSE_FACTOR * self._last_seconds:
            return False
        return num_clips >= COMMIT_CLIPS or seconds >= COMMIT_SECONDS

    def write(self) -> CommitResult:
        """Make everything durable and visible; after an error, all of it still waits."""
        start = time.monotonic()
        self.writer.commit(Changes(clips=self._clips, files=self._files))
        result = CommitResult(self._files, sum(map(len, self._clips)))
        self._clips, self._files = [], []
        self._last_time = time.monotonic()
        self._last_seconds = self._last_time - start
        return result
