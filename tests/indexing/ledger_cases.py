"""Files, clips and tables for tests that need no video and no disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import Inspection
from eaglenet.search.store.tables import ClipKey, ClipRows, FileRow

WINDOWS = ((0.0, 6.0), (5.0, 11.0), (10.0, 14.0))


@dataclass
class FakeTables:
    """What a ledger reads of a store."""

    rows: list[FileRow] = field(default_factory=list)
    keys: list[ClipKey] = field(default_factory=list)

    def files(self) -> list[FileRow]:
        return self.rows

    def clip_keys(self, contents: Sequence[str] | None = None) -> list[ClipKey]:
        return [key for key in self.keys if contents is None or key[0] in contents]


def candidate(path: str, modified_ns: int = 5, size: int = 100) -> CandidateFile:
    """A file on disk."""
    return CandidateFile(path, size, modified_ns)


def inspection(path: str, content: str, **changes: object) -> Inspection:
    """A file of three clips that was looked at."""
    values = {"duration": 14.0, "width": 40, "height": 24, "windows": WINDOWS, **changes}
    return Inspection(candidate(path), content, **values)


def rows_of(*keys: ClipKey) -> ClipRows:
    """Encoded clips; the vector of each is its number."""
    numbers = np.array([number for _, number in keys], np.float64)
    return ClipRows(
        keys=list(keys),
        paths=[f"/{content}.mp4" for content, _ in keys],
        starts=numbers,
        ends=numbers + 1,
        coarse=np.repeat(numbers[:, None].astype(np.float32), 2, axis=1),
        records=np.zeros(len(keys), np.dtype([("frames", "<f2", (1, 2))])),
        thumbnails=[f"{content}{number}".encode() for content, number in keys],
    )


def done_row(path: str, content: str, num_clips: int = 3, **changes: object) -> FileRow:
    """A finished file as the tables have it."""
    values = {"size": 100, "modified_ns": 5, "duration": 14.0, "num_clips": num_clips, **changes}
    return FileRow(path=path, content=content, status="done", **values)
