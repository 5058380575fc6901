"""Speech and text in frames: files are decoded ahead in parts, models read them here.

Each part is stored when it was read, with the second up to which that is so; a run that was
interrupted goes on from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from eaglenet.errors import VideoDecodeError
from eaglenet.progress import Progress, tell
from eaglenet.search.indexing.words import WordsRun
from eaglenet.search.store.tables import FileRow
from eaglenet.search.store.words import SourceRow, source_key
from eaglenet.types import WordKind
from eaglenet.video.distinct import DistinctFrame, distinct_frames
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Budget, Failed, map_ahead
from eaglenet.video.sound import RATE, Samples, decode_sound
from eaglenet.words.lines import Line
from eaglenet.words.listening import Listener
from eaglenet.words.reading import TextReader, TextTracker

PREFETCH = 2
TEXT_SECONDS = 20.0
"""Of a part: 55 MB of frames at most."""
SPEECH_SECONDS = 300.0
"""Of a part: 19 MB of samples."""
QUIET_SECONDS = 3.0
"""Around the end of a part, in which it is cut where it is quietest."""


@dataclass(frozen=True)
class PartRequest:
    """A part of a file to be decoded; the last one goes on to the end of the file."""

    content: str
    path: str
    start: float
    end: float
    is_last: bool
    duration: float


@dataclass(frozen=True)
class ReadPart:
    """Lines that are over, and the second up to which everything is."""

    lines: Sequence[Line]
    until: float


class PartReader(Protocol):
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
    def decode(self) -> Callable[[PartRequest], Any]:
        """Done ahead in processes with limits."""
        ...

    def begin(self) -> None:
        """Another file comes."""
        ...

    def read(self, request: PartRequest, decoded: Any) -> ReadPart: ...


class FrameText:
    """Text in the frames that differ, each as long as it is shown."""

    kind: WordKind = "text"
    title = "reading text in frames"
    seconds = TEXT_SECONDS

    def __init__(self, reader: TextReader) -> None:
        self.reader = reader
        self.name = reader.name
        self.decode = decode_frames
        self._tracker = TextTracker()

    def begin(self) -> None:
        self._tracker = TextTracker()

    def read(self, request: PartRequest, decoded: Sequence[DistinctFrame]) -> ReadPart:
        lines: list[Line] = []
        for frame in decoded:
            lines += self._tracker.feed(frame, self.reader.read(frame))
        if request.is_last:
            lines += self._tracker.finish()
        begun = self._tracker.begun
        return ReadPart(lines, request.end if begun is None else min(begun, request.end))


class Speech:
    """What is said."""

    kind: WordKind = "speech"
    title = "listening to speech"
    seconds = SPEECH_SECONDS

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.name = listener.name
        self.decode = decode_speech

    def begin(self) -> None:
        """Parts are heard on their own."""

    def read(self, request: PartRequest, decoded: SoundPart | None) -> ReadPart:
        if decoded is None:
            return ReadPart([], float("inf"))
        return ReadPart(self.listener.listen(decoded.samples, decoded.start), decoded.end)


@dataclass(frozen=True)
class SoundPart:
    """Samples between two quiet moments."""

    samples: Samples
    start: float
    end: float


def decode_frames(request: PartRequest) -> list[DistinctFrame]:
    """The frames of a part that differ."""
    return distinct_frames(
        request.path, request.start, float("inf") if request.is_last else request.end
    )


def decode_speech(request: PartRequest) -> SoundPart | None:
    """The sound of a part, from a quiet moment to a quiet moment; None where there is none.

    Both ends depend on the sound around them alone, so neighbouring parts meet.
    """
    first = max(request.start - QUIET_SECONDS, 0.0)
    last = request.end + (1.0 if request.is_last else QUIET_SECONDS)
    try:
        samples = decode_sound(request.path, first, last)
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
    return SoundPart(samples[begin:end], first + begin / RATE, until)


def quietest(samples: Samples, seconds: float) -> int:
    """The middle of the quietest tenth of a second in the first ``seconds``."""
    step = RATE // 10
    count = min(round(seconds * RATE), len(samples)) // step
    if not count:
        return 0
    energy = np.square(samples[: count * step]).reshape(count, step).sum(axis=1)
    return int(energy.argmin()) * step + step // 2


class PartsRun:
    """Reads one kind of words of the files of a run."""

    def __init__(
        self,
        words: WordsRun,
        reader: PartReader,
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
        budget: Budget[PartRequest] = Budget(
            self.limits.memory,
            lambda request: request.content,
            lambda request: self.limits.time_for(request.duration),
        )
        total = sum(1 for _ in self._requests(wanted))
        if total:
            tell(self.progress, self.reader.title, 0, total)
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
            tell(self.progress, self.reader.title, number, total, os.path.basename(request.path))
            if request.content in given_up:
                continue
            if now is None or now.content != request.content:
                now = self._begin(wanted[request.content])
            if isinstance(outcome, Failed):
                given_up.add(request.content)
                self._fail(now, request.path, outcome.reason)
                continue
            part = self.reader.read(request, outcome.result)
            until = float("inf") if request.is_last else part.until
            now = replace(now, until=until, lines=now.lines + len(part.lines))
            self.words.store_part(now, part.lines)
        if total:
            tell(self.progress, self.reader.title, total, total)

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

    def _requests(self, wanted: dict[str, tuple[FileRow, float]]) -> Iterator[PartRequest]:
        size = self.reader.seconds
        for content, (file, begin) in wanted.items():
            # On the grid, so that parts meet wherever the last run was interrupted.
            number = round(begin / size) if self.reader.kind == "speech" else 0
            start = number * size if self.reader.kind == "speech" else begin
            while True:
                end = start + size
                is_last = end >= file.duration
                end = max(file.duration, start) if is_last else end
                yield PartRequest(content, file.path, start, end, is_last, file.duration)
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
