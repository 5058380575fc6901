"""One run over the files of a store: the ledger decides, an executor works, the commit stores."""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage
from eaglenet.indexing.executor import ClipOutcome, Executor
from eaglenet.indexing.fetching import current_version, is_missing, share_stored
from eaglenet.indexing.files import (
    CandidateFile,
    count_suffixes,
    leads_out,
    real_folders,
    unused_tags,
)
from eaglenet.indexing.ignore import Exclusions
from eaglenet.indexing.inspection import Inspection, read_stored_files, recording_of
from eaglenet.indexing.ledger import FileProgress, FileResult, Ledger, Outcome, recording_values
from eaglenet.indexing.options import IndexOptions
from eaglenet.indexing.report import (
    DAMAGED,
    NO_VIDEO,
    FileProblem,
    IndexProgress,
    IndexReport,
    OnProgress,
)
from eaglenet.indexing.transcripts import TranscriptRun
from eaglenet.store.base import Writer
from eaglenet.store.object_storage import absolute_location, is_object_url, select_inside
from eaglenet.store.records import Changes, ClipBatch, IndexedFile
from eaglenet.video.input_file import SharedFile
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Failure

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
"""Minimum seconds between progress updates, except after commits."""
ESTIMATE_SECONDS, ESTIMATE_FRACTION = 120.0, 0.1
"""Seconds since the first clip, or fraction of the bytes, after which the remaining time is
estimated: a first small file says little about the others."""

COMMIT_CLIPS = 256
COMMIT_SECONDS = 15.0
"""Clips and seconds between commits, whichever comes first; a crash loses no more work."""
PAUSE_FACTOR = 4.0
"""Minimum pause between commits, in durations of the last one: commits to object storage take long,
and should take at most a fifth of the time."""
MAX_CLIPS = 16 * COMMIT_CLIPS
"""Maximum clips held in memory, even during the pause."""
MAX_KEPT_CLIPS = 2**16
"""Maximum clips of the inspections that a second pass uses again: about 7 MB in long videos, 50 MB
in files of one clip."""


@dataclass(frozen=True)
class CommitResult:
    """Files and clips that one commit made durable and visible."""

    files: Sequence[IndexedFile]
    clips: int


class Commit:
    """Collects clips and files, and writes them to a store together.

    A file is reported as done after its commit. Clips without a finished file remain from an
    interrupted run: the next run reuses them if it meets their content, and removes them otherwise.
    """

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
        """Make everything durable and visible; after an error, all of it is still pending."""
        start = time.monotonic()
        self.writer.commit(Changes(clips=self._clips, files=self._files))
        result = CommitResult(self._files, sum(map(len, self._clips)))
        self._clips, self._files = [], []
        self._last_time = time.monotonic()
        self._last_seconds = self._last_time - start
        return result


