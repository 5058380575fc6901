"""State of every file and content during a run: stored, pending, undecodable or new.

The ledger makes decisions but writes nothing: every call that settles a file returns a
:class:`FileResult`, which is committed and counted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eaglenet.core.untrusted import is_utf8
from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage, split_request
from eaglenet.indexing.files import CandidateFile, tags_of
from eaglenet.indexing.inspection import Inspection
from eaglenet.indexing.report import DAMAGED, NO_VIDEO
from eaglenet.store.base import Writer
from eaglenet.store.records import ClipBatch, ClipKey, IndexedFile
from eaglenet.video.images import needs_installed_extra
from eaglenet.video.recording import Recording

Outcome = Literal["encoded", "completed", "alias", "unchanged", "failed", "other"]
"""``completed``: clips from keyframes were replaced by exact ones;
``other``: neither a video nor an image."""
FROM_KEYFRAMES = "from keyframes only"
"""Part of the reason for a file whose exact frames do not decode."""


@dataclass(frozen=True)
class FileResult:
    """A file and its outcome in this run."""

    file: IndexedFile
    outcome: Outcome
    is_new: bool = True
    """True if the file is to be stored; False if it is stored already, or cannot be."""


@dataclass(frozen=True)
class FileProgress:
    """Encoded part of an unfinished file: bytes in proportion to its clips, seconds of video."""

    size: int
    seconds: float


@dataclass
class _PendingFile:
    """A file whose clips are being encoded."""

    file: IndexedFile
    num_clips: int
    num_requested: int
    """Clips to encode in this run; an interrupted run stored the others."""
    open_clips: set[int]
    """Numbers of the clips that are neither encoded nor failed."""
    failures: dict[int, str] = field(default_factory=dict)
    """Reasons by number of the clip."""
    temporary_failure: str = ""
    """Reason why the file cannot be read now; the next run tries its clips again."""
    is_cut_short: bool = False
    damage: float = 0.0
    """Seconds to the farthest frame that replaces one that did not decode."""
    copies: list[CandidateFile] = field(default_factory=list)
    """Files with the same content, found while this one is pending."""
    from_keyframes: frozenset[int] = frozenset()
    """Numbers of stored clips from keyframes; they stay where exact frames do not decode."""

    @property
    def lost_reasons(self) -> list[str]:
        """Reasons of the clips that are not in the store."""
        failures = self.failures.items()
        return [reason for number, reason in failures if number not in self.from_keyframes]

    @property
    def reason(self) -> str:
        """Problem of a file that is in the store; empty if there is none."""
        lost_reasons, total = self.lost_reasons, self.num_clips
        reasons = (
            [f"{len(lost_reasons)} of {total} clips: {lost_reasons[0]}"] if lost_reasons else []
        )
        failures = self.failures.items()
        inexact = [reason for number, reason in failures if number in self.from_keyframes]
        if inexact:
            reasons.append(f"{len(inexact)} of {total} clips {FROM_KEYFRAMES}: {inexact[0]}")
        if reasons:
            return "; ".join(reasons)
        if self.is_cut_short:
            reasons.append(f"cut short, only the first {self.file.duration:.1f} s are in the file")
        if self.damage:
            reasons.append(f"unreadable frames replaced by others up to {self.damage:.1f} s away")
        return DAMAGED + "; ".join(reasons) if reasons else ""

    @property
    def progress(self) -> FileProgress:
        num_tried = self.num_requested - len(self.open_clips)
        return FileProgress(
            size=round(self.file.size * num_tried / self.num_requested),
            seconds=self.file.duration * num_tried / self.num_clips,
        )


class Ledger:
    """State of the files of one store during one run.

    ``tags``: tags of the tags table, by path or bare name.
    """

    def __init__(self, writer: Writer, tags: Mapping[str, tuple[str, ...]]) -> None:
        self.tags = tags
        self.files = {file.path: file for file in writer.files()}
        """Files of the store by path."""
        self.partial = dict(writer.incomplete_contents())
        """Numbers of the stored clips of contents that lack some."""
        self.complete = {
            file.content: file
            for file in self.files.values()
            if file.status == "done" and file.content not in self.partial
        }
        """Contents whose clips are all stored."""
        self._clip_numbers = writer.clip_numbers
        self._keyframe_clips = writer.keyframe_clips
        self.reopened: dict[str, frozenset[int]] = {}
        """Contents to complete, and the numbers of their clips from keyframes."""
        self.undecodable: dict[str, str] = {}
        """Contents without a single decodable clip, and the reason."""
        self._pending_files: dict[str, _PendingFile] = {}

    def check_unchanged(self, file: CandidateFile, *, retry: bool) -> FileResult | None:
        """Settle a file that has not changed, with its current tags; None if there is work."""
        stored_file = self.files.get(file.path)
        if stored_file is None or (stored_file.size, stored_file.modified_ns) != (
            file.size,
            file.modified_ns,
        ):
            return None
        if stored_file.status == "failed":
            outcome: Outcome = "other" if stored_file.reason == NO_VIDEO else "failed"
            retry = retry or needs_installed_extra(stored_file.reason)
            return None if retry else FileResult(stored_file, outcome, is_new=False)
        if stored_file.content not in self.complete:
            return None  # Its clips were lost.
        if retry and stored_file.reason and not stored_file.reason.startswith(DAMAGED):
            # Some clips failed: the stored ones stay, the others are tried again.
            del self.complete[stored_file.content]
            self.partial[stored_file.content] = self._clip_numbers(stored_file.content)
            return None
        tags = tags_of(file.path, self.tags)
        if tags is None or tags == stored_file.tags:
            return FileResult(stored_file, "unchanged", is_new=False)
        return FileResult(dataclasses.replace(stored_file, tags=tags), "unchanged")

    def without_recording(self, paths: Iterable[str]) -> list[str]:
        """Return the files that were stored before recording times were read."""
        stored_files = (self.files.get(path) for path in paths)
        return [
            file.path
            for file in stored_files
            if file is not None and file.status == "done" and file.camera is None
        ]

    def reopen(self) -> None:
        """Mark contents with clips from keyframes as incomplete; their exact clips stay.

        Files whose exact frames did not decode are left as they are.
        """
        for content, numbers in self._keyframe_clips().items():
            file = self.complete.get(content)
            if file is None or FROM_KEYFRAMES in file.reason:
                continue
            del self.complete[content]
            self.partial[content] = self._clip_numbers(content) - numbers
            self.reopened[content] = numbers

    def is_reopened(self, file: CandidateFile) -> bool:
        """Return whether the clips of an unchanged file have to be completed."""
        stored_file = self.files.get(file.path)
        return (
            stored_file is not None
            and stored_file.status == "done"
            and stored_file.content in self.reopened
            and (stored_file.size, stored_file.modified_ns) == (file.size, file.modified_ns)
        )

    def requests(
        self, inspections: Iterable[Inspection], exact_seconds: float = math.inf
    ) -> Iterator[Inspection | ClipRequest]:
        """Yield each file, followed by its clips to decode; each content once.

        Beyond ``exact_seconds`` of video, keyframes are requested. May run in another thread: it
        changes nothing here.
        """
        complete, requested_contents = frozenset(self.complete), set()
        seconds = 0.0
        for file in inspections:
            yield file
            content = file.content
            if (
                file.problem
                or not file.is_video
                or content in complete
                or content in requested_contents
            ):
                continue
            requested_contents.add(content)
            seconds += file.duration
            uses_keyframes = seconds > exact_seconds
            stored_numbers = self.partial.get(content, frozenset())
            windows = {n: w for n, w in enumerate(file.windows) if n not in stored_numbers}
            yield from split_request(
                content, file.file.path, windows, file.version, file.duration, uses_keyframes
            )

    def begin(self, inspection: Inspection) -> list[FileResult]:
        """Add a file as pending, or settle it if none of its clips have to be encoded."""
        file, content = inspection.file, inspection.content
        if not inspection.is_video:
            # Stored, so that the next run knows it without decoding.
            result = _failed_result(file, content, NO_VIDEO)
            return [dataclasses.replace(result, outcome="other")]
        if inspection.problem:
            result = _failed_result(file, content, inspection.problem)
            is_new = result.is_new and not inspection.is_temporary
            return [dataclasses.replace(result, is_new=is_new)]
        if content in self.complete:
            existing = self.complete[content]
            if existing.camera is None:
                existing = dataclasses.replace(existing, **recording_values(inspection.recording))
            return [self._alias(file, existing)]
        if content in self._pending_files:
            self._pending_files[content].copies.append(file)
            return []
        if content in self.undecodable:
            return [_failed_result(file, content, self.undecodable[content])]
        indexed_file = IndexedFile(
            path=file.path,
            size=file.size,
            modified_ns=file.modified_ns,
            content=content,
            status="done",
            duration=inspection.duration,
            width=inspection.width,
            height=inspection.height,
            tags=tags_of(file.path, self.tags) or (),
            **recording_values(inspection.recording),
        )
        numbers = range(len(inspection.windows))
        open_clips = set(numbers) - self.partial.get(content, frozenset())
        self._pending_files[content] = pending_file = _PendingFile(
            indexed_file,
            len(numbers),
            len(open_clips),
            open_clips,
            is_cut_short=inspection.is_cut_short,
            from_keyframes=self.reopened.get(content, frozenset()),
        )
        return [] if open_clips else self._settle(pending_file)

    def represents(self, path: str, content: str) -> bool:
        """Return whether the clips and the transcript of a content are those of this file.

        Files with the same content are copies of it.
        """
        pending_file = self._pending_files.get(content)
        file = self.complete.get(content) if pending_file is None else pending_file.file
        return file is not None and file.path == path

    def select_pending(self, batch: ClipBatch) -> ClipBatch:
        """Select the encoded clips that are still pending; work may be done twice."""
        first = {key: index for index, key in reversed(list(enumerate(batch.keys)))}
        indices = sorted(index for key, index in first.items() if self._is_open(key))
        return batch if len(indices) == len(batch) else batch[indices]

    def record_clips(self, batch: ClipBatch) -> list[FileResult]:
        """Record clips of :meth:`select_pending`; return the files that they complete."""
        return [result for key in batch.keys for result in self._record(key)]

    def record_failure(self, failure: ClipFailure) -> list[FileResult]:
        if not self._is_open(failure.key):
            return []
        pending_file = self._pending_files[failure.key[0]]
        if failure.is_temporary:
            pending_file.temporary_failure = failure.reason
        pending_file.failures[failure.key[1]] = failure.reason
        return self._record(failure.key)

    def record_damage(self, damage: Damage) -> None:
        pending_file = self._pending_files.get(damage.content)
        if pending_file is not None:
            pending_file.damage = max(pending_file.damage, damage.seconds)

    def record_commit(self, files: Iterable[IndexedFile]) -> None:
        """Add files that are stored now."""
        self.files.update((file.path, file) for file in files)

    def forget(self, paths: Iterable[str]) -> None:
        """Drop files that were removed from the store."""
        for path in paths:
            del self.files[path]

    def progress(self) -> list[FileProgress]:
        """Progress of the pending files."""
        return [pending_file.progress for pending_file in self._pending_files.values()]

    def _is_open(self, key: ClipKey) -> bool:
        pending_file = self._pending_files.get(key[0])
        return pending_file is not None and key[1] in pending_file.open_clips

    def _record(self, key: ClipKey) -> list[FileResult]:
        pending_file = self._pending_files[key[0]]
        pending_file.open_clips.discard(key[1])
        return [] if pending_file.open_clips else self._settle(pending_file)

    def _settle(self, pending_file: _PendingFile) -> list[FileResult]:
        """Settle a file and its copies once all clips have been tried."""
        indexed_file = pending_file.file
        content = indexed_file.content
        del self._pending_files[content]
        first = CandidateFile(indexed_file.path, indexed_file.size, indexed_file.modified_ns)
        files = (first, *pending_file.copies)
        if pending_file.temporary_failure:
            # Reported but not stored, so that the next run tries the file again.
            results = [
                _failed_result(file, content, pending_file.temporary_failure) for file in files
            ]
            return [dataclasses.replace(result, is_new=False) for result in results]
        num_good = pending_file.num_clips - len(pending_file.lost_reasons)
        if not num_good:
            reason = self.undecodable[content] = pending_file.lost_reasons[0]
            return [_failed_result(file, content, reason) for file in files]
        indexed_file = dataclasses.replace(
            indexed_file, num_clips=num_good, reason=pending_file.reason
        )
        self.complete[content] = indexed_file
        copies = [self._alias(file, indexed_file) for file in pending_file.copies]
        outcome: Outcome = "completed" if content in self.reopened else "encoded"
        return [FileResult(indexed_file, outcome), *copies]

    def _alias(self, file: CandidateFile, existing: IndexedFile) -> FileResult:
        """Settle a file whose content is stored: a copy, or the same file with a new date."""
        previous = self.files.get(file.path)
        tags = tags_of(file.path, self.tags)
        if tags is None:
            tags = previous.tags if previous is not None else ()
        indexed_file = dataclasses.replace(
            existing, path=file.path, size=file.size, modified_ns=file.modified_ns, tags=tags
        )
        is_same = previous is not None and previous.content == existing.content
        return FileResult(indexed_file, "unchanged" if is_same else "alias")


def recording_values(recording: Recording | None) -> dict[str, Any]:
    """Return the fields of :class:`IndexedFile` for a recording; none if it was not read."""
    if recording is None:
        return {}
    place = recording.place
    return {
        "recorded": recording.recorded,
        "latitude": None if place is None else place.latitude,
        "longitude": None if place is None else place.longitude,
        "camera": recording.camera,
    }


def _failed_result(file: CandidateFile, content: str, reason: str) -> FileResult:
    """Return the result of a file without clips.

    A file without a modification time is not stored, so that the next run tries it again.
    """
    indexed_file = IndexedFile(file.path, file.size, file.modified_ns, content, "failed", reason)
    return FileResult(indexed_file, "failed", is_new=bool(file.modified_ns) and is_utf8(file.path))
