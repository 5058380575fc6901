"""What an index run tells while it works and when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class IndexProgress:
    """Counts so far; ``done`` files are safely on disk."""

    path: str
    """Of the file that was just finished; empty where only clips of a longer one were stored."""
    total: int
    done: int
    skipped: int
    hours: float
    """Of video that is done, the encoded part of unfinished files with it."""
    bytes_total: int
    bytes_done: int
    """An unfinished file counts by the share of its clips that is encoded."""
    elapsed: float
    """Seconds."""
    clips: int
    """Stored in this run, those of unfinished files too."""

    @property
    def speed(self) -> float:
        """Seconds of video a second."""
        return self.hours * 3600 / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        if not self.bytes_done:
            return None
        return self.elapsed * (self.bytes_total - self.bytes_done) / self.bytes_done


OnProgress = Callable[[IndexProgress], None]


@dataclass(frozen=True)
class FileProblem:
    """A file that is not, or not wholly, in the store."""

    path: str
    reason: str


DAMAGED = "damaged: "
"""How the reason begins of a file that is in the store although parts of it cannot be decoded."""


@dataclass(frozen=True)
class IndexReport:
    """What an index run did."""

    indexed: int
    """Files encoded now, photographs among them."""
    unchanged: int
    aliases: int
    """Files whose content was in the store under another path."""
    dropped: int
    missing: int
    """Files of the store that are gone from disk and were not dropped."""
    clips: int
    """In the store now."""
    hours: float
    """Of video encoded now."""
    elapsed: float
    problems: tuple[FileProblem, ...]
    damaged: tuple[FileProblem, ...]
    """Files that are in the store although parts of them cannot be decoded."""
    index: str
    """How the store is searched: ``exact scan`` or ``codes``."""
    unused_tags: tuple[str, ...] = ()
    """Names in the table of tags that stand for none of the files that were found."""
    lines: int = 0
    """Of words, read now: subtitles, speech, text in frames."""
    pictures: int = 0
    """Photographs encoded now."""
    device: str = "cpu"
    """Where clips were encoded."""
    precision: str = "fp32"
    """In which they were."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return asdict(self)