class Tally:
    """Counts the outcomes of files, and what has been committed."""

    def __init__(self) -> None:
        self._start = self._pass_start = time.monotonic()
        self._searchable_after: float | None = None
        self._is_completing = False
        self._outcomes: dict[str, Outcome] = {}
        self._problems: dict[str, FileProblem] = {}
        self._damaged: dict[str, FileProblem] = {}
        self._new_files: list[str] = []
        self._seconds = 0.0
        self._images = 0
        self._todo: set[str] = set()
        self._total = self._bytes_total = self._bytes_done = 0
        self._num_done = self._num_skipped = self._clips = 0
        self._hours_done = 0.0
        self._uncommitted: dict[str, FileProgress] = {}
        self._history: deque[tuple[float, int]] = deque()
        self._first_clip = (0.0, 0)

    def begin(self, todo: Sequence[CandidateFile], *, is_completing: bool = False) -> None:
        """Start a pass: set the files to inspect, and reset its counts."""
        self._pass_start = time.monotonic()
        if is_completing:
            self._is_completing, self._searchable_after = True, self._pass_start - self._start
        self._bytes_done = self._num_done = self._num_skipped = self._clips = 0
        self._hours_done = 0.0
        self._uncommitted = {}
        self._history = deque()
        self._todo = {file.path for file in todo}
        self._total, self._bytes_total = len(todo), sum(file.size for file in todo)

    def settle(self, result: FileResult, *, is_known: bool = False) -> None:
        """Count a file, and keep its problem; ``is_known`` if an earlier run found it."""
        file = result.file
        if file.path in self._todo:
            seconds = file.duration if file.status == "done" else 0.0
            self._uncommitted[file.path] = FileProgress(file.size, seconds)
        # A file that is completed after it was encoded in this run counts once.
        if self._outcomes.get(file.path, "unchanged") == "unchanged":
            self._outcomes[file.path] = result.outcome
            if result.outcome in ("encoded", "completed"):
                self._seconds += file.duration
            if result.outcome == "encoded":
                self._new_files.append(file.path)
                self._images += file.duration == 0
        self.forget([file.path])
        if file.reason and result.outcome != "other":
            problems = self._damaged if file.reason.startswith(DAMAGED) else self._problems
            problems[file.path] = FileProblem(file.path, file.reason, is_known)

    @property
    def other_paths(self) -> list[str]:
        """Files that are neither videos nor images."""
        return [path for path, outcome in self._outcomes.items() if outcome == "other"]

    def add_other(self, paths: Iterable[str]) -> None:
        self._outcomes.update(dict.fromkeys(paths, "other"))

    def forget(self, paths: Iterable[str]) -> None:
        """Remove the problems of dropped files."""
        for path in paths:
            self._problems.pop(path, None)
            self._damaged.pop(path, None)

    def commit(
        self, result: CommitResult, unfinished_files: Sequence[FileProgress] = ()
    ) -> IndexProgress:
        """Count what was committed; return the progress to report."""
        self._clips += result.clips
        for file in result.files:
            self._uncommitted.pop(file.path, None)
            if file.path in self._todo:
                self._todo.discard(file.path)
                self._bytes_done += file.size
                self._num_done += file.status == "done"
                self._num_skipped += file.status == "failed"
                self._hours_done += file.duration / 3600 if file.status == "done" else 0.0
        return self.progress(unfinished_files, path=result.files[-1].path if result.files else "")

    def progress(self, unfinished_files: Sequence[FileProgress], path: str = "") -> IndexProgress:
        """Return the progress, including the encoded part of unfinished files."""
        parts = (*self._uncommitted.values(), *unfinished_files)
        seconds = time.monotonic() - self._pass_start
        bytes_done = self._bytes_done + sum(part.size for part in parts)
        return IndexProgress(
            path=path,
            total=self._total,
            num_done=self._num_done,
            num_skipped=self._num_skipped,
            hours=self._hours_done + sum(part.seconds for part in parts) / 3600,
            bytes_total=self._bytes_total,
            bytes_done=bytes_done,
            seconds=seconds,
            clips=self._clips,
            is_completing=self._is_completing,
            seconds_left=self._seconds_left(seconds, bytes_done),
        )

    def _seconds_left(self, seconds: float, bytes_done: int) -> float | None:
        """Estimate the remaining time from the second half of the time since the first clip.

        Workers start before the first clip, which takes half a minute on a busy machine. The first
        files are encoded exactly, which takes longer.
        """
        if bytes_done >= self._bytes_total:
            return 0.0
        if not bytes_done:
            return None
        history = self._history
        if not history:
            self._first_clip = seconds, bytes_done
        history.append((seconds, bytes_done))
        first_seconds, first_bytes = self._first_clip
        while len(history) > 1 and history[1][0] <= (first_seconds + seconds) / 2:
            history.popleft()
        start, bytes_before = history[0]
        is_early = (
            bytes_done - first_bytes < ESTIMATE_FRACTION * self._bytes_total
            and seconds - first_seconds < ESTIMATE_SECONDS
        )
        if is_early or bytes_done <= bytes_before:
            return None
        return (seconds - start) * (self._bytes_total - bytes_done) / (bytes_done - bytes_before)

    def report(
        self,
        *,
        num_dropped: int,
        num_missing: int,
        clips: int,
        unused_tags: tuple[str, ...],
        keyframe_clips: int = 0,
    ) -> IndexReport:
        """Return the report of the run; the arguments describe the store after it."""
        outcomes, seconds = Counter(self._outcomes.values()), time.monotonic() - self._start
        return IndexReport(
            indexed=outcomes["encoded"],
            unchanged=outcomes["unchanged"],
            aliases=outcomes["alias"],
            completed=outcomes["completed"],
            keyframe_clips=keyframe_clips,
            searchable_after=(
                seconds if self._searchable_after is None else self._searchable_after
            ),
            dropped=num_dropped,
            missing=num_missing,
            clips=clips,
            hours=self._seconds / 3600,
            elapsed=seconds,
            problems=tuple(self._problems.values()),
            damaged=tuple(self._damaged.values()),
            other_files=count_suffixes(self.other_paths),
            unused_tags=unused_tags,
            images=self._images,
            new_files=tuple(self._new_files),
        )


