"""Records that a store takes and returns: clips, files, transcripts, and changes to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Status = Literal["done", "failed"]
TranscriptKind = Literal["subtitle", "speech", "text", "description"]
"""Origin of a transcript line: subtitles, speech recognition, on-screen text, or a description."""
ClipKey = tuple[str, int]
"""Content hash of the file, and number of the clip in it."""
Features = NDArray[np.void]
"""Structured array ``[clips]`` with the fields of a :class:`~eaglenet.store.manifest.Layout`."""

ID_CHARACTERS = 16
"""Characters of the content hash in a clip id."""


def clip_id(key: ClipKey) -> str:
    """Return the public id of a clip, which survives renaming and indexing the file again.

    >>> clip_id(("0123456789abcdef0123", 7))
    '0123456789abcdef-7'
    """
    return f"{key[0][:ID_CHARACTERS]}-{key[1]}"


@dataclass(frozen=True)
class ClipBatch:
    """Encoded clips to be stored, as columns."""

    keys: list[ClipKey]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    vectors: NDArray[np.float32]
    """``[clips, dim]``, unit length."""
    features: Features
    thumbnails: list[bytes]
    keyframe_keys: frozenset[ClipKey] = frozenset()
    """Keys of the clips that were encoded from keyframes only."""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, indices: Sequence[int]) -> ClipBatch:
        rows = np.asarray(indices, np.int64)
        return ClipBatch(
            keys=[self.keys[index] for index in indices],
            starts=self.starts[rows],
            ends=self.ends[rows],
            vectors=self.vectors[rows],
            features=self.features[rows],
            thumbnails=[self.thumbnails[index] for index in indices],
            keyframe_keys=self.keyframe_keys,
        )

    @classmethod
    def concatenate(cls, batches: Sequence[ClipBatch]) -> ClipBatch:
        return cls(
            keys=[key for batch in batches for key in batch.keys],
            starts=np.concatenate([batch.starts for batch in batches]),
            ends=np.concatenate([batch.ends for batch in batches]),
            vectors=np.concatenate([batch.vectors for batch in batches]),
            features=np.concatenate([batch.features for batch in batches]),
            thumbnails=[image for batch in batches for image in batch.thumbnails],
            keyframe_keys=frozenset().union(*(batch.keyframe_keys for batch in batches)),
        )


@dataclass(frozen=True)
class IndexedFile:
    """A path that an index run has indexed, or tried to index.

    content: hash of all bytes; empty if the file could not be read.
    num_clips: number of clips of the complete content.
    recorded: recording time in seconds since 1970; None if unknown.
    latitude, longitude: degrees north and east; None if unknown.
    camera: make and model, empty if unknown; None if the tags of the file were not read yet.
    """

    path: str
    size: int
    modified_ns: int
    content: str
    status: Status
    reason: str = ""
    duration: float = 0.0
    width: int = 0
    height: int = 0
    num_clips: int = 0
    tags: tuple[str, ...] = ()
    recorded: float | None = None
    latitude: float | None = None
    longitude: float | None = None
    camera: str | None = None


@dataclass(frozen=True)
class Clip:
    """One clip of a snapshot. ``row``: its row there. ``content_id``: its content in SQLite."""

    row: int
    content_id: int
    content: str
    number: int
    start: float
    end: float

    @property
    def id(self) -> str:
        return clip_id((self.content, self.number))


@dataclass(frozen=True)
class FileTable:
    """Indexed contents as columns, for filters and hits. One content may have several paths.

    Times are in seconds since 1970, sizes in bytes. Paths of a content are in the order of their
    indexing, and all values but ``paths`` and ``tags`` are those of the first. Unknown recording
    times and coordinates are NaN, unknown cameras are empty, and a camera is None if the tags of
    the file were not read yet.
    """

    ids: NDArray[np.int64]
    contents: list[str]
    paths: list[list[str]]
    modification_times: NDArray[np.float64]
    durations: NDArray[np.float64]
    widths: list[int]
    heights: list[int]
    tags: list[list[str]]
    sizes: list[int]
    recording_times: NDArray[np.float64]
    latitudes: NDArray[np.float64]
    longitudes: NDArray[np.float64]
    cameras: list[str | None]
    damage: Mapping[int, str] = field(default_factory=dict)
    """Problems of files with unreadable parts, by index."""
    roots: tuple[str, ...] = ()
    """Indexed folders and files."""

    @cached_property
    def dates(self) -> NDArray[np.float64]:
        """Recording times, or modification times where they are unknown."""
        is_unknown = np.isnan(self.recording_times)
        return np.where(is_unknown, self.modification_times, self.recording_times)

    def __len__(self) -> int:
        return len(self.contents)

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Index of each content in the columns, by content id."""
        return {content_id: number for number, content_id in enumerate(self.ids.tolist())}


