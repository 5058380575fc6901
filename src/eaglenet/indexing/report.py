"""Progress of an index run, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class IndexProgress:
    """Counts so far; ``done`` files are committed."""

    path: str
    """File that was just finished; empty if only clips of a longer one were stored."""
    total: int
    done: int
    skipped: int
    hours: float
    """Hours of video encoded, including the encoded part of unfinished files."""
    bytes_total: int
    bytes_done: int
    """An unfinished file counts in proportion to its encoded clips."""
    elapsed: float
    """Seconds."""
    clips: int
    """Clips stored in this pass, including those of unfinished files."""
    is_completing: bool = False
    """True in the second pass, which replaces clips from keyframes with exact ones."""

    @property
    def speed(self) -> float:
        """Seconds of video per second."""
        return self.hours * 3600 / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        if not self.bytes_done:
            return None
        return self.elapsed * (self.bytes_total - self.bytes_done) / self.bytes_done


OnProgress = Callable[[IndexProgress], None]


@dataclass(frozen=True)
class FileProblem:
    """A file that is not, or not completely, in the store."""

    path: str
    reason: str
    is_known: bool = False
    """True if an earlier run reported it, and this one did not try the file again."""


NO_VIDEO = "neither a video nor an image"
"""Reason for a file that begins like a video but is none, such as a sound file."""
DAMAGED = "damaged: "
"""Prefix of the reason for a file that is in the store although parts of it do not decode."""


@dataclass(frozen=True)
class IndexReport:
    """Result of an index run."""

    indexed: int
    """Files encoded in this run, including images."""
    unchanged: int
    aliases: int
    """Files whose content was in the store under another path."""
    dropped: int
    missing: int
    """Files of the store that no longer exist on disk and were not dropped."""
    clips: int
    """Clips in the store now."""
    hours: float
    """Hours of video encoded in this run."""
    elapsed: float
    problems: tuple[FileProblem, ...]
    damaged: tuple[FileProblem, ...]
    """Files that are in the store although parts of them do not decode."""
    other_files: Mapping[str, int] = field(default_factory=dict)
    """Number of files that are neither videos nor images, by extension."""
    hidden: int = 0
    """Number of hidden videos, images and folders, which are left out."""
    unused_tags: tuple[str, ...] = ()
    """Names in the table of tags that match none of the files."""
    transcript_lines: int = 0
    """Lines read in this run: subtitles, speech, on-screen text, descriptions."""
    images: int = 0
    """Images encoded in this run."""
    device: str = "cpu"
    """Device used for encoding."""
    precision: str = "fp32"
    """Precision used for encoding. ``auto`` takes fp32 for less than 2 MiB, which is done before
    int8 is prepared; the log says why."""
    new_files: tuple[str, ...] = ()
    """Paths of the files encoded in this run."""
    completed: int = 0
    """Files of earlier runs whose clips from keyframes were replaced by exact ones."""
    keyframe_clips: int = 0
    """Clips in the store now that were encoded from keyframes only."""
    searchable_after: float = 0.0
    """Seconds after which all new files could be searched."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
