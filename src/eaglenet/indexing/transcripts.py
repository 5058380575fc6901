"""Transcripts of a run: find new, changed and removed sources, and store their lines and windows.

A source is a subtitle file, or the embedded subtitles, the audio or the frames of a video. It is
committed together with its lines.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.progress import Progress, report_progress
from eaglenet.indexing.fetching import share, share_stored
from eaglenet.indexing.files import LEADS_OUT, is_missing_file, leads_out
from eaglenet.indexing.inspection import (
    EmbeddedSubtitles,
    Inspection,
    embedded_subtitles,
    read_stored_files,
)
from eaglenet.indexing.report import FileProblem
from eaglenet.models.light_model import MeaningEncoder
from eaglenet.store.base import Writer
from eaglenet.store.records import (
    Changes,
    IndexedFile,
    Line,
    Source,
    SourceKey,
    SourceLines,
    SourceWindows,
)
from eaglenet.store.snapshot import Snapshot
from eaglenet.transcripts.lines import TranscriptLine, analyse, clean_lines, make_windows
from eaglenet.transcripts.subtitles import SubtitleFile, SubtitleFinder, read_subtitles
from eaglenet.video.input_file import SharedFile
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Failure
from eaglenet.video.worker_channel import valid_reason

FILE_READER, EMBEDDED_READER = "subtitles 3", "subtitles 1"
"""Changed when subtitles are parsed differently, so that all are read again; for embedded ones, all
videos are read."""
COMMIT_LINES = 5_000
"""Maximum lines held in memory; after a crash, their sources are read again."""
COMMIT_WINDOWS = 500
"""Windows per commit; after a crash, as many are encoded again."""
WINDOWS_TITLE = "encoding transcripts"


class TranscriptRun:
    """Transcripts of one store during one run.

    ``folders`` are real paths; subtitle files that are links out of them are not read. None: all
    links are followed.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        retry: bool = False,
        subtitles: bool = True,
        folders: Sequence[str] | None = None,
    ) -> None:
        self.writer = writer
        self.reads_subtitles = subtitles
        self.folders = folders
        self.retry = retry
        self.sources = dict(writer.sources())
        self.num_added = 0
        self.problems: dict[str, str] = {}
        """Reasons by path, of this run."""
        self.known_problems: dict[str, str] = {}
        """Reasons by path, of earlier runs; failed sources are retried only when they change."""
        self._pending_sources: dict[SourceKey, SourceLines] = {}
        self._num_waiting = 0

    def add_inspected(self, inspection: Inspection) -> None:
        """Store the embedded subtitles of a file that was just inspected."""
        if inspection.subtitles is not None and self.reads_subtitles:
            self._add_embedded(inspection.content, inspection.file.path, inspection.subtitles)

    def read_subtitles(self, files: Sequence[IndexedFile], workers: int, limits: Limits) -> None:
        """Read new subtitles inside and beside these files, and drop removed ones."""
        if not self.reads_subtitles:
            return
        finder = SubtitleFinder()
        files_by_content: dict[str, list[SubtitleFile]] = {}
        unread_files: dict[str, IndexedFile] = {}
        for file in files:
            files_by_content.setdefault(file.content, []).extend(
                self._inside(finder.beside(file.path))
            )
            if not self._is_embedded_read(file.content, file.path):
                unread_files[file.content] = file
        folders = {os.path.dirname(file.path) for file in files} - finder.problems.keys()
        self._drop_removed(files_by_content, folders, finder.problems.keys())
        for path, reason in finder.problems.items():
            self.problems[path] = f"subtitles: {reason}; index again to read them"
        for content, subtitles in files_by_content.items():
            for subtitle in subtitles:
                self._read_file(content, subtitle)
        self._read_embedded(list(unread_files.values()), workers, limits)
        self.write()

    def write(self) -> None:
        """Commit pending sources with their lines."""
        self._store(list(self._pending_sources.values()))
        self._pending_sources, self._num_waiting = {}, 0

    def store_chunk(
        self, source: Source, lines: Sequence[TranscriptLine], keep_until: float
    ) -> None:
        """Commit more lines of a source, and how far it is read."""
        self._store([SourceLines(source, make_store_lines(lines), keep_until)])

    def copy_from(self, other: Snapshot, contents: Collection[str]) -> None:
        """Copy speech, on-screen text and descriptions that are missing from another store.

        Transcripts do not depend on the model, and recognising them takes longer than encoding.
        """
        for source, lines in other.transcripts(("speech", "text", "description")):
            if source.content in contents and source.key not in self.sources:
                self._add(source, lines)
        self.write()

    def all_problems(self) -> tuple[FileProblem, ...]:
        """Return the problems of this run, then those that were known before it."""
        known_problems = self.known_problems.items()
        return (
            *(FileProblem(path, reason, is_indexed=True) for path, reason in self.problems.items()),
            *(
                FileProblem(path, reason, is_known=True, is_indexed=True)
                for path, reason in known_problems
                if path not in self.problems
            ),
        )

    def _store(self, transcripts: Sequence[SourceLines]) -> None:
        self.writer.commit(Changes(transcripts=transcripts))
        self.sources.update((each.source.key, each.source) for each in transcripts)
        self.num_added += sum(len(each.lines) for each in transcripts)

    def _inside(self, files: Iterable[SubtitleFile]) -> list[SubtitleFile]:
        """Return the files that are no links out of the indexed folders."""
        files_inside = []
        for file in files:
            if file.is_link and self.folders is not None and leads_out(file.path, self.folders):
                self.problems[file.path] = LEADS_OUT
            else:
                files_inside.append(file)
        return files_inside

    def _read_file(self, content: str, file: SubtitleFile) -> None:
        previous = self.sources.get((content, "subtitle", file.path))
        if previous is not None and (previous.size, previous.modified_ns, previous.reader) == (
            file.size,
            file.modified_ns,
            FILE_READER,
        ):
            if previous.status == "done":
                return
            if not self.retry:
                self.known_problems[file.path] = previous.reason
                return
        version = file.size, file.modified_ns
        source = Source(content, "subtitle", file.path, *version, FILE_READER, "done")
        lines: list[TranscriptLine] = []
        try:
            # The file may have become a link since it was listed.
            descriptor = share(file.path, self.folders or ()).require_descriptor()
            lines = read_subtitles(Path(file.path), descriptor, file.language)
        except OSError as error:
            # May be temporary; the next run tries again.
            self.problems[file.path] = f"subtitles: {error.strerror or error}"
            return
        except ValueError as error:
            source = replace(source, status="failed", reason=f"subtitles: {error}")
            self.problems[file.path] = source.reason
        lines = [line if line.language else replace(line, language=file.language) for line in lines]
        self._add(replace(source, language=file.language), make_store_lines(lines))

    def _read_embedded(self, files: Sequence[IndexedFile], workers: int, limits: Limits) -> None:
        """Read the embedded subtitles of files that were indexed before."""
        by_path = {file.path: file for file in files}
        for outcome in read_stored_files(
            embedded_subtitles,
            list(by_path),
            workers,
            limits,
            lambda path: self.share(by_path[path]),
            lambda path: by_path[path].duration,
        ):
            subtitles = (
                EmbeddedSubtitles(problem=f"embedded subtitles: {outcome.reason}")
                if isinstance(outcome, Failure)
                else outcome.result
            )
            self._add_embedded(by_path[outcome.request].content, outcome.request, subtitles)

    def share(self, file: IndexedFile) -> SharedFile:
        """Open a file of the store for a worker; refuse one that has changed."""
        return share_stored(file, self.writer.manifest.roots)

    def _add_embedded(self, content: str, path: str, subtitles: EmbeddedSubtitles) -> None:
        source = Source(content, "subtitle", "", 0, 0, EMBEDDED_READER, "done")
        if subtitles.problem:
            self.problems[path] = problem = valid_reason(subtitles.problem)
            source = replace(source, status="failed", reason=problem)
        # Cleaned again: a worker that a hostile file took over may send lines of any length.
        self._add(source, make_store_lines(clean_lines(subtitles.lines)))

    def _add(self, source: Source, lines: Sequence[Line]) -> None:
        self._pending_sources[source.key] = SourceLines(source, lines)
        self._num_waiting += len(lines)
        if self._num_waiting >= COMMIT_LINES:
            self.write()

    def _is_embedded_read(self, content: str, video: str) -> bool:
        key: SourceKey = (content, "subtitle", "")
        pending_source = self._pending_sources.get(key)
        source = pending_source.source if pending_source is not None else self.sources.get(key)
        if source is None or source.reader != EMBEDDED_READER:
            return False
        if source.status == "failed":
            if self.retry and pending_source is None:
                return False
            self.known_problems[video] = source.reason
        return True

    def _drop_removed(
        self,
        beside: Mapping[str, Sequence[SubtitleFile]],
        folders: Collection[str],
        unreadable_files: Collection[str],
    ) -> None:
        """Remove the lines of subtitle files that were deleted, or renamed for another video."""
        keys = [
            key
            for key, source in self.sources.items()
            if source.path
            and source.content in beside
            and source.path not in {file.path for file in beside[source.content]}
            and source.path not in unreadable_files
            and (os.path.dirname(source.path) in folders or is_missing_file(source.path))
        ]
        self.writer.commit(Changes(removed_sources=keys))
        for key in keys:
            del self.sources[key]


