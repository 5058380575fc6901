"""Rows of what is said and written in files, and the interface behind which they are kept."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from eaglenet.core.types import TranscriptKind


@dataclass(frozen=True)
class WordRow:
    """A line. ``source``: the key of where it comes from; ``terms``: what it is found by."""

    content: str
    source: str
    start: float
    end: float
    kind: TranscriptKind
    language: str
    words: str
    terms: str

    def check(self) -> int:
        """A checksum of everything in the row."""
        return zlib.crc32(repr(tuple(vars(self).values())).encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class SourceRow:
    """Where lines come from: a subtitle file, a video's own subtitles, its sound, its frames.

    path: of the subtitle file; empty for what is inside the video. reader: what read it, so that
    another model reads it again. until: the second up to which lines are stored; for a source that
    is read whole, infinity.
    """

    content: str
    kind: TranscriptKind
    path: str
    size: int
    modified_ns: int
    reader: str
    status: Literal["done", "failed"]
    reason: str = ""
    language: str = ""
    until: float = float("inf")
    lines: int = 0

    @property
    def key(self) -> str:
        return source_key(self.content, self.kind, self.path)


def source_key(content: str, kind: TranscriptKind, path: str = "") -> str:
    """Names a source; a path of another content is another one."""
    text = "\0".join((content, kind, path))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class WordQuestion:
    """What to look for: any of ``terms``, all of ``phrases``, in lines of these kinds."""

    terms: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]
    kinds: tuple[TranscriptKind, ...]


class WordStore(Protocol):
    """Durable lines, for the one writer. Each call is one transaction."""

    def sources(self) -> list[SourceRow]: ...

    def add_lines(self, rows: Sequence[WordRow]) -> None: ...

    def remove_lines(self, sources: Sequence[str], since: float = 0.0) -> None:
        """Drop the lines of these sources that start at ``since`` or later."""
        ...

    def put_sources(self, rows: Sequence[SourceRow]) -> None:
        """Insert, or replace the row of the same key."""
        ...

    def remove_sources(self, keys: Sequence[str]) -> None:
        """Drop sources with their lines."""
        ...


class WordIndex(Protocol):
    """One version of the lines, for searching."""

    def find(
        self, question: WordQuestion, most: int, contents: Sequence[str] | None = None
    ) -> list[WordRow]:
        """The best lines by BM25, best first; ``contents``: only of these."""
        ...

    def lines_of(self, kinds: Sequence[TranscriptKind]) -> list[tuple[SourceRow, list[WordRow]]]:
        """All sources of these kinds that hold what they say, each with its lines."""
        ...

    def count(self) -> int:
        """Lines in all."""
        ...

    def verify(self) -> int:
        """Compare every line with its checksum; returns how many there are."""
        ...
