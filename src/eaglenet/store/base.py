"""Interface of a store, local or remote, for searching, indexing and maintenance."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, Self

from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import Changes, IndexedFile, Line, Repaired, Source, SourceKey, Verified
from eaglenet.store.snapshot import Snapshot


class Writer(Protocol):
    """Changes one store. There is one writer at a time; each commit is one transaction."""

    @property
    def manifest(self) -> Manifest: ...

    def files(self) -> list[IndexedFile]:
        """Return every path that an index run has processed, failed ones included."""
        ...

    def incomplete_contents(self) -> Mapping[str, frozenset[int]]:
        """Return the stored clip numbers of contents that lack clips or have no finished file."""
        ...

    def clip_numbers(self, content: str) -> frozenset[int]:
        """Return the stored clip numbers of a content."""
        ...

    def keyframe_clips(self) -> Mapping[str, frozenset[int]]:
        """Return, by content, the numbers of the clips that were encoded from keyframes only."""
        ...

    def sources(self, *, without_windows_of: str | None = None) -> Mapping[SourceKey, Source]:
        """Return every source of transcript lines.

        ``without_windows_of``: only complete sources with lines that lack windows of this encoder.
        """
        ...

    def lines(self, key: SourceKey) -> list[Line]:
        """Return the lines of a source in order of time."""
        ...

    def commit(self, changes: Changes) -> None:
        """Store changes; they are durable and visible to readers when this returns."""
        ...

    def set_hubness(self, bank: HubnessBank | None) -> None:
        """Set the bank that corrects the hubness of all clips; None turns the correction off."""
        ...

    def finish(self) -> int:
        """Remove unneeded clips and reclaim space; return the number of visible clips."""
        ...


class Store(Protocol):
    """A store that exists."""

    @property
    def location(self) -> str:
        """Location as a user passes it to ``--store``."""
        ...

    @property
    def manifest(self) -> Manifest: ...

    @classmethod
    def exists(cls, location: str) -> bool:
        """Return whether there is a store; raise an error if none can be created there."""
        ...

    @classmethod
    def open(cls, location: str) -> Self:
        """Open a store for reading; if there is none, the error says how to create one."""
        ...

    @classmethod
    def write(
        cls, location: str, manifest: Manifest | None = None, bank: HubnessBank | None = None
    ) -> AbstractContextManager[Writer]:
        """Open a store for writing, and lock out other writers.

        If there is none, it is created from ``manifest`` and ``bank`` in one step. An existing
        store keeps its bank and gets the roots of ``manifest``; if it was created with other
        settings, an error is raised before anything is written.
        """
        ...

    def files(self) -> list[IndexedFile]:
        """Return every path that an index run has processed, failed ones included."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the newest version of the store at the location, for searching."""
        ...

    def stamp(self) -> Hashable:
        """Return a value that changes with every commit; raise ``OSError`` if the store is gone."""
        ...

    def usage(self) -> dict[str, int]:
        """Return the bytes on disk by part."""
        ...

    def verify(self) -> Verified:
        """Compare everything with its checksums; an error names the damaged part."""
        ...

    @classmethod
    def repair(cls, location: str) -> Repaired:
        """Restore a complete store from everything that is intact."""
        ...
