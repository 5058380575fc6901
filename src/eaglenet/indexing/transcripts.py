"""Transcripts of a run: which sources are new, changed or removed, and storing their lines.

A source is a subtitle file, or the embedded subtitles, the audio or the frames of a video. Its
lines are stored before the row that marks it as read; a run killed in between reads it again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eaglenet.indexing.fetching import share
from eaglenet.indexing.files import LEADS_OUT, is_missing_file, leads_out
from eaglenet.indexing.inspection import EmbeddedSubtitles, Inspection, embedded_subtitles
from eaglenet.indexing.report import FileProblem
from eaglenet.search.store.tables import ClipStore, FileRow
from eaglenet.search.store.words import SourceRow, WordIndex, WordRow, source_key
from eaglenet.transcripts.lines import TranscriptLine, analyse
from eaglenet.transcripts.subtitles import SubtitleFile, SubtitleFinder, read_subtitles
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Access, Budget, Failure, map_ahead

READER = "subtitles 1"
"""Changed when subtitles are parsed differently, so that all are read again."""
COMMIT_LINES = 5_000
"""Lines held in memory at most; a killed run reads their sources again."""


@dataclass(frozen=True)
class _EmbeddedRequest:
    """A video whose embedded subtitles have to be read."""

    content: str
    path: str
    duration: float


class TranscriptRun:
    """Transcripts of one store during one run.

    ``folders`` are real paths; subtitle files that are links out of them are not read. None: all
    links are followed.
    """

    def __init__(
        self,
        tables: ClipStore,
        *,
        retry: bool = False,
        subtitles: bool = True,
        folders: Sequence[str] | None = None,
    ) -> None:
        self.tables = tables
        self.reads_subtitles = subtitles
        self.folders = folders
        self.store = tables.words()
        self.retry = retry
        self.sources = {row.key: row for row in self.store.sources()}
        self.num_added = 0
        self.problems: dict[str, str] = {}
        self._waiting: dict[str, tuple[SourceRow, Sequence[TranscriptLine]]] = {}
        self._num_waiting = 0

    def add_inspected(self, inspection: Inspection) -> None:
        """Store the embedded subtitles of a file that was just inspected."""
        if inspection.subtitles is not None and self.reads_subtitles:
            self._add_embedded(inspection.content, inspection.file.path, inspection.subtitles)

    def read_subtitles(self, files: Sequence[FileRow], workers: int, limits: Limits) -> None:
        """Read new subtitles inside and beside these files, and drop removed ones."""
        if not self.reads_subtitles:
            return
        finder = SubtitleFinder()
        beside: dict[str, list[SubtitleFile]] = {}
        embedded: dict[str, _EmbeddedRequest] = {}
        for file in files:
            beside.setdefault(file.content, []).extend(self._inside(finder.beside(file.path)))
            if not self._is_embedded_read(file.content, file.path):
                embedded[file.content] = _EmbeddedRequest(file.content, file.path, file.duration)
        self._drop_removed(beside, {os.path.dirname(file.path) for file in files})
        for content, subtitles in beside.items():
            for subtitle in subtitles:
                self._read_file(content, subtitle)
        self._read_embedded(list(embedded.values()), workers, limits)
        self.write()

    def write(self) -> None:
        """Store waiting lines, then their sources, then sync the disk."""
        if not self._waiting:
            return
        waiting = list(self._waiting.values())
        self._store(
            [row for row, _ in waiting],
            [line for row, lines in waiting for line in line_rows(row, lines)],
        )
        self._waiting, self._num_waiting = {}, 0

    def store_chunk(self, row: SourceRow, lines: Sequence[TranscriptLine]) -> None:
        """Store more lines of a source, and how far it is read."""
        self.store.add_lines(line_rows(row, lines))
        self.store.put_sources([row])
        self.tables.sync()
        self.sources[row.key] = row
        self.num_added += len(lines)

    def copy_from(self, other: WordIndex, contents: Collection[str]) -> None:
        """Copy missing speech and on-screen text of these contents from another store.

        Transcripts do not depend on the model, and recognising them takes longer than encoding.
        """
        copies = [
            (row, lines)
            for row, lines in other.lines_of(("speech", "text"))
            if row.content in contents and row.key not in self.sources
        ]
        if copies:
            self._store([row for row, _ in copies], [line for _, lines in copies for line in lines])

    def drop_lines(self, source: str, since: float) -> None:
        """Drop lines that a killed run stored, or that another model recognised."""
        self.store.remove_lines([source], since)

    def clean_up(self, contents: Collection[str]) -> None:
        """Drop the transcripts of contents that are no longer in use."""
        self._drop([key for key, row in self.sources.items() if row.content not in contents])

    def all_problems(self) -> tuple[FileProblem, ...]:
        return tuple(FileProblem(path, reason) for path, reason in self.problems.items())

    def _store(self, rows: Sequence[SourceRow], lines: Sequence[WordRow]) -> None:
        """Store sources with all their lines."""
        # A killed run may have stored lines without their source.
        self.store.remove_lines([row.key for row in rows])
        self.store.add_lines(lines)
        self.store.put_sources(rows)
        self.tables.sync()
        self.sources.update((row.key, row) for row in rows)
        self.num_added += sum(row.lines for row in rows)

    def _inside(self, files: Iterable[SubtitleFile]) -> list[SubtitleFile]:
        """Subtitle files without links that lead out of the indexed folders."""
        inside = []
        for file in files:
            if file.is_link and self.folders is not None and leads_out(file.path, self.folders):
                self.problems[file.path] = LEADS_OUT
            else:
                inside.append(file)
        return inside

    def _read_file(self, content: str, file: SubtitleFile) -> None:
        before = self.sources.get(source_key(content, "subtitle", file.path))
        if before is not None and (before.size, before.modified_ns, before.reader) == (
            file.size,
            file.modified_ns,
            READER,
        ):
            if before.status == "done":
                return
            if not self.retry:
                self.problems[file.path] = before.reason
                return
        row = SourceRow(content, "subtitle", file.path, file.size, file.modified_ns, READER, "done")
        lines: list[TranscriptLine] = []
        try:
            lines = read_subtitles(Path(file.path))
        except OSError as error:
            # May pass; the next run tries again.
            self.problems[file.path] = f"subtitles: {error.strerror or error}"
            return
        except ValueError as error:
            row = replace(row, status="failed", reason=f"subtitles: {error}")
            self.problems[file.path] = row.reason
        lines = [line if line.language else replace(line, language=file.language) for line in lines]
        self._add(replace(row, language=file.language), lines)

    def _read_embedded(
        self, requests: Sequence[_EmbeddedRequest], workers: int, limits: Limits
    ) -> None:
        """Read embedded subtitles of files indexed before, in a process with limits."""
        budget: Budget[_EmbeddedRequest] = Budget(
            limits.memory,
            lambda request: request.content,
            lambda request: limits.time_for(request.duration, request.path),
        )
        for outcome in map_ahead(
            _embedded_subtitles,
            requests,
            workers=min(workers, 1 if requests else 0),
            budget=budget,
            access=Access(share=lambda request: share(request.path)),
        ):
            subtitles = (
                EmbeddedSubtitles(problem=f"embedded subtitles: {outcome.reason}")
                if isinstance(outcome, Failure)
                else outcome.result
            )
            self._add_embedded(outcome.request.content, outcome.request.path, subtitles)

    def _add_embedded(self, content: str, path: str, subtitles: EmbeddedSubtitles) -> None:
        row = SourceRow(content, "subtitle", "", 0, 0, READER, "done")
        if subtitles.problem:
            self.problems[path] = subtitles.problem
            row = replace(row, status="failed", reason=subtitles.problem)
        self._add(row, subtitles.lines)

    def _add(self, row: SourceRow, lines: Sequence[TranscriptLine]) -> None:
        self._waiting[row.key] = replace(row, lines=len(lines)), lines
        self._num_waiting += len(lines)
        if self._num_waiting >= COMMIT_LINES:
            self.write()

    def _is_embedded_read(self, content: str, video: str) -> bool:
        key = source_key(content, "subtitle", "")
        row = self._waiting[key][0] if key in self._waiting else self.sources.get(key)
        if row is None or row.reader != READER:
            return False
        if row.status == "failed":
            if self.retry and key not in self._waiting:
                return False
            self.problems[video] = row.reason
        return True

    def _drop_removed(
        self, beside: Mapping[str, Sequence[SubtitleFile]], folders: Collection[str]
    ) -> None:
        """Drop subtitle files that were removed, or renamed for another video."""
        self._drop(
            [
                key
                for key, row in self.sources.items()
                if row.path
                and row.content in beside
                and row.path not in {file.path for file in beside[row.content]}
                and (os.path.dirname(row.path) in folders or is_missing_file(row.path))
            ]
        )

    def _drop(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        self.store.remove_sources(keys)
        self.tables.sync()
        for key in keys:
            del self.sources[key]


def line_rows(source: SourceRow, lines: Iterable[TranscriptLine]) -> list[WordRow]:
    """Rows of the store for the lines of a source."""
    return [
        WordRow(
            content=source.content,
            source=source.key,
            start=line.start,
            end=line.end,
            kind=source.kind,
            language=line.language,
            words=line.text,
            terms=analyse(line.text).index_text(),
        )
        for line in lines
    ]


def _embedded_subtitles(request: _EmbeddedRequest) -> EmbeddedSubtitles:
    return embedded_subtitles(request.path)
