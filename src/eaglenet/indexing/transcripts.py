"""Words of the files of a run: which sources are new, changed or gone, and storing their lines.

A source is a subtitle file, a video's own subtitles, its sound or its frames. Its lines are stored
before the row that says so; a run that was killed between the two reads the source again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import WordKind
from eaglenet.indexing.files import is_missing_file
from eaglenet.indexing.inspection import EmbeddedSubtitles, Inspection, embedded_subtitles
from eaglenet.indexing.report import FileProblem
from eaglenet.search.store.tables import ClipStore, FileRow
from eaglenet.search.store.words import SourceRow, WordIndex, WordRow, source_key
from eaglenet.transcripts.lines import TranscriptLine, analyse
from eaglenet.transcripts.ocr import DistinctFrame, OcrModel, TextTracker, distinct_frames
from eaglenet.transcripts.speech import RATE, SpeechModel, Samples, decode_audio
from eaglenet.transcripts.subtitles import SubtitleFile, SubtitleFinder, read_subtitles
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Budget, Failure, map_ahead

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


class TranscriptRun:
    """The words of one store during one run."""

    def __init__(self, tables: ClipStore, *, retry: bool = False, subtitles: bool = True) -> None:
        self.tables = tables
        self.subtitles = subtitles
        self.words = tables.words()
        self.retry = retry
        self.known = {row.key: row for row in self.words.sources()}
        self.added = 0
        self.problems: dict[str, str] = {}
        self._waiting: dict[str, tuple[SourceRow, Sequence[TranscriptLine]]] = {}
        self._waiting_lines = 0

    def inspected(self, item: Inspection) -> None:
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

    def store_part(self, row: SourceRow, lines: Sequence[TranscriptLine]) -> None:
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
        lines: list[TranscriptLine] = []
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
                EmbeddedSubtitles(problem=f"its subtitles: {outcome.reason}")
                if isinstance(outcome, Failure)
                else outcome.result
            )
            self._take_inner(outcome.request.content, outcome.request.path, found)

    def _take_inner(self, content: str, path: str, found: EmbeddedSubtitles) -> None:
        row = SourceRow(content, "subtitle", "", 0, 0, READER, "done")
        if found.problem:
            self.problems[path] = found.problem
            row = replace(row, status="failed", reason=found.problem)
        self._take(row, found.lines)

    def _take(self, row: SourceRow, lines: Sequence[TranscriptLine]) -> None:
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
            and (os.path.dirname(row.path) in folders or is_missing_file(row.path))
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


def word_rows(source: SourceRow, lines: Iterable[TranscriptLine]) -> list[WordRow]:
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


def _inner_of(request: _Inner) -> EmbeddedSubtitles:
    return embedded_subtitles(request.path)


# SpeechRecognizer and text in frames: files are decoded ahead in parts, models read them here.

PREFETCH = 2
TEXT_SECONDS = 20.0
"""Of a part: 55 MB of frames at most."""
SPEECH_SECONDS = 300.0
"""Of a part: 19 MB of samples."""
QUIET_SECONDS = 3.0
"""Around the end of a part, in which it is cut where it is quietest."""


@dataclass(frozen=True)
class ChunkRequest:
    """A part of a file to be decoded; the last one goes on to the end of the file."""

    content: str
    path: str
    start: float
    end: float
    is_last: bool
    duration: float


@dataclass(frozen=True)
class ChunkLines:
    """Lines that are over, and the second up to which everything is."""

    lines: Sequence[TranscriptLine]
    until: float


class Recognizer(Protocol):
    """Reads one kind of words, file by file and part by part."""

    kind: WordKind
    title: str
    """Of its work."""
    seconds: float
    """Of a part."""

    @property
    def name(self) -> str:
        """Of the model: another one reads everything again."""
        ...

    @property
    def decode(self) -> Callable[[ChunkRequest], Any]:
        """Done ahead in processes with limits."""
        ...

    def begin(self) -> None:
        """Another file comes."""
        ...

    def read(self, request: ChunkRequest, decoded: Any) -> ChunkLines: ...


class OnScreenTextRecognizer:
    """Text in the frames that differ, each as long as it is shown."""

    kind: WordKind = "text"
    title = "reading text in frames"
    seconds = TEXT_SECONDS

    def __init__(self, reader: OcrModel) -> None:
        self.reader = reader
        self.name = reader.name
        self.decode = decode_frame_chunk
        self._tracker = TextTracker()

    def begin(self) -> None:
        self._tracker = TextTracker()

    def read(self, request: ChunkRequest, decoded: Sequence[DistinctFrame]) -> ChunkLines:
        lines: list[TranscriptLine] = []
        for frame in decoded:
            lines += self._tracker.feed(frame, self.reader.read(frame))
        if request.is_last:
            lines += self._tracker.finish()
        begun = self._tracker.begun
        return ChunkLines(lines, request.end if begun is None else min(begun, request.end))


class SpeechRecognizer:
    """What is said."""

    kind: WordKind = "speech"
    title = "listening to speech"
    seconds = SPEECH_SECONDS

    def __init__(self, listener: SpeechModel) -> None:
        self.listener = listener
        self.name = listener.name
        self.decode = decode_audio_chunk

    def begin(self) -> None:
        """Parts are heard on their own."""

    def read(self, request: ChunkRequest, decoded: AudioChunk | None) -> ChunkLines:
        if decoded is None:
            return ChunkLines([], float("inf"))
        return ChunkLines(self.listener.listen(decoded.samples, decoded.start), decoded.end)


@dataclass(frozen=True)
class AudioChunk:
    """Samples between two quiet moments."""

    samples: Samples
    start: float
    end: float


def decode_frame_chunk(request: ChunkRequest) -> list[DistinctFrame]:
    """The frames of a part that differ."""
    return distinct_frames(
        request.path, request.start, float("inf") if request.is_last else request.end
    )


def decode_audio_chunk(request: ChunkRequest) -> AudioChunk | None:
    """The sound of a part, from a quiet moment to a quiet moment; None where there is none.

    Both ends depend on the sound around them alone, so neighbouring parts meet.
    """
    first = max(request.start - QUIET_SECONDS, 0.0)
    last = request.end + (1.0 if request.is_last else QUIET_SECONDS)
    try:
        samples = decode_audio(request.path, first, last)
    except VideoDecodeError:
        return None  # Shown all the same, so it is a photograph.
    if samples is None:
        return None
    begin = quietest(samples, 2 * QUIET_SECONDS) if request.start else 0
    if request.is_last:
        end = len(samples)
    else:
        around = round((request.end - QUIET_SECONDS - first) * RATE)
        end = around + quietest(samples[around:], 2 * QUIET_SECONDS)
    until = float("inf") if request.is_last else first + end / RATE
    return AudioChunk(samples[begin:end], first + begin / RATE, until)


def quietest(samples: Samples, seconds: float) -> int:
    """The middle of the quietest tenth of a second in the first ``seconds``."""
    step = RATE // 10
    count = min(round(seconds * RATE), len(samples)) // step
    if not count:
        return 0
    energy = np.square(samples[: count * step]).reshape(count, step).sum(axis=1)
    return int(energy.argmin()) * step + step // 2


class RecognitionRun:
    """Reads one kind of words of the files of a run."""

    def __init__(
        self,
        words: TranscriptRun,
        reader: Recognizer,
        limits: Limits,
        progress: Progress | None = None,
    ) -> None:
        self.words = words
        self.reader = reader
        self.limits = limits
        self.progress = progress

    def run(self, files: Iterable[FileRow], workers: int) -> None:
        """Read what is not read yet; a file that fails is reported and the next one read."""
        wanted = self._wanted(files)
        budget: Budget[ChunkRequest] = Budget(
            self.limits.memory,
            lambda request: request.content,
            lambda request: self.limits.time_for(request.duration),
        )
        total = sum(1 for _ in self._requests(wanted))
        if total:
            report_progress(self.progress, self.reader.title, 0, total)
        given_up: set[str] = set()
        now: SourceRow | None = None
        outcomes = map_ahead(
            self.reader.decode,
            self._requests(wanted),
            workers=workers if wanted else 0,
            prefetch=PREFETCH,
            budget=budget,
        )
        for number, outcome in enumerate(outcomes):
            request = outcome.request
            report_progress(self.progress, self.reader.title, number, total, os.path.basename(request.path))
            if request.content in given_up:
                continue
            if now is None or now.content != request.content:
                now = self._begin(wanted[request.content])
            if isinstance(outcome, Failure):
                given_up.add(request.content)
                self._fail(now, request.path, outcome.reason)
                continue
            part = self.reader.read(request, outcome.result)
            until = float("inf") if request.is_last else part.until
            now = replace(now, until=until, lines=now.lines + len(part.lines))
            self.words.store_part(now, part.lines)
        if total:
            report_progress(self.progress, self.reader.title, total, total)

    def _wanted(self, files: Iterable[FileRow]) -> dict[str, tuple[FileRow, float]]:
        """Files by content, and the second to begin at."""
        wanted: dict[str, tuple[FileRow, float]] = {}
        for file in files:
            row = self.words.known.get(source_key(file.content, self.reader.kind))
            if row is None or row.reader != self.reader.name:
                wanted.setdefault(file.content, (file, 0.0))
            elif row.status == "failed" and not self.words.retry:
                self.words.problems[file.path] = row.reason
            elif row.until != float("inf") or row.status == "failed":
                wanted.setdefault(file.content, (file, row.until))
        return wanted

    def _requests(self, wanted: dict[str, tuple[FileRow, float]]) -> Iterator[ChunkRequest]:
        size = self.reader.seconds
        for content, (file, begin) in wanted.items():
            # On the grid, so that parts meet wherever the last run was interrupted.
            number = round(begin / size) if self.reader.kind == "speech" else 0
            start = number * size if self.reader.kind == "speech" else begin
            while True:
                end = start + size
                is_last = end >= file.duration
                end = max(file.duration, start) if is_last else end
                yield ChunkRequest(content, file.path, start, end, is_last, file.duration)
                if is_last:
                    break
                start = end

    def _begin(self, wanted: tuple[FileRow, float]) -> SourceRow:
        file, begin = wanted
        self.reader.begin()
        key = source_key(file.content, self.reader.kind)
        before = self.words.known.get(key)
        self.words.forget_lines(key, begin)
        lines = before.lines if before is not None and begin else 0
        kind, name = self.reader.kind, self.reader.name
        return SourceRow(file.content, kind, "", 0, 0, name, "done", until=begin, lines=lines)

    def _fail(self, row: SourceRow, path: str, reason: str) -> None:
        title = "its sound" if row.kind == "speech" else "text in it"
        failed = replace(row, status="failed", reason=f"{title}: {reason}")
        self.words.problems[path] = failed.reason
        self.words.store_part(failed, ())
