"""The small interface behind which the durable store sits, and the rows that cross it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.store.layout import Records
from eaglenet.search.store.words import WordStore

Status = Literal["done", "failed"]
ClipKey = tuple[str, int]
"""Content hash of the file, number of the clip in it."""


def clip_id_of(key: ClipKey) -> str:
    """The public name of a clip: stable under renaming and re-indexing.

    >>> clip_id_of(("0123456789abcdef0123", 7))
    '0123456789abcdef-7'
    """
    return f"{key[0][:16]}-{key[1]}"


@dataclass(frozen=True)
class ClipRows:
    """Clips ready to be stored, column by column."""

    keys: list[ClipKey]
    paths: list[str]
    """Where the content was read from; the files table says where else it is."""
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    coarse: NDArray[np.float32]
    """``[clips, dim]`` unit rows."""
    records: Records
    thumbnails: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, places: Sequence[int]) -> ClipRows:
        """The clips at these places."""
        chosen = np.asarray(places, np.int64)
        return ClipRows(
            keys=[self.keys[place] for place in places],
            paths=[self.paths[place] for place in places],
            starts=self.starts[chosen],
            ends=self.ends[chosen],
            coarse=self.coarse[chosen],
            records=self.records[chosen],
            thumbnails=[self.thumbnails[place] for place in places],
        )

    def checks(self) -> list[int]:
        """A checksum of everything a clip is but its path, which may change."""
        coarse = np.ascontiguousarray(self.coarse, np.float32)
        found = []
        for place, (content, number) in enumerate(self.keys):
            span = (float(self.starts[place]), float(self.ends[place]))
            check = zlib.crc32(f"{content} {number} {span}".encode())
            for part in (coarse[place], self.records[place].tobytes(), self.thumbnails[place]):
                check = zlib.crc32(part, check)
            found.append(check)
        return found

    @classmethod
    def concatenate(cls, parts: Sequence[ClipRows]) -> ClipRows:
        return cls(
            keys=[key for part in parts for key in part.keys],
            paths=[path for part in parts for path in part.paths],
            starts=np.concatenate([part.starts for part in parts]),
            ends=np.concatenate([part.ends for part in parts]),
            coarse=np.concatenate([part.coarse for part in parts]),
            records=np.concatenate([part.records for part in parts]),
            thumbnails=[image for part in parts for image in part.thumbnails],
        )


@dataclass(frozen=True)
class FileRow:
    """One path the indexer has dealt with."""

    path: str
    size: int
    modified_ns: int
    content: str
    """Hash of all bytes; empty where a file could not be read."""
    status: Status
    reason: str = ""
    duration: float = 0.0
    width: int = 0
    height: int = 0
    num_clips: int = 0
    tags: tuple[str, ...] = ()


class ClipStore(Protocol):
    """Durable rows. Each call is one transaction; a killed writer leaves the last whole one."""

    def add_clips(self, rows: ClipRows) -> None: ...

    def clip_keys(self, contents: Sequence[str] | None = None) -> list[ClipKey]:
        """Keys of all clips (of these contents), those of unfinished files too."""
        ...

    def read_clips(self, keys: Sequence[ClipKey]) -> ClipRows: ...

    def remove_contents(self, contents: Sequence[str]) -> None:
        """Drop every clip of these contents."""
        ...

    def set_path(self, content: str, path: str) -> None:
        """Say that the clips of a content are now read from ``path``."""
        ...

    def files(self) -> list[FileRow]: ...

    def put_files(self, rows: Sequence[FileRow]) -> None:
        """Insert, or replace the row of the same path."""
        ...

    def remove_files(self, paths: Sequence[str]) -> None: ...

    def words(self) -> WordStore:
        """What is said and written in the files."""
        ...

    def optimize(self) -> None:
        """Merge small pieces and forget old versions."""
        ...

    def sync(self) -> None:
        """Bring everything that was written to the disk; what is not may be lost with it."""
        ...
