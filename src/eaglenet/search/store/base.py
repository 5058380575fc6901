"""What a store is, wherever it lies: the interface, and the table of kinds of stores.

A kind of store is one class that meets :class:`Store` and one line ``STORES.add(scheme, class)``.
The scheme is what stands before ``://`` in a location; plain paths are ``file``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self

from eaglenet.core.registry import Registry
from eaglenet.search.store.hub_bank import HubBank
from eaglenet.search.store.local import StoreFolder
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.tables import ClipStore
from eaglenet.search.store.words import WordIndex


class Store(Protocol):
    """A store that exists: what it was made with, its tables and what searching reads of it."""

    @property
    def location(self) -> str:
        """As a person would write it after ``--store``."""
        ...

    @property
    def manifest(self) -> Manifest: ...

    @property
    def is_searched(self) -> bool:
        """Whether anything was published yet."""
        ...

    @classmethod
    def exists(cls, location: str) -> bool:
        """Whether there is a store to open."""
        ...

    @classmethod
    def require_room(cls, location: str) -> None:
        """Refuse a location where there is no store and none can be made; cheap."""
        ...

    @classmethod
    def open(cls, location: str) -> Self:
        """Read the manifest; says how to make a store where there is none."""
        ...

    @classmethod
    def create(cls, location: str, wanted: Manifest) -> AbstractContextManager[Self]:
        """Open for writing, held against other writers; made as ``wanted`` if there is none.

        A store that was made in another way is refused before anything is written.
        """
        ...

    def bank(self) -> HubBank | None:
        """The sentences that level its clips; None where there are none."""
        ...

    def with_bank(self, bank: HubBank | None) -> Self:
        """The same store with another bank, in effect when it is published next.

        Only for the writer.
        """
        ...

    def hold(self) -> AbstractContextManager[None]:
        """Keep other writers out, or say who writes."""
        ...

    def tables(self) -> ClipStore:
        """The durable rows."""
        ...

    def snapshot(self) -> Snapshot:
        """The newest version that was published, for reading."""
        ...

    def words_stamp(self) -> Hashable | None:
        """Changes whenever words may have; cheap. None where the store holds no words."""
        ...

    def words(self) -> WordIndex | None:
        """The lines that are stored for certain, for searching."""
        ...

    def forget_words(self) -> None:
        """Remove all words, which the next index run reads again. Only for the writer."""
        ...

    def publish(self, tables: ClipStore, *, anew: bool = False) -> int:
        """Show readers the clips of all finished files; returns how many there are.

        ``anew`` derives all of it again and then drops what was there.
        """
        ...

    def stamp(self) -> Hashable:
        """Changes whenever something is published or the store is replaced; cheap.

        Raises ``OSError`` where the store is gone.
        """
        ...


STORES: Registry[type[Store]] = Registry("kind of store", is_open=True)
STORES.add("file", StoreFolder)


def kind_of(location: str | Path) -> type[Store]:
    """The class that opens stores at such a location."""
    # One letter would be the drive of a Windows path.
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", str(location))
    return STORES[scheme.group(1) if scheme else "file"]


def open_store(location: str | Path) -> Store:
    """The store at a path or address."""
    return kind_of(location).open(str(location))
