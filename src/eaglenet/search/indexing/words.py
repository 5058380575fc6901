"""Words of the files of a run: which sources are new, changed or gone, and storing their lines.

A source is a subtitle file, a video's own subtitles, its sound or its frames. Its lines are stored
before the row that says so; a run that was killed between the two reads the source again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eaglenet.search.indexing.files import is_gone
from eaglenet.search.indexing.inspection import InnerSubtitles, Inspected, inner_subtitles
from eaglenet.search.indexing.report import FileProblem
from eaglenet.search.store.tables import ClipStore, FileRow
from eaglenet.search.store.words import SourceRow, WordIndex, WordRow, source_key
from eaglenet.types import WordKind
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Budget, Failed, map_ahead
from eaglenet.words.beside import SubtitleFile, SubtitleFinder
from eaglenet.words.lines import Line
from eaglenet.words.subtitles import read_subtitles
from eaglenet.words.terms import analyse

READER = "subtitles 1"
"""Changed where subtitles are read differently, so that all are read again."""
COMMIT_LINES = 5_000
"""Lines that wait at most; a killed run reads their sources again."""


@dataclass(frozen=True)
class _Inner:
    """A video whose own subtitles have to be read."""

    content: str
    path: str
    duration: float


class WordsRun:
    """The words of one store during one run."""

    def __init__(self, tables: ClipStore, *, retry: bool = False, subtitles: bool = True) -> None:
        self.tables = tables
        self.subtitles = subtitles
        self.words = tables.words()
        self.retry = retry
        self.known = {row.key: row for row in self.words.sources()}
        self.added = 0
        self.problems: dict[str, str] = {}
        self._waiting: dict[str, tuple[SourceRow, Sequence[Line]]] = {}
        self._waiting_lines = 0

    def inspected(self, item: Inspected) -> None:
        """Take the subtitles of a file that was just looked at."""
        if item.subtitles is not None and self.subtitles:
            self._take_inner(item.content, item.file.path, item.subtitles)

    def read_subtitles(self, files: Sequence[FileRow], workers: int, limits: Limits) -> None:
        """Read what is new inside and beside these files, and drop what is gone."""
        if not self.subtitles:
            return
        finder = SubtitleFinder()
        beside: dict[str, list[SubtitleFile]] = {}
        inner: dict[str, _Inner] = {}
        for file in files:
            beside.setdefault(file.content, []).extend(finder.beside(file.path))
            if not self._is_settled(file.content, "subtitle", "", file.path):
                inner[file.content] = _Inner(file.content, file.path, file.duration)
        self._drop_gone(beside, {os.path.dirname(file.path) for file in files})
        for content, subtitles in beside.items():
            for subtitle in subtitles:
                self._read_beside(content, subtitle)
        self._read_inner(inner.values(), workers, limits)
        self.write()

    def write(self) -> None:
        """Store what waits: lines, then their sources, then the disk."""
        if not self._waiting:
            return
        waiting = list(self._waiting.values())
        self._store(
            [row for row, _ in waiting],
            [word for row, lines in waiting for word in word_rows(row, lines)],
        )
        self._waiting, self._waiting_lines = {}, 0

    def _store(self, rows: Sequence[SourceRow], lines: Sequence[WordRow]) -> None:
        """Sources with all their lines, in one commit each."""
        # Of a killed run too, which may have stored lines and not that it did.
        self.words.remove_lines([row.key for row in rows])
        self.words.add_lines(lines)
        self.words.put_sources(rows)
        self.tables.sync()
        self.known.update((row.key, row) for row in rows)
        self.added += sum(row.lines for row in rows)

    def store_part(self, row: SourceRow, lines: Sequence[Line]) -> None:
        """Store more lines of a source, and how far it is read."""
        self.words.add_lines(word_rows(row, lines))
        self.words.put_sources([row])
        self.tables.sync()
        self.known[row.key] = row
        self.added += len(lines)

    def adopt(self, other: WordIndex, contents: Collection[str]) -> None:
        """Take what another store heard and read in these contents, as far as it is not known.

        Words do not depend on the model, and hearing them takes longer than seeing.
        """
        found = [
            (row, lines)
            for row, lines in other.lines_of(("speech", "text"))
            if row.content in contents and row.key not in self.known
        ]
        if found:
            self._store([row for row, _ in found], [line for _, lines in found for line in lines])

    def forget_lines(self, source: str, since: float) -> None:
        """Lines that a run stored before it was killed, or that another model read."""
        self.words.remove_lines([source], since)

    def clean_up(self, contents: Collection[str]) -> None:
        """Forget the words of contents that no file has any more."""
        gone = [key for key, row in self.known.items() if row.content not in contents]
        self._forget(gone)

    def _read_beside(self, content: str, file: SubtitleFile) -> None:
        before = self.known.get(source_key(content, "subtitle", file.path))
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
        lines: list[Line] = []
        try:
            lines = read_subtitles(Path(file.path))
        except (OSError, ValueError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            row = replace(row, status="failed", reason=f"subtitles: {reason}")
            self.problems[file.path] = row.reason
            if isinstance(error, OSError):
                return  # Of the moment: tried again the next time.
        named = [line if line.language else replace(line, language=file.language) for line in lines]
        self._take(replace(row, language=file.language), named)

    def _read_inner(self, wanted: Iterable[_Inner], workers: int, limits: Limits) -> None:
        """Of files that were indexed before their words were read: in a process with limits."""
        budget: Budget[_Inner] = Budget(
            limits.memory,
            lambda request: request.content,
            lambda request: limits.time_for(request.duration),
        )
        requests = list(wanted)
        for outcome in map_ahead(
            _inner_of, requests, workers=min(workers, 1 if requests else 0), budget=budget
        ):
            found = (
                InnerSubtitles(problem=f"its subtitles: {outcome.reason}")
                if isinstance(outcome, Failed)
                else outcome.result
            )
            self._take_inner(outcome.request.content, outcome.request.path, found)

    def _take_inner(self, content: str, path: str, found: InnerSubtitles) -> None:
        row = SourceRow(content, "subtitle", "", 0, 0, READER, "done")
        if found.problem:
            self.problems[path] = found.problem
            row = replace(row, status="failed", reason=found.problem)
        self._take(row, found.lines)

    def _take(self, row: SourceRow, lines: Sequence[Line]) -> None:
        self._waiting[row.key] = replace(row, lines=len(lines)), lines
        self._waiting_lines += len(lines)
        if self._waiting_lines >= COMMIT_LINES:
            self.write()

    def _is_settled(self, content: str, kind: WordKind, path: str, video: str) -> bool:
        key = source_key(content, kind, path)
        row = self._waiting[key][0] if key in self._waiting else self.known.get(key)
        if row is None or row.reader != READER:
            return False
        if row.status == "failed":
            if self.retry and key not in self._waiting:
                return False
            self.problems[video] = row.reason
        return True

    def _drop_gone(
        self, beside: Mapping[str, Sequence[SubtitleFile]], folders: Collection[str]
    ) -> None:
        """Subtitle files of these contents that were removed, or renamed to be of another video."""
        gone = [
            key
            for key, row in self.known.items()
            if row.path
            and row.content in beside
            and row.path not in {file.path for file in beside[row.content]}
            and (os.path.dirname(row.path) in folders or is_gone(row.path))
        ]
        self._forget(gone)

    def _forget(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        self.words.remove_sources(keys)
        self.tables.sync()
        for key in keys:
            del self.known[key]

    def all_problems(self) -> tuple[FileProblem, ...]:
        return tuple(FileProblem(path, reason) for path, reason in self.problems.items())


def word_rows(source: SourceRow, lines: Iterable[Line]) -> list[WordRow]:
    """The lines of a source as they are stored."""
    return [
        WordRow(
            content=source.content,
            source=source.key,
            start=line.start,
            end=line.end,
            kind=source.kind,
            language=line.language,
            words=line.text,
            terms=analyse(line.text).stored(),
        )
        for line in lines
    ]


def _inner_of(request: _Inner) -> InnerSubtitles:
    return inner_subtitles(request.path)
