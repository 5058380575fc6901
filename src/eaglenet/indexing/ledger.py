"""What is known of each file and content: finished before, begun, hopeless, or new.

The ledger decides and writes nothing: every call that ends a file gives :class:`FileResult` back,
for the commit to store and the tally to count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage, split_request
from eaglenet.indexing.files import CandidateFile, tags_of
from eaglenet.indexing.inspection import Inspection
from eaglenet.indexing.report import DAMAGED
from eaglenet.search.store.publishing import missing_clips
from eaglenet.search.store.tables import ClipKey, ClipRows, ClipStore, FileRow

Outcome = Literal["encoded", "alias", "unchanged", "failed"]


@dataclass(frozen=True)
class FileResult:
    """What became of a file in this run."""

    row: FileRow
    outcome: Outcome
    is_new: bool = True
    """Whether the row has to be stored; not so where it is there, or cannot be kept."""


@dataclass(frozen=True)
class FileProgress:
    """The part of an unfinished file whose clips have been tried in this run."""

    size: int
    """Bytes, as a share of the file by clips."""
    seconds: float
    """Of video."""


@dataclass
class _Work:
    """A file on its way into the store."""

    row: FileRow
    num_clips: int
    asked: int
    """Clips to be encoded in this run; others are left from an interrupted one."""
    waiting: set[int]
    """Numbers of the clips that are neither encoded nor given up."""
    failures: list[str] = field(default_factory=list)
    unreached: str = ""
    """Why the file could not be read for now; its clips are asked for again the next time."""
    is_cut_short: bool = False
    damage: float = 0.0
    """Seconds to the farthest frame that stands in for one that did not decode."""
    others: list[CandidateFile] = field(default_factory=list)
    """The same content, met again meanwhile."""

    @property
    def reason(self) -> str:
        """What is wrong with a file that is in the store; empty where nothing is."""
        if self.failures:
            return f"{len(self.failures)} of {self.num_clips} clips: {self.failures[0]}"
        found = []
        if self.is_cut_short:
            found.append(f"cut short, only the first {self.row.duration:.1f} s are in the file")
        if self.damage:
            found.append(f"frames up to {self.damage:.1f} s away stand in for some that are lost")
        return DAMAGED + "; ".join(found) if found else ""


class Ledger:
    """The files of one store during one run. ``tags``: what a table says of files by name."""

    def __init__(self, tables: ClipStore, tags: Mapping[str, tuple[str, ...]]) -> None:
        self.tags = tags
        self.known = {row.path: row for row in tables.files()}
        """By path, as the tables have it."""
        self.before = {path: row.content for path, row in self.known.items()}
        missing = missing_clips(tables)
        self.whole = {
            row.content: row
            for row in self.known.values()
            if row.status == "done" and row.content not in missing
        }
        """Contents whose clips are all stored."""
        self.stored = _stored(tables)
        """Numbers of the stored clips of each content."""
        self.unfinished = {
            content: self.stored[content] for content in self.stored.keys() - self.whole.keys()
        }
        """Clips that an interrupted run stored of files it did not finish."""
        self.hopeless: dict[str, str] = {}
        """Contents of which no clip could be decoded, and why."""
        self._begun: dict[str, _Work] = {}

    def check_unchanged(self, file: CandidateFile, *, retry: bool) -> FileResult | None:
        """A file that is as it was, with its tags of today; None where there is work to do."""
        row = self.known.get(file.path)
        if row is None or (row.size, row.modified_ns) != (file.size, file.modified_ns):
            return None
        if row.status == "failed":
            return None if retry else FileResult(row, "failed", is_new=False)
        if row.content not in self.whole:
            return None  # Its clips got lost.
        if retry and row.reason and not row.reason.startswith(DAMAGED):
            # Some clips were given up: what is stored of the content stays, the rest is tried.
            del self.whole[row.content]
            self.unfinished[row.content] = self.stored[row.content]
            return None
        tags = tags_of(file.path, self.tags)
        if tags is None or tags == row.tags:
            return FileResult(row, "unchanged", is_new=False)
        return FileResult(dataclasses.replace(row, tags=tags), "unchanged")

    def requests(self, inspected: Iterable[Inspection]) -> Iterator[Inspection | ClipRequest]:
        """Each file, and after it the clips to decode of it; a content is asked for once.

        May run in another thread: changes nothing here.
        """
        known, asked = frozenset(self.whole), set()
        for file in inspected:
            yield file
            content = file.content
            if file.problem or not file.is_video or content in known or content in asked:
                continue
            asked.add(content)
            stored = self.unfinished.get(content, frozenset())
            windows = {n: w for n, w in enumerate(file.windows) if n not in stored}
            yield from split_request(content, file.file.path, windows, file.version, file.duration)

    def begin(self, inspected: Inspection) -> list[FileResult]:
        """Take a file up, or settle it where nothing of it has to be encoded."""
        file, content = inspected.file, inspected.content
        if not inspected.is_video:
            return []
        if inspected.problem:
            settled = _failed(file, content, inspected.problem)
            return [
                dataclasses.replace(settled, is_new=settled.is_new and not inspected.is_temporary)
            ]
        if content in self.whole:
            return [self._alias(file, self.whole[content])]
        if content in self._begun:
            self._begun[content].others.append(file)
            return []
        if content in self.hopeless:
            return [_failed(file, content, self.hopeless[content])]
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
        work = _Work(row, len(numbers), len(waiting), waiting, is_cut_short=inspected.is_cut_short)
        self._begun[content] = work
        return [] if waiting else self._settle(work)

    def wanted(self, rows: ClipRows) -> ClipRows:
        """Of encoded clips those that are waited for: work may be done twice, rows are not."""
        first = {key: place for place, key in reversed(list(enumerate(rows.keys)))}
        places = sorted(place for key, place in first.items() if self._is_waited_for(key))
        return rows if len(places) == len(rows) else rows[places]

    def encoded(self, rows: ClipRows) -> list[FileResult]:
        """Clips of :meth:`wanted` are encoded; gives the files that they complete."""
        return [settled for key in rows.keys for settled in self._tried(key)]

    def failed(self, failure: ClipFailure) -> list[FileResult]:
        """A clip was given up."""
        if not self._is_waited_for(failure.key):
            return []
        work = self._begun[failure.key[0]]
        if failure.is_temporary:
            work.unreached = failure.reason
        work.failures.append(failure.reason)
        return self._tried(failure.key)

    def damaged(self, damage: Damage) -> None:
        """Frames of a content are lost."""
        work = self._begun.get(damage.content)
        if work is not None:
            work.damage = max(work.damage, damage.seconds)

    def begun(self) -> list[FileProgress]:
        """How far the files are that are not finished."""
        return [
            FileProgress(
                size=round(work.row.size * (work.asked - len(work.waiting)) / work.asked),
                seconds=work.row.duration * (work.asked - len(work.waiting)) / work.num_clips,
            )
            for work in self._begun.values()
        ]

    def committed(self, rows: Iterable[FileRow]) -> None:
        """These rows are in the tables now."""
        self.known.update((row.path, row) for row in rows)

    def forget(self, paths: Iterable[str]) -> None:
        """These rows were removed from the tables."""
        for path in paths:
            del self.known[path]

    def homes(self) -> dict[str, str]:
        """The path that stands for each content that a file has: the first by name."""
        home: dict[str, str] = {}
        for row in sorted(self.known.values(), key=lambda row: row.path):
            if row.status == "done":
                home.setdefault(row.content, row.path)
        return home

    def left(self) -> set[str]:
        """Contents whose clips were read from a path that shows something else now."""
        return {
            content
            for path, content in self.before.items()
            if (now := self.known.get(path)) is None or now.content != content
        }

    def _is_waited_for(self, key: ClipKey) -> bool:
        work = self._begun.get(key[0])
        return work is not None and key[1] in work.waiting

    def _tried(self, key: ClipKey) -> list[FileResult]:
        work = self._begun[key[0]]
        work.waiting.discard(key[1])
        return [] if work.waiting else self._settle(work)

    def _settle(self, work: _Work) -> list[FileResult]:
        """All clips of a file have been tried."""
        content = work.row.content
        del self._begun[content]
        good = work.num_clips - len(work.failures)
        first = CandidateFile(work.row.path, work.row.size, work.row.modified_ns)
        if work.unreached:
            # Told and not stored: with a row the next run would take the file for settled.
            told = [_failed(file, content, work.unreached) for file in (first, *work.others)]
            return [dataclasses.replace(settled, is_new=False) for settled in told]
        if not good:
            reason = self.hopeless[content] = work.failures[0]
            return [_failed(file, content, reason) for file in (first, *work.others)]
        row = dataclasses.replace(work.row, num_clips=good, reason=work.reason)
        self.whole[content] = row
        return [FileResult(row, "encoded"), *(self._alias(file, row) for file in work.others)]

    def _alias(self, file: CandidateFile, same: FileRow) -> FileResult:
        """The same content under another path, or an unchanged file with a new date."""
        before = self.known.get(file.path)
        tags = tags_of(file.path, self.tags)
        if tags is None:
            tags = before.tags if before is not None else ()
        row = dataclasses.replace(
            same, path=file.path, size=file.size, modified_ns=file.modified_ns, tags=tags
        )
        is_same = before is not None and before.content == same.content
        return FileResult(row, "unchanged" if is_same else "alias")


def _failed(file: CandidateFile, content: str, reason: str) -> FileResult:
    """A file of which nothing can be stored; what is known of it is kept where that is sound."""
    row = FileRow(file.path, file.size, file.modified_ns, content, "failed", reason)
    # One that could not even be looked at may be a good one; it is tried again the next time.
    return FileResult(row, "failed", is_new=bool(file.modified_ns) and _is_text(file.path))


def _is_text(path: str) -> bool:
    """Whether a name can be stored."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _stored(tables: ClipStore) -> dict[str, frozenset[int]]:
    numbers: dict[str, set[int]] = {}
    for content, number in tables.clip_keys():
        numbers.setdefault(content, set()).add(number)
    return {content: frozenset(found) for content, found in numbers.items()}
