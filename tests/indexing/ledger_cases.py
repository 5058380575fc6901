"""Files, clips and a writer for tests that need no video and no disk."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import Inspection
from eaglenet.store.records import ClipBatch, ClipKey, IndexedFile

WINDOWS = ((0.0, 6.0), (5.0, 11.0), (10.0, 14.0))


@dataclass
class FakeWriter:
    """What a ledger reads of a store."""

    stored: list[IndexedFile] = field(default_factory=list)
    keys: list[ClipKey] = field(default_factory=list)
    keyframe_keys: list[ClipKey] = field(default_factory=list)

    def files(self) -> list[IndexedFile]:
        return self.stored

    def incomplete_contents(self) -> dict[str, frozenset[int]]:
        done = {file.content: file.num_clips for file in self.stored if file.status == "done"}
        contents = {*done, *(content for content, _ in self.keys)}
        numbers = {content: self.clip_numbers(content) for content in contents}
        return {
            content: held
            for content, held in numbers.items()
            if content not in done or len(held) < done[content]
        }

    def clip_numbers(self, content: str) -> frozenset[int]:
        return frozenset(number for owner, number in self.keys if owner == content)

    def keyframe_clips(self) -> dict[str, frozenset[int]]:
        contents = {content for content, _ in self.keyframe_keys}
        return {
            content: frozenset(number for owner, number in self.keyframe_keys if owner == content)
            for content in contents
        }


def candidate(path: str, modified_ns: int = 5, size: int = 100) -> CandidateFile:
    """A file on disk."""
    return CandidateFile(path, size, modified_ns)


def inspection(path: str, content: str, **changes: object) -> Inspection:
    """A file of three clips that was looked at."""
    values = {"duration": 14.0, "width": 40, "height": 24, "windows": WINDOWS, **changes}
    return Inspection(candidate(path), content, **values)


def batch_of(*keys: ClipKey) -> ClipBatch:
    """Encoded clips; the vector of each is its number."""
    numbers = np.array([number for _, number in keys], np.float64)
    return ClipBatch(
        keys=list(keys),
        starts=numbers,
        ends=numbers + 1,
        vectors=np.repeat(numbers[:, None].astype(np.float32), 2, axis=1),
        features=np.zeros(len(keys), np.dtype([("frames", "<f2", (1, 2))])),
        thumbnails=[f"{content}{number}".encode() for content, number in keys],
    )


def done_file(path: str, content: str, num_clips: int = 3, **changes: object) -> IndexedFile:
    """A finished file as the store has it."""
    values = {"size": 100, "modified_ns": 5, "duration": 14.0, "num_clips": num_clips, **changes}
    return IndexedFile(path=path, content=content, status="done", **values)
