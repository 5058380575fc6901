"""Counts of a run: what it tells while it works, and its report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from eaglenet.search.indexing.commit import Committed
from eaglenet.search.indexing.files import FoundFile
from eaglenet.search.indexing.ledger import Begun, Settled
from eaglenet.search.indexing.report import DAMAGED, FileProblem, IndexProgress, IndexReport


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
        self._uncommitted: dict[str, Begun] = {}
        """Files that are settled and wait for their commit."""

    def begin(self, todo: Sequence[FoundFile]) -> None:
        """These files have to be looked at."""
        self._todo = {file.path for file in todo}
        self._total, self._bytes_total = len(todo), sum(file.size for file in todo)

    def settle(self, settled: Settled) -> None:
        """Count a file; what is wrong with it is noted."""
        row = settled.row
        self._outcomes[settled.outcome] += 1
        if row.path in self._todo:
            seconds = row.duration if row.status == "done" else 0.0
            self._uncommitted[row.path] = Begun(row.size, seconds)
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

    def commit(self, committed: Committed, begun: Sequence[Begun] = ()) -> IndexProgress:
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

    def progress(self, begun: Sequence[Begun], path: str = "") -> IndexProgress:
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