class IndexRun:
    """Brings one store up to date with candidate files."""

    def __init__(
        self,
        ledger: Ledger,
        commit: Commit,
        tally: Tally,
        transcripts: TranscriptRun,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.ledger = ledger
        self.commit = commit
        self.tally = tally
        self.transcripts = transcripts
        self.on_progress = on_progress
        self._last_progress = time.monotonic()
        self._inspections: queue.SimpleQueue[Inspection] = queue.SimpleQueue()
        self._kept_inspections: dict[str, Inspection] = {}
        """Inspections of this run by path, for a second pass over the same files."""
        self._num_kept_clips = 0

    def todo(self, files: Iterable[CandidateFile], *, retry: bool = False) -> list[CandidateFile]:
        """Return the files that have to be inspected; settle all others at once."""
        todo = []
        for file in files:
            result = self.ledger.check_unchanged(file, retry=retry)
            if result is not None:
                self._settle([result], is_known=True)
            elif file.problem:
                # It cannot be opened: no reason to load a model.
                self._settle(self.ledger.begin(Inspection(file, problem=file.problem)))
            else:
                todo.append(file)
        self.tally.begin(todo)
        return todo

    def reopen(self, files: Iterable[CandidateFile]) -> list[CandidateFile]:
        """Begin the second pass; return the files whose clips from keyframes it replaces."""
        self.ledger.reopen()
        todo = [file for file in files if self.ledger.is_reopened(file)]
        if todo:
            self.tally.begin(todo, is_completing=True)
        return todo

    def encode(
        self,
        todo: Sequence[CandidateFile],
        executor: Executor,
        exact_seconds: float = math.inf,
    ) -> None:
        """Encode the clips of these files, and commit them as they are ready.

        Beyond ``exact_seconds`` of video, clips are encoded from keyframes.
        """
        self._report_progress(self.tally.progress(()))
        try:
            inspections = self._inspect(todo, executor, frozenset(self.ledger.complete))
            for outcome in executor.encode(self._requests(inspections, exact_seconds)):
                self._begin_inspected()
                self._record(outcome)
                if self.commit.is_due:
                    self._write()
                elif time.monotonic() - self._last_progress >= PROGRESS_SECONDS:
                    self._report_progress(self.tally.progress(self.ledger.progress()))
            self._begin_inspected()
        finally:
            # Also after Ctrl-C, so that the next run skips these clips.
            self.write()

    def read_recordings(self, files: Iterable[CandidateFile], workers: int, limits: Limits) -> None:
        """Read the recording times and places of files that an earlier version indexed."""
        # Reading those of objects would download them; they stay unknown until the object changes.
        local = (file.path for file in files if not is_object_url(file.path))
        paths = self.ledger.without_recording(local)
        roots = self.commit.writer.manifest.roots

        def share(path: str) -> SharedFile:
            return share_stored(self.ledger.files[path], roots)

        for outcome in read_stored_files(recording_of, paths, workers, limits, share):
            # Files that cannot be opened or end their process are tried again by the next run.
            if isinstance(outcome, Failure) or is_missing(outcome.request):
                continue
            recording = recording_values(outcome.result)
            file = replace(self.ledger.files[outcome.request], **recording)
            self.commit.add_file(file)
            self.ledger.record_commit([file])
            if self.commit.is_due:
                self.commit.write()
        self.commit.write()

    def write(self) -> None:
        """Commit everything that is pending."""
        self._write()
        self.transcripts.write()

    def stored_files(self, files: Iterable[CandidateFile]) -> list[IndexedFile]:
        """Return those of the files that are in the store."""
        stored_files = (self.ledger.files.get(file.path) for file in files)
        return [file for file in stored_files if file is not None and file.status == "done"]

    def finish(
        self,
        files: Sequence[CandidateFile],
        roots: Sequence[str | Path],
        options: IndexOptions,
        droppable: Set[str] | None = None,
    ) -> IndexReport:
        """Drop missing files if requested, clean up, and report.

        ``droppable``: the files that may be dropped; None: all.
        """
        missing = self._find_missing(
            roots, options, {file.path for file in files if not file.problem}
        )
        dropped = [path for path in missing if droppable is None or path in droppable]
        dropped = dropped if options.drop_missing else []
        if dropped:
            self.commit.writer.commit(Changes(removed_files=dropped))
            self.ledger.forget(dropped)
            self.tally.forget(dropped)
        for path in self.tally.other_paths:
            logger.info("%s: %s", NO_VIDEO, path)
        clips = self.commit.writer.finish()
        return self.tally.report(
            num_dropped=len(dropped),
            num_missing=len(missing) - len(dropped),
            clips=clips,
            unused_tags=unused_tags([file.path for file in files], self.ledger.tags),
            keyframe_clips=sum(map(len, self.commit.writer.keyframe_clips().values())),
        )

    def _inspect(
        self, files: Sequence[CandidateFile], executor: Executor, known_contents: frozenset[str]
    ) -> Iterator[Inspection]:
        """Yield the inspections that a pass of this run has made, then those of other files.

        An unchanged file is not read again only to learn its content. Decoders refuse it if it
        changes later.
        """
        kept_inspections, self._kept_inspections = self._kept_inspections, {}
        self._num_kept_clips, others = 0, []
        for file in files:
            inspection = kept_inspections.get(file.path)
            if inspection is not None and _is_current(inspection):
                yield inspection
            else:
                others.append(file)
        if others:
            yield from executor.inspect(others, known_contents)

    def _keep(self, inspection: Inspection) -> None:
        """Keep an inspection for a second pass, without what is stored already."""
        num_clips = len(inspection.windows)
        if inspection.version is None or self._num_kept_clips + num_clips > MAX_KEPT_CLIPS:
            return
        self._num_kept_clips += num_clips
        self._kept_inspections[inspection.file.path] = replace(inspection, subtitles=None)

    def _requests(
        self, inspections: Iterable[Inspection], exact_seconds: float
    ) -> Iterator[ClipRequest]:
        """Yield the clips to decode, file by file while earlier ones are being decoded.

        May run in another thread: it changes nothing, and puts inspections into a queue, always
        before the requests that depend on them.
        """
        for item in self.ledger.requests(inspections, exact_seconds):
            if isinstance(item, Inspection):
                self._inspections.put(item)
            else:
                yield item

    def _begin_inspected(self) -> None:
        while not self._inspections.empty():
            inspection = self._inspections.get()
            self._settle(self.ledger.begin(inspection))
            self._keep(inspection)
            if self.ledger.represents(inspection.file.path, inspection.content):
                self.transcripts.add_inspected(inspection)

    def _record(self, outcome: ClipOutcome) -> None:
        if isinstance(outcome, Damage):
            self.ledger.record_damage(outcome)
        elif isinstance(outcome, ClipFailure):
            self._settle(self.ledger.record_failure(outcome))
        else:
            batch = self.ledger.select_pending(outcome)
            self.commit.add_clips(batch)
            self._settle(self.ledger.record_clips(batch))

    def _settle(self, results: Iterable[FileResult], *, is_known: bool = False) -> None:
        for result in results:
            self.tally.settle(result, is_known=is_known)
            if result.is_new:
                self.commit.add_file(result.file)

    def _write(self) -> None:
        """Commit, and only then report."""
        result = self.commit.write()
        if not result.files and not result.clips:
            return
        self.ledger.record_commit(result.files)
        self._report_progress(self.tally.commit(result, self.ledger.progress()))

    def _report_progress(self, progress: IndexProgress) -> None:
        self._last_progress = time.monotonic()
        if self.on_progress is not None:
            self.on_progress(progress)

    def _find_missing(
        self, roots: Sequence[str | Path], options: IndexOptions, present: Set[str]
    ) -> list[str]:
        """Return the files of the store under these roots that are missing, excluded or links out.

        Files in ``present`` are not looked up again: on object storage each is a request.
        """
        local_roots = [Path(root) for root in roots if Path(root).is_dir()]
        exclusions = [Exclusions(root, options.exclude) for root in local_roots]
        folders = real_folders(local_roots)
        locations = {absolute_location(root) for root in roots}

        def is_link_out(path: str) -> bool:
            if options.follow_links or path in locations or is_object_url(path):
                return False
            return leads_out(path, folders)

        unseen_paths = (path for path in self.ledger.files if path not in present)
        return [
            path
            for path in select_inside(unseen_paths, locations)
            if (
                is_missing(path)
                or any(each.covers(path) for each in exclusions)
                or is_link_out(path)
            )
        ]


def _is_current(inspection: Inspection) -> bool:
    """Return whether a file is still the one that was inspected."""
    try:
        return current_version(inspection.file.path) == inspection.version
    except OSError:
        return False
