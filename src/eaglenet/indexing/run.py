"""One run over the files of a store: the ledger decides, an executor works, the commit stores."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from eaglenet.core.hardware import AUTO
from eaglenet.core.object_storage import absolute_location
from eaglenet.indexing.commit import Commit, CommitResult
from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage
from eaglenet.indexing.executor import ClipOutcome, ClusterOptions, Executor
from eaglenet.indexing.fetching import is_missing
from eaglenet.indexing.files import Exclusions, CandidateFile, unused_tags
from eaglenet.indexing.inspection import Inspection
from eaglenet.indexing.ledger import FileProgress, Ledger, FileResult
from eaglenet.indexing.report import DAMAGED, FileProblem, IndexProgress, IndexReport, OnProgress
from eaglenet.indexing.transcripts import TranscriptRun
from eaglenet.search.shortlist import is_exact
from eaglenet.search.store.manifest import Splitting
from eaglenet.search.store.tables import FileRow
from eaglenet.video.limits import Limits

# Counts of a run: what it tells while it works, and its report.


class Tally:
    """Counts files as they are settled, and what of them is safely stored."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._outcomes: Counter[str] = Counter()
        self._problems: dict[str, str] = {}
        self._damaged: dict[str, str] = {}
        self._seconds = 0.0
        self._pictures = 0
        self._todo: set[str] = set()
        self._total = self._bytes_total = self._bytes_done = 0
        self._done = self._skipped = self._clips = 0
        self._hours_done = 0.0
        self._uncommitted: dict[str, FileProgress] = {}
        """Files that are settled and wait for their commit."""

    def begin(self, todo: Sequence[CandidateFile]) -> None:
        """These files have to be looked at."""
        self._todo = {file.path for file in todo}
        self._total, self._bytes_total = len(todo), sum(file.size for file in todo)

    def settle(self, settled: FileResult) -> None:
        """Count a file; what is wrong with it is noted."""
        row = settled.row
        self._outcomes[settled.outcome] += 1
        if row.path in self._todo:
            seconds = row.duration if row.status == "done" else 0.0
            self._uncommitted[row.path] = FileProgress(row.size, seconds)
        if settled.outcome == "encoded":
            self._seconds += row.duration
            self._pictures += row.duration == 0
        if settled.outcome == "failed":
            self._problems[row.path] = row.reason
        elif row.reason:
            notes = self._damaged if row.reason.startswith(DAMAGED) else self._problems
            notes[row.path] = row.reason

    def forget(self, paths: Iterable[str]) -> None:
        """These files were dropped."""
        for path in paths:
            self._problems.pop(path, None)
            self._damaged.pop(path, None)

    def commit(self, committed: CommitResult, begun: Sequence[FileProgress] = ()) -> IndexProgress:
        """Count what is safely stored; gives what there is to tell."""
        self._clips += committed.clips
        for row in committed.rows:
            self._uncommitted.pop(row.path, None)
            if row.path in self._todo:
                self._todo.discard(row.path)
                self._bytes_done += row.size
                self._done += row.status == "done"
                self._skipped += row.status == "failed"
                self._hours_done += row.duration / 3600 if row.status == "done" else 0.0
        return self.progress(begun, path=committed.rows[-1].path if committed.rows else "")

    def progress(self, begun: Sequence[FileProgress], path: str = "") -> IndexProgress:
        """How far the run is now; ``begun``: the parts of files that are not finished."""
        parts = (*self._uncommitted.values(), *begun)
        return IndexProgress(
            path=path,
            total=self._total,
            done=self._done,
            skipped=self._skipped,
            hours=self._hours_done + sum(part.seconds for part in parts) / 3600,
            bytes_total=self._bytes_total,
            bytes_done=self._bytes_done + sum(part.size for part in parts),
            elapsed=time.monotonic() - self._started,
            clips=self._clips,
        )

    def report(
        self, *, dropped: int, missing: int, clips: int, index: str, unused_tags: tuple[str, ...]
    ) -> IndexReport:
        """What the run did; the arguments are what the store holds in the end."""
        return IndexReport(
            indexed=self._outcomes["encoded"],
            unchanged=self._outcomes["unchanged"],
            aliases=self._outcomes["alias"],
            dropped=dropped,
            missing=missing,
            clips=clips,
            hours=self._seconds / 3600,
            elapsed=time.monotonic() - self._started,
            problems=tuple(FileProblem(path, reason) for path, reason in self._problems.items()),
            damaged=tuple(FileProblem(path, reason) for path, reason in self._damaged.items()),
            index=index,
            unused_tags=unused_tags,
            pictures=self._pictures,
        )


TOLD_SECONDS = 1.0
"""Between two words on a long file, whose clips are committed less often."""


@dataclass(frozen=True)
class IndexOptions:
    """How to index. ``workers`` None: chosen by the amount of work."""

    splitting: Splitting = field(default_factory=Splitting)
    fast: bool = False
    drop_missing: bool = False
    exclude: tuple[str, ...] = ()
    """Patterns, as of git, of files and folders to leave out."""
    retry: bool = False
    """Try files again that failed before and have not changed."""
    prepare: bool = False
    """For a new store: keep what the exact scorer computes of a clip alone. Six times the disk
    for an EagleNet; re-ranking takes half the time on a CPU."""
    workers: int | None = None
    device: str = AUTO
    """``auto``: a GPU where there is one; a model that is handed over stays where it is."""
    precision: str = AUTO
    """``fp32``, ``bf16``, ``int8``, or ``auto``: what the machine is fast in (`precision`)."""
    limits: Limits = field(default_factory=Limits)
    """What one file may cost."""
    executor: str = "local"
    """Who works: a name in ``EXECUTORS``."""
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    """For an executor of many machines."""
    subtitles: bool = True
    """Index subtitles inside and beside the files."""
    read_text: bool = False
    """Index text in frames; needs ``eaglenet[ocr]``."""
    listen: str | None = None
    """Index speech with this model of faster-whisper; needs ``eaglenet[speech]``."""
    transcripts_from: str | None = None
    """Another store: what was heard and read in the same files is taken from there."""
    hubness: str | Sequence[str] | None = None
    """Sentences that level clips which answer everything: see ``search.hubness.Choice``."""


