"""Interface of a store, local or remote, for searching, indexing and maintenance."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, Self

from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import (
    Changes,
    IndexedFile,
    Line,
    Repaired,
    Source,
    SourceKey,
    Verified,
)
from eaglenet.store.snapshot import Snapshot


class Writer(Protocol):
    """Changes one store. There is one writer at a time; each commit is one transaction."""

    @property
    def manifest(self) -> Manifest: ...

    def files(self) -> list[IndexedFile]:
        """Every path that an index run has dealt with, failed ones included."""
        ...

    def incomplete_contents(self) -> Mapping[str, frozenset[int]]:
        """Stored clip numbers of contents that lack clips or have no finished file."""
        ...

    def clip_numbers(self, content: str) -> frozenset[int]:
        """Stored clip numbers of a content."""
        ...

    def keyframe_clips(self) -> Mapping[str, frozenset[int]]:
        """Numbers of the clips that were encoded from keyframes only, by content."""
        ...

    def sources(self, *, without_windows_of: str | None = None) -> Mapping[SourceKey, Source]:
        """Every source of transcript lines.

        ``without_windows_of``: only those that lack windows of this encoder: complete ones with
        lines.
        """
        ...

    def lines(self, key: SourceKey) -> list[Line]:
        """Lines of a source in order of time."""
        ...

    def commit(self, changes: Changes) -> None:
        """Store changes; they are durable and visible to readers when this returns."""
        ...

    def set_hubness(self, bank: HubnessBank | None) -> None:
        """Set the bank that corrects the hubness of all clips; None switches it off."""
        ...

    def finish(self) -> int:
        """Remove unneeded clips, reclaim space; return the number of searchable clips."""
        ...


class Store(Protocol):
    """A store that exists."""

    @property
    def location(self) -> str:
        """Location as a user writes it after ``--store``."""
        ...

    @property
    def manifest(self) -> Manifest: ...

    @classmethod
    def exists(cls, location: str) -> bool:
        """Return whether there is a store; raise an error if there is none and none can be made."""
        ...

    @classmethod
    def open(cls, location: str) -> Self:
        """Open a store for reading; if there is none, the error says how to make one."""
        ...

    @classmethod
    def write(
        cls, location: str, manifest: Manifest | None = None, bank: HubnessBank | None = None
    ) -> AbstractContextManager[Writer]:
        """Open a store for writing, and lock out other writers.

        A store that does not exist is made from ``manifest`` and ``bank``, in one step. One that
        was made with other settings is refused before anything is written; it keeps its bank, and
        the roots of ``manifest`` are added.
        """
        ...

    def files(self) -> list[IndexedFile]:
        """Every path that an index run has dealt with, failed ones included."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the newest version of the store at the location, for searching."""
        ...

    def stamp(self) -> Hashable:
        """Return a value that changes with every commit; fast. ``OSError`` if the store is gone."""
        ...

    def usage(self) -> dict[str, int]:
        """Bytes on disk by part."""
        ...

    def verify(self) -> Verified:
        """Compare everything with its checksums; an error names the damaged part."""
        ...

    @classmethod
    def repair(cls, location: str) -> Repaired:
        """Restore a complete store from everything that is intact."""
        ...