def make_store_lines(lines: Iterable[TranscriptLine]) -> list[Line]:
    """Return lines in the form of the store, with the terms that full-text search uses."""
    return [
        Line(line.start, line.end, line.language, line.text, analyse(line.text).index_text())
        for line in lines
    ]


def encode_transcripts(
    writer: Writer, progress: Progress | None = None, encoder: MeaningEncoder | None = None
) -> int:
    """Add windows to all complete sources that have none; return the number of new windows.

    The lines are read from the store, so a store of an earlier version gets windows without
    decoding its files again.
    """
    if not any(source.lines for source in writer.sources().values()):
        return 0
    encoder = encoder or MeaningEncoder.open()
    # A description belongs to its clip; joined with others in a window, it would lose its span.
    keys = [
        key
        for key, source in writer.sources(without_windows_of=encoder.identity).items()
        if source.kind != "description"
    ]
    windows: list[SourceWindows] = []
    total = 0
    for number, key in enumerate(keys):
        report_progress(progress, WINDOWS_TITLE, number, len(keys))
        windows.append(encode_source(encoder, key, writer.lines(key)))
        total += len(windows[-1].vectors)
        if sum(len(each.vectors) for each in windows) >= COMMIT_WINDOWS:
            writer.commit(Changes(windows=windows))
            windows = []
    writer.commit(Changes(windows=windows))
    if keys:
        report_progress(progress, WINDOWS_TITLE, len(keys), len(keys))
    return total


def encode_source(encoder: MeaningEncoder, key: SourceKey, lines: Sequence[Line]) -> SourceWindows:
    """Encode the windows of one source that the encoder can read."""
    windows = [
        window
        for window in make_windows(
            [TranscriptLine(line.start, line.end, line.text, line.language) for line in lines]
        )
        if encoder.reads(window.text)
    ]
    firsts: NDArray[np.uint32] = np.array([window.first for window in windows], np.uint32)
    lasts: NDArray[np.uint32] = np.array([window.last for window in windows], np.uint32)
    vectors = encoder.encode([window.text for window in windows])
    return SourceWindows(key, encoder.identity, firsts, lasts - firsts + 1, vectors)