@dataclass(frozen=True)
class Source:
    """Origin of transcript lines: a subtitle file, or a track, the sound or the frames of a video.

    path: path of the subtitle file; empty for a source inside the video. reader: program and
    version that read the source; a different one reads it again. until: second up to which lines
    are stored; infinity if the source is complete. lines: number of lines, counted by the store.
    """

    content: str
    kind: TranscriptKind
    path: str
    size: int
    modified_ns: int
    reader: str
    status: Status
    reason: str = ""
    language: str = ""
    until: float = float("inf")
    lines: int = 0

    @property
    def key(self) -> SourceKey:
        return self.content, self.kind, self.path


SourceKey = tuple[str, TranscriptKind, str]
"""Content hash, kind and path of a source."""


@dataclass(frozen=True)
class Line:
    """A transcript line. ``terms``: its normalised words, which full-text search matches."""

    start: float
    end: float
    language: str
    text: str
    terms: str


@dataclass(frozen=True)
class LineHit:
    """A line that matches a query."""

    content: str
    content_id: int
    kind: TranscriptKind
    line: Line


@dataclass(frozen=True)
class Phrase:
    """Terms that follow each other in a line.

    gap: if set, they may be in any order, with at most this many other terms between the first and
    the last.
    """

    terms: tuple[str, ...]
    gap: int | None = None


@dataclass(frozen=True)
class LineQuery:
    """A search for lines with all ``phrases`` or, without phrases, any of ``terms``.

    A term that ends in ``*`` matches every word that begins with it.
    """

    terms: tuple[str, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    kinds: tuple[TranscriptKind, ...] = ("subtitle", "speech", "text", "description")


@dataclass(frozen=True)
class SourceLines:
    """A source with new lines, which replace the stored ones from ``keep_until`` on."""

    source: Source
    lines: Sequence[Line]
    keep_until: float = 0.0


@dataclass(frozen=True)
class SourceWindows:
    """Windows of the lines of a source, in the order of :meth:`Writer.lines`.

    encoder: program and version that encoded the windows. vectors: ``[windows, dim]``, unit
    length. A window has ``num_lines`` lines from ``first_lines`` on.
    """

    key: SourceKey
    encoder: str
    first_lines: NDArray[np.uint32]
    num_lines: NDArray[np.uint32]
    vectors: NDArray[np.float32]

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])


@dataclass(frozen=True)
class WindowHit:
    """A window whose meaning is similar to a query: its lines, and the cosine."""

    content: str
    content_id: int
    kind: TranscriptKind
    lines: tuple[Line, ...]
    cosine: float


@dataclass
class Changes:
    """Everything that one commit stores; it becomes durable and visible as a whole, or not at all.

    A content is visible while a file with status ``done`` has it; its clips may be stored earlier.
    An exact clip replaces one from keyframes; other clips that are already stored are skipped.
    """

    clips: Sequence[ClipBatch] = ()
    files: Sequence[IndexedFile] = ()
    """Files, which replace those with the same path."""
    removed_files: Sequence[str] = ()
    transcripts: Sequence[SourceLines] = ()
    removed_sources: Sequence[SourceKey] = ()
    windows: Sequence[SourceWindows] = ()
    """Windows of sources whose lines are stored, here or earlier; they replace earlier ones."""

    def __bool__(self) -> bool:
        return any(len(part) for part in vars(self).values())


@dataclass(frozen=True)
class Verified:
    """Counts of rows that match their checksums."""

    clips: int
    files: int
    stored_clips: int
    """Number of clips, those of unfinished files included."""
    lines: int


@dataclass(frozen=True)
class Repaired:
    """Result of a repair; ``incomplete_files`` must be indexed again."""

    clips: int
    files: int
    lines: int
    incomplete_files: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