class IndexRun:
    """Brings one store up to date with files that were found."""

    def __init__(
        self,
        ledger: Ledger,
        commit: Commit,
        tally: Tally,
        words: TranscriptRun,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.ledger = ledger
        self.commit = commit
        self.tally = tally
        self.on_progress = on_progress
        self.words = words
        self._told = time.monotonic()
        self._inspected: queue.SimpleQueue[Inspection] = queue.SimpleQueue()

    def todo(self, found: Iterable[CandidateFile], *, retry: bool = False) -> list[CandidateFile]:
        """The files that have to be looked at; all others are settled at once."""
        todo = []
        for file in found:
            settled = self.ledger.check_unchanged(file, retry=retry)
            if settled is None:
                todo.append(file)
            else:
                self._settle([settled])
        self.tally.begin(todo)
        return todo

    def encode(self, todo: Sequence[CandidateFile], executor: Executor) -> None:
        """Have the clips of these files encoded, and commit now and then."""
        if todo:
            self._tell(self.tally.progress(()))
        try:
            inspected = executor.inspect(todo, frozenset(self.ledger.whole))
            for outcome in executor.encode(self._requests(inspected)) if todo else ():
                self._begin_inspected()
                self._take(outcome)
                if self.commit.is_due:
                    self._write()
                elif time.monotonic() - self._told >= TOLD_SECONDS:
                    self._tell(self.tally.progress(self.ledger.begun()))
            self._begin_inspected()
        finally:
            # Also when interrupted: what is encoded is kept, which a next run then skips.
            self._write()
            self.words.write()

    def done(self, found: Iterable[CandidateFile]) -> list[FileRow]:
        """The rows of those of these files that are in the store."""
        rows = (self.ledger.known.get(file.path) for file in found)
        return [row for row in rows if row is not None and row.status == "done"]

    def finish(
        self,
        found: Sequence[CandidateFile],
        roots: Sequence[str | Path],
        *,
        drop_missing: bool = False,
        exclude: Sequence[str] = (),
    ) -> IndexReport:
        """Drop what is gone, clean up, and say what was done."""
        gone = self._gone(roots, exclude, {file.path for file in found if not file.problem})
        if drop_missing and gone:
            self.commit.tables.remove_files(gone)
            self.ledger.forget(gone)
            self.tally.forget(gone)
        homes = self.ledger.homes()
        self.words.clean_up(homes.keys())
        clips = self.commit.clean_up(homes, self.ledger.left())
        return self.tally.report(
            dropped=len(gone) if drop_missing else 0,
            missing=0 if drop_missing else len(gone),
            clips=clips,
            index="exact scan" if is_exact(clips, self.commit.store.manifest.dim) else "codes",
            unused_tags=unused_tags([file.path for file in found], self.ledger.tags),
        )

    def _requests(self, inspected: Iterable[Inspection]) -> Iterator[ClipRequest]:
        """Clips to decode, found file by file while earlier ones are being decoded.

        May run in another thread: it changes nothing, but leaves what was inspected in a queue,
        always before the requests that depend on it.
        """
        for item in self.ledger.requests(inspected):
            if isinstance(item, Inspection):
                self._inspected.put(item)
            else:
                yield item

    def _begin_inspected(self) -> None:
        while not self._inspected.empty():
            item = self._inspected.get()
            self._settle(self.ledger.begin(item))
            self.words.inspected(item)

    def _take(self, outcome: ClipOutcome) -> None:
        """Note encoded clips, that one was given up, or that frames are lost."""
        if isinstance(outcome, Damage):
            self.ledger.damaged(outcome)
        elif isinstance(outcome, ClipFailure):
            self._settle(self.ledger.failed(outcome))
        else:
            rows = self.ledger.wanted(outcome)
            self.commit.add_clips(rows)
            self._settle(self.ledger.encoded(rows))

    def _settle(self, files: Iterable[FileResult]) -> None:
        for settled in files:
            self.tally.settle(settled)
            if settled.is_new:
                self.commit.add_row(settled.row)

    def _write(self) -> None:
        """Commit, and only then report."""
        committed = self.commit.write()
        if not committed.rows and not committed.clips:
            return
        self.ledger.committed(committed.rows)
        self._tell(self.tally.commit(committed, self.ledger.begun()))

    def _tell(self, progress: IndexProgress) -> None:
        self._told = time.monotonic()
        if self.on_progress is not None:
            self.on_progress(progress)

    def _gone(
        self, roots: Sequence[str | Path], exclude: Sequence[str], found: Set[str]
    ) -> list[str]:
        """Files of the store under these paths that are there no more, or excluded by now.

        One that this run has found is not looked for again: on object storage each is a request.
        """
        folders = [Exclusions(Path(root), exclude) for root in roots if Path(root).is_dir()]
        tops = [absolute_location(root) for root in roots]
        return [
            path
            for path in self.ledger.known
            if any(path == top or path.startswith(top.rstrip("/") + "/") for top in tops)
            and path not in found
            and (is_missing(path) or any(excluded.covers(path) for excluded in folders))
        ]
