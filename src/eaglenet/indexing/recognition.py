"""Speech and on-screen text: files are decoded ahead in chunks, and models read them here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from eaglenet.core.errors import EagleNetError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.indexing.executor import num_workers
from eaglenet.indexing.inspection import MAX_DURATION
from eaglenet.indexing.transcripts import TranscriptRun
from eaglenet.store.records import IndexedFile, Source, TranscriptKind
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.ocr import DistinctFrame, OcrModel, TextTracker, distinct_frames
from eaglenet.transcripts.speech import RATE, SpeechModel
from eaglenet.video.audio import AudioFormat, Samples, decode_audio
from eaglenet.video.containers import is_image
from eaglenet.video.frame_images import check_frame_pixels
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Access, Budget, Failure, map_ahead
from eaglenet.video.worker_channel import MAX_REASON

PREFETCH = 2
TEXT_SECONDS = 20.0
"""Seconds per chunk of frames: 55 MB at most."""
SPEECH_SECONDS = 300.0
"""Seconds per chunk of audio: 19 MB of samples."""
INFINITY = float("inf")
TITLES: dict[TranscriptKind, str] = {
    "speech": "speech",
    "text": "on-screen text",
    "description": "descriptions",
}
CUT_SECONDS = 3.0
"""A chunk of audio is cut at the quietest moment within this distance of its end."""
TOLERANCE = 1e-3
"""Seconds by which rounded times may differ."""


@dataclass(frozen=True)
class ChunkRequest:
    """A chunk of a file to decode; the last one extends to the end of the file."""

    content: str
    path: str
    start: float
    end: float
    is_last: bool
    duration: float


@dataclass(frozen=True)
class ChunkLines:
    """Lines that have ended, and the second up to which the transcript is complete.

    problem: the reason why it is not complete up to the end of the chunk.
    """

    lines: Sequence[TranscriptLine]
    until: float
    problem: str = ""


class Recognizer(Protocol):
    """Reads one kind of transcript, file by file and chunk by chunk."""

    kind: TranscriptKind
    title: str
    """Title of its progress."""
    seconds: float
    """Seconds per chunk."""

    @property
    def name(self) -> str:
        """Name and version of the model; if it changes, all files are read again."""
        ...

    @property
    def decode(self) -> Callable[[ChunkRequest], Any]:
        """Function that decodes a chunk, ahead in processes with limits."""
        ...

    @property
    def check(self) -> Callable[[ChunkRequest, Any], None]:
        """Function that raises ``ValueError`` for a decoded chunk that cannot be of its request."""
        ...

    def load(self) -> None:
        """Load the model, which takes seconds, unless it is loaded."""
        ...

    def begin(self) -> None:
        """Prepare for the next file."""
        ...

    def read(self, request: ChunkRequest, chunk: Any) -> ChunkLines: ...


class OnScreenTextRecognizer:
    """Text in frames; each line lasts as long as its text is visible.

    Reading a file takes at most as long as decoding it may; the next run continues.
    """

    kind: TranscriptKind = "text"
    title = "reading on-screen text"
    seconds = TEXT_SECONDS

    def __init__(self, limits: Limits) -> None:
        self.name = OcrModel.version()
        self.decode, self.check = decode_frame_chunk, check_frame_chunk
        self.limits = limits
        self._model: OcrModel | None = None
        self.begin()

    def load(self) -> None:
        self._model = self._model or OcrModel()

    def begin(self) -> None:
        self._tracker = TextTracker()
        self._until: float | None = None
        self._seconds_left = 0.0

    def read(self, request: ChunkRequest, chunk: Sequence[DistinctFrame]) -> ChunkLines:
        assert self._model is not None
        if self._until is None:
            self._until = request.start
            self._seconds_left = self.limits.time_for(request.duration, request.path)
        began_at = time.monotonic()
        lines: list[TranscriptLine] = []
        try:
            texts = self._model.read(chunk, began_at + self._seconds_left)
        except TimeoutError:
            self._seconds_left = 0.0
            problem = f"{TITLES[self.kind]}: out of time; index again to continue"
            return ChunkLines(self._tracker.finish(), self._until, problem)
        for frame, texts_of_frame in zip(chunk, texts, strict=True):
            lines += self._tracker.feed(frame, texts_of_frame)
        self._seconds_left -= time.monotonic() - began_at
        if request.is_last:
            return ChunkLines([*lines, *self._tracker.finish()], INFINITY)
        self._until = request.end
        open_start = self._tracker.earliest_open
        return ChunkLines(
            lines, request.end if open_start is None else min(open_start, request.end)
        )


class SpeechRecognizer:
    """Speech in the audio of a file."""

    kind: TranscriptKind = "speech"
    title = "recognising speech"
    seconds = SPEECH_SECONDS

    def __init__(self, model: str, device: str) -> None:
        self.name = f"whisper {model}"
        self.decode, self.check = decode_audio_chunk, check_audio_chunk
        self._source = model, device
        self._model: SpeechModel | None = None

    def load(self) -> None:
        self._model = self._model or SpeechModel(*self._source)

    def begin(self) -> None:
        """Do nothing: chunks are independent."""

    def read(self, request: ChunkRequest, chunk: AudioChunk | None) -> ChunkLines:
        assert self._model is not None
        if chunk is None:
            return ChunkLines([], INFINITY)
        return ChunkLines(self._model.transcribe(chunk.samples, chunk.start), chunk.end)


@dataclass(frozen=True)
class AudioChunk:
    """Samples between two quiet moments."""

    samples: Samples
    start: float
    end: float


def decode_frame_chunk(request: ChunkRequest) -> list[DistinctFrame]:
    """Decode the distinct frames of a chunk."""
    return distinct_frames(
        request.path, request.start, INFINITY if request.is_last else request.end
    )


def check_frame_chunk(request: ChunkRequest, frames: Sequence[DistinctFrame]) -> None:
    """Raise ``ValueError`` for frames that cannot be of the chunk: a worker may be hostile."""
    check_frame_pixels([frame.pixels for frame in frames])
    earliest = request.start - TOLERANCE
    latest = 2 * MAX_DURATION if request.is_last else request.end
    for frame in frames:
        if not earliest <= frame.start <= frame.end <= latest:
            raise ValueError("times outside the chunk, or in another order")
        earliest = frame.start


def decode_audio_chunk(request: ChunkRequest) -> AudioChunk | None:
    """Decode the audio of a chunk between two quiet moments; None if there is none.

    Each end depends only on the audio around it, so neighbouring chunks join without a gap.
    """
    first = max(request.start - CUT_SECONDS, 0.0)
    last = request.end + (1.0 if request.is_last else CUT_SECONDS)
    if is_image(request.path):
        return None
    channels = decode_audio(request.path, first, last, AudioFormat(RATE, "mono"))
    if channels is None:
        return None
    samples = channels[0]
    begin = quietest(samples, 2 * CUT_SECONDS) if request.start else 0
    if request.is_last:
        end = len(samples)
    else:
        search_start = round((request.end - CUT_SECONDS - first) * RATE)
        end = search_start + quietest(samples[search_start:], 2 * CUT_SECONDS)
    until = INFINITY if request.is_last else first + end / RATE
    return AudioChunk(samples[begin:end], first + begin / RATE, until)


def check_audio_chunk(request: ChunkRequest, chunk: AudioChunk | None) -> None:
    """Raise ``ValueError`` for audio that cannot be of the chunk: a worker may be hostile."""
    if chunk is None:
        return
    first = max(request.start - CUT_SECONDS, 0.0)
    if not first <= chunk.start <= first + 2 * CUT_SECONDS + TOLERANCE:
        raise ValueError("audio that starts elsewhere")
    is_near_end = abs(chunk.end - request.end) <= CUT_SECONDS + TOLERANCE  # False for NaN.
    if not (chunk.end == INFINITY if request.is_last else is_near_end):
        raise ValueError("audio that ends elsewhere")
    longest = request.end + CUT_SECONDS + 1.0 - first
    if chunk.samples.ndim != 1 or len(chunk.samples) > longest * RATE:
        raise ValueError("more audio than the chunk has")


def quietest(samples: Samples, seconds: float) -> int:
    """Return the middle of the quietest tenth of a second within the first ``seconds``."""
    step = RATE // 10
    count = min(round(seconds * RATE), len(samples)) // step
    if not count:
        return 0
    energy = np.square(samples[: count * step]).reshape(count, step).sum(axis=1)
    return int(energy.argmin()) * step + step // 2


class RecognitionRun:
    """Reads one kind of transcript for the files of a run."""

    def __init__(
        self,
        transcripts: TranscriptRun,
        recognizer: Recognizer,
        limits: Limits,
        progress: Progress | None = None,
    ) -> None:
        self.transcripts = transcripts
        self.recognizer = recognizer
        self.limits = limits
        self.progress = progress

    def run(self, files: Iterable[IndexedFile], workers: int | None) -> None:
        """Read the remaining files; one that fails is reported, and the next one is read.

        workers: number of decoding processes; None: depends on the size of the remaining files.
        """
        pending_files = self._pending_files(files)
        total = sum(1 for _ in self._requests(pending_files))
        if not total:
            return
        self.recognizer.load()
        title = self.recognizer.title
        report_progress(self.progress, title, 0, total)
        budget: Budget[ChunkRequest] = Budget(
            self.limits.memory,
            lambda request: request.content,
            lambda request: self.limits.time_for(request.duration, request.path),
        )
        outcomes = map_ahead(
            self.recognizer.decode,
            self._requests(pending_files),
            workers=num_workers([file for file, _ in pending_files.values()], workers),
            prefetch=PREFETCH,
            budget=budget,
            access=Access(
                share=lambda request: self.transcripts.share(pending_files[request.content][0]),
                check=self.recognizer.check,
            ),
        )
        failed_contents: set[str] = set()
        source: Source | None = None
        keep_until = 0.0
        for number, outcome in enumerate(outcomes):
            request = outcome.request
            report_progress(self.progress, title, number, total, os.path.basename(request.path))
            if request.content in failed_contents:
                continue
            if source is None or source.content != request.content:
                # Later lines are from an interrupted run, or from another model.
                keep_until = pending_files[request.content][1]
                source = self._begin(request.content, keep_until)
            if isinstance(outcome, Failure):
                failed_contents.add(request.content)
                self._fail(source, request.path, outcome.reason, keep_until)
                continue
            try:
                chunk = self.recognizer.read(request, outcome.result)
            except EagleNetError:
                raise
            except Exception as error:
                # A model of another package may raise anything, and must not end the run.
                failed_contents.add(request.content)
                reason = f"{type(error).__name__}: {error}".removesuffix(": ")
                self._fail(source, request.path, reason[:MAX_REASON], keep_until)
                continue
            if chunk.problem:
                self.transcripts.problems[request.path] = chunk.problem
            source = replace(source, until=chunk.until)
            self.transcripts.store_chunk(source, chunk.lines, keep_until)
            keep_until = INFINITY
        report_progress(self.progress, title, total, total)

    def _pending_files(self, files: Iterable[IndexedFile]) -> dict[str, tuple[IndexedFile, float]]:
        """Return the files to read, by content, and the second to start at."""
        pending_files: dict[str, tuple[IndexedFile, float]] = {}
        for file in files:
            source = self.transcripts.sources.get((file.content, self.recognizer.kind, ""))
            if source is None or source.reader != self.recognizer.name:
                pending_files.setdefault(file.content, (file, 0.0))
            elif source.status == "failed" and not self.transcripts.retry:
                self.transcripts.known_problems[file.path] = source.reason
            elif source.until != INFINITY or source.status == "failed":
                pending_files.setdefault(file.content, (file, max(0.0, source.until)))
        return pending_files

    def _requests(
        self, pending_files: dict[str, tuple[IndexedFile, float]]
    ) -> Iterator[ChunkRequest]:
        size = self.recognizer.seconds
        for content, (file, begin) in pending_files.items():
            # Chunks of speech lie on a grid, so that they join wherever a run was interrupted.
            start = round(begin / size) * size if self.recognizer.kind == "speech" else begin
            while True:
                end = start + size
                is_last = end >= file.duration
                end = max(file.duration, start) if is_last else end
                yield ChunkRequest(content, file.path, start, end, is_last, file.duration)
                if is_last:
                    break
                start = end

    def _begin(self, content: str, begin: float) -> Source:
        self.recognizer.begin()
        kind, name = self.recognizer.kind, self.recognizer.name
        return Source(content, kind, "", 0, 0, name, "done", until=begin)

    def _fail(self, source: Source, path: str, reason: str, keep_until: float) -> None:
        failed_source = replace(source, status="failed", reason=f"{TITLES[source.kind]}: {reason}")
        self.transcripts.problems[path] = failed_source.reason
        self.transcripts.store_chunk(failed_source, (), keep_until)
