"""One run over the files of a store: what is begun, encoded, finished, failed, and committed.

Order of a commit: clips, then the rows of the files they complete, then the snapshot. A file is
reported as done after all three. Clips without a finished file are left from a run that was
interrupted: they are taken up again if their content is met, and removed otherwise.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eaglenet.methods.base import Method
from eaglenet.search.indexing.decoding import ClipFailure, ClipRequest, Damage, split_request
from eaglenet.search.indexing.encoding import ClipEncoding
from eaglenet.search.indexing.files import FoundFile, is_gone, tags_of, unused_tags
from eaglenet.search.indexing.inspection import Inspected, inspect_ahead
from eaglenet.search.indexing.report import DAMAGED, IndexReport, OnProgress, Problem, Progress
from eaglenet.search.shortlist import is_exact
from eaglenet.search.store.base import Store
from eaglenet.search.store.manifest import Splitting
from eaglenet.search.store.publishing import missing_clips
from eaglenet.search.store.tables import ClipRows, ClipStore, FileRow

logger = logging.getLogger(__name__)

COMMIT_CLIPS = 256
COMMIT_SECONDS = 15.0
"""Work that a crash may cost is bounded by whichever of the two comes first."""


@dataclass(frozen=True)
class IndexOptions:
    """How to index. ``workers`` None: chosen by the amount of work."""

    splitting: Splitting = field(default_factory=Splitting)
    fast: bool = False
    drop_missing: bool = False
    retry: bool = False
    """Try files again that failed before and have not changed."""
    prepare: bool = False
    """For a new store: keep what the exact scorer computes of a clip alone. Six times the disk
    for an EagleNet; re-ranking takes half the time on a CPU."""
    workers: int | None = None
    device: str | None = None


@dataclass
class _Work:
    """A file on its way into the store."""

    row: FileRow
    num_clips: int
    waiting: set[int]
    """Numbers of the clips that are neither encoded nor given up."""
    failures: list[str] = field(default_factory=list)
    is_cut_short: bool = False
    damage: float = 0.0
    """Seconds to the farthest frame that stands in for one that did not decode."""
    others: list[FoundFile] = field(default_factory=list)
    """The same content, met again meanwhile."""


def _reason(work: _Work) -> str:
    """What is wrong with a file that is in the store; empty where nothing is."""
    if work.failures:
        return f"{len(work.failures)} of {work.num_clips} clips: {work.failures[0]}"
    found = []
    if work.is_cut_short:
        found.append(f"cut short, only the first {work.row.duration:.1f} s are in the file")
    if work.damage:
        found.append(f"frames up to {work.damage:.1f} s away stand in for some that are lost")
    return DAMAGED + "; ".join(found) if found else ""


def _unfinished(tables: ClipStore, finished: Container[str]) -> dict[str, frozenset[int]]:
    """Clips that an interrupted run stored of files it did not finish."""
    numbers: dict[str, set[int]] = {}
    for content, number in tables.clip_keys():
        if content not in finished:
            numbers.setdefault(content, set()).add(number)
    return {content: frozenset(found) for content, found in numbers.items()}


class IndexRun:
    """Brings one store, held for writing, up to date."""

    def __init__(
        self,
        store: Store,
        tables: ClipStore,
        method: Method,
        options: IndexOptions,
        tags: Mapping[str, tuple[str, ...]],
        on_progress: OnProgress | None,
    ) -> None:
        self.manifest = store.manifest
        self.store = store
        self.tables = tables
        self.method = method
        self.options = options
        self.tags = tags
        self.on_progress = on_progress
        self.started = self.committed = time.monotonic()
        self.known = {row.path: row for row in tables.files()}
        self.before = {path: row.content for path, row in self.known.items()}
        missing = missing_clips(tables)
        self.of_content = {
            row.content: row
            for row in self.known.values()
            if row.status == "done" and row.content not in missing
        }
        self.unfinished = _unfinished(tables, self.of_content)
        self.planned: queue.SimpleQueue[Inspected] = queue.SimpleQueue()
        self.hopeless: dict[str, str] = {}
        """Contents of which no clip could be decoded, and why."""
        self.work: dict[str, _Work] = {}
        self.finished: list[FileRow] = []
        self.encoded: list[ClipRows] = []
        self.problems: dict[str, str] = {}
        self.damaged: dict[str, str] = {}
        self.todo: set[str] = set()
        self.indexed = self.unchanged = self.aliases = self.done = self.skipped = 0
        self.clips = 0
        self.seconds = self.hours_done = 0.0
        self.total = self.bytes_total = self.bytes_done = 0

    def bring_up_to_date(self, found: list[FoundFile], roots: list[Path]) -> IndexReport:
        todo = [file for file in found if not self._is_settled(file)]
        self.todo = {file.path for file in todo}
        self.total, self.bytes_total = len(todo), sum(file.size for file in todo)
        encoding = ClipEncoding(self.method, self.manifest, self._workers(todo))
        try:
            for result in encoding.run(self._requests(todo)) if todo else ():
                self._take_plans()
                self._take(result)
                if self._is_due():
                    self._commit()
            self._take_plans()
        finally:
            # Also when interrupted: what is encoded is kept, which a next run then skips.
            self._commit()
        dropped, missing = self._handle_missing(roots)
        clips = self._clean_up()
        index = self._choose_index(clips)
        return IndexReport(
            indexed=self.indexed,
            unchanged=self.unchanged,
            aliases=self.aliases,
            dropped=dropped,
            missing=missing,
            clips=clips,
            hours=self.seconds / 3600,
            elapsed=time.monotonic() - self.started,
            problems=tuple(Problem(path, reason) for path, reason in self.problems.items()),
            damaged=tuple(Problem(path, reason) for path, reason in self.damaged.items()),
            index=index,
            unused_tags=unused_tags([file.path for file in found], self.tags),
        )

    def _workers(self, todo: list[FoundFile]) -> int:
        """Starting processes takes seconds; a few short files are done by then."""
        cores = os.cpu_count() or 1
        if self.options.workers is not None:
            # A long film keeps every core busy, but more workers need more files.
            return min(max(0, self.options.workers), max(cores, len(todo)))
        if sum(file.size for file in todo) < 32 * 2**20 and len(todo) < 64:
            return 0
        return min(8, cores)

    def _is_settled(self, file: FoundFile) -> bool:
        """Whether a file is as it was; its tags may still have changed."""
        row = self.known.get(file.path)
        if row is None or (row.size, row.modified_ns) != (file.size, file.modified_ns):
            return False
        if row.status == "failed":
            if self.options.retry:
                return False
            self.problems[file.path] = row.reason
            return True
        if row.content not in self.of_content:
            return False  # Its clips got lost.
        tags = tags_of(file.path, self.tags)
        if tags is not None and tags != row.tags:
            self.finished.append(dataclasses.replace(row, tags=tags))
        self._note(row)
        self.unchanged += 1
        return True

    def _note(self, row: FileRow) -> None:
        """Remember what is wrong with a file that is in the store."""
        if row.reason:
            notes = self.damaged if row.reason.startswith(DAMAGED) else self.problems
            notes[row.path] = row.reason

    def _requests(self, todo: list[FoundFile]) -> Iterator[ClipRequest]:
        """Clips to decode, found file by file while earlier ones are being decoded.

        May run in another thread: it changes nothing here, but leaves what it found in
        ``planned``, always before the requests that depend on it.
        """
        known, begun = frozenset(self.of_content), set()
        for inspected in inspect_ahead(todo, self.options.splitting, known.__contains__):
            content = inspected.content
            self.planned.put(inspected)
            if inspected.problem or content in known or content in begun:
                continue
            begun.add(content)
            stored = self.unfinished.get(content, frozenset())
            windows = {n: w for n, w in enumerate(inspected.windows) if n not in stored}
            yield from split_request(content, inspected.file.path, windows)

    def _take_plans(self) -> None:
        while not self.planned.empty():
            inspected = self.planned.get()
            file, content = inspected.file, inspected.content
            if inspected.problem:
                self._fail(file, content, inspected.problem)
            elif content in self.of_content:
                self._finish_alias(file, self.of_content[content])
            elif content in self.work:
                self.work[content].others.append(file)
            elif content in self.hopeless:
                self._fail(file, content, self.hopeless[content])
            else:
                self._begin(inspected)

    def _begin(self, inspected: Inspected) -> None:
        file, content = inspected.file, inspected.content
        row = FileRow(
            path=file.path,
            size=file.size,
            modified_ns=file.modified_ns,
            content=content,
            status="done",
            duration=inspected.duration,
            width=inspected.width,
            height=inspected.height,
            tags=tags_of(file.path, self.tags) or (),
        )
        numbers = range(len(inspected.windows))
        waiting = set(numbers) - self.unfinished.get(content, frozenset())
        work = _Work(row, len(numbers), waiting, is_cut_short=inspected.is_cut_short)
        self.work[content] = work
        if not waiting:
            self._settle(work)

    def _take(self, result: ClipRows | ClipFailure | Damage) -> None:
        """Note encoded clips, that one could not be had, or that frames are lost."""
        if isinstance(result, Damage):
            work = self.work[result.content]
            work.damage = max(work.damage, result.seconds)
            return
        keys = result.keys if isinstance(result, ClipRows) else [result.key]
        if isinstance(result, ClipRows):
            self.encoded.append(result)
        for content, number in keys:
            work = self.work[content]
            work.waiting.discard(number)
            if isinstance(result, ClipFailure):
                work.failures.append(result.reason)
            if not work.waiting:
                self._settle(work)

    def _settle(self, work: _Work) -> None:
        """All clips of a file have been tried."""
        del self.work[work.row.content]
        good = work.num_clips - len(work.failures)
        if not good:
            file = FoundFile(work.row.path, work.row.size, work.row.modified_ns)
            self.hopeless[work.row.content] = work.failures[0]
            for each in (file, *work.others):
                self._fail(each, work.row.content, work.failures[0])
            return
        row = dataclasses.replace(work.row, num_clips=good, reason=_reason(work))
        self.of_content[row.content] = row
        self._finish(row)
        self.indexed += 1
        self.seconds += row.duration
        for file in work.others:
            self._finish_alias(file, row)

    def _finish_alias(self, file: FoundFile, same: FileRow) -> None:
        """The same content under another path, or an unchanged file with a new date."""
        before = self.known.get(file.path)
        tags = tags_of(file.path, self.tags)
        if tags is None:
            tags = before.tags if before is not None else ()
        self._finish(
            dataclasses.replace(
                same, path=file.path, size=file.size, modified_ns=file.modified_ns, tags=tags
            )
        )
        if before is not None and before.content == same.content:
            self.unchanged += 1
        else:
            self.aliases += 1

    def _finish(self, row: FileRow) -> None:
        self.finished.append(row)
        self._note(row)

    def _fail(self, file: FoundFile, content: str, reason: str) -> None:
        self.problems[file.path] = reason
        try:
            file.path.encode("utf-8")
        except UnicodeEncodeError:
            return  # Such a name cannot be stored; the file is looked at anew each time.
        if not file.modified_ns:
            return  # It could not even be looked at, which says nothing about what is in it.
        self.finished.append(
            FileRow(file.path, file.size, file.modified_ns, content, "failed", reason)
        )

    def _is_due(self) -> bool:
        waiting = sum(map(len, self.encoded))
        return waiting >= COMMIT_CLIPS or time.monotonic() - self.committed >= COMMIT_SECONDS

    def _commit(self) -> None:
        """Make what is finished durable and visible, and only then report it."""
        rows, clips = self.finished, sum(map(len, self.encoded))
        if self.encoded:
            self.tables.add_clips(ClipRows.concatenate(self.encoded))
            self.encoded = []
        if rows:
            self.tables.put_files(rows)
            self.store.publish(self.tables)
            self.finished = []
        if rows or clips:
            self.clips += clips
            self._report(rows)
        self.committed = time.monotonic()

    def _report(self, rows: Sequence[FileRow]) -> None:
        for row in rows:
            self.known[row.path] = row
            if row.path in self.todo:
                self.todo.discard(row.path)
                self.bytes_done += row.size
                self.done += row.status == "done"
                self.skipped += row.status == "failed"
                self.hours_done += row.duration / 3600 if row.status == "done" else 0.0
        if self.on_progress is not None:
            self.on_progress(
                Progress(
                    path=rows[-1].path if rows else "",
                    total=self.total,
                    done=self.done,
                    skipped=self.skipped,
                    hours=self.hours_done,
                    bytes_total=self.bytes_total,
                    bytes_done=self.bytes_done,
                    elapsed=time.monotonic() - self.started,
                    clips=self.clips,
                )
            )

    def _handle_missing(self, roots: list[Path]) -> tuple[int, int]:
        """Files of the store under the given paths that are gone: dropped if asked to."""
        tops = [os.path.abspath(root) for root in roots]
        missing = [
            path
            for path in self.known
            if any(path == top or path.startswith(top.rstrip("/") + "/") for top in tops)
            and is_gone(path)
        ]
        if not self.options.drop_missing:
            return 0, len(missing)
        if missing:
            self.tables.remove_files(missing)
            for path in missing:
                del self.known[path]
                self.problems.pop(path, None)
                self.damaged.pop(path, None)
        return len(missing), 0

    def _clean_up(self) -> int:
        """Remove clips that no file has any more; returns how many clips are left."""
        home: dict[str, str] = {}
        for row in sorted(self.known.values(), key=lambda row: row.path):
            if row.status == "done":
                home.setdefault(row.content, row.path)
        unused = {content for content, _ in self.tables.clip_keys()} - set(home)
        if unused:
            self.tables.remove_contents(sorted(unused))
        for path, content in self.before.items():
            now = self.known.get(path)
            if content in home and (now is None or now.content != content):
                # The path the clips were read from shows something else now; a copy stays.
                self.tables.set_path(content, home[content])
        self.tables.optimize()
        return self.store.publish(self.tables)

    def _choose_index(self, clips: int) -> str:
        if is_exact(clips, self.manifest.dim):
            return "exact scan"
        logger.info("%d clips are too many to scan: building an approximate index", clips)
        kind = self.tables.build_index()
        self.store.publish(self.tables)
        return kind
