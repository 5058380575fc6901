"""A store as a search sees it: manifest and snapshot that belong together."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eaglenet.errors import StoreError
from eaglenet.search.approximate import way_of
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.words.reader import Words

ATTEMPTS = 5


@dataclass(frozen=True)
class View:
    """What was read of a store at one moment; a search holds on to the one it began with."""

    store: Store
    snapshot: Snapshot
    words: Words
    stamp: Hashable | None

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    @classmethod
    def of(cls, store: Store) -> View:
        """The store as it was opened; one that changed meanwhile is read again when it is used."""
        stamp = None
        with suppress(OSError):  # Without a snapshot, which the next line tells of.
            stamp = store.stamp()
        snapshot = store.snapshot()
        is_settled = (
            stamp is not None
            and open_store(store.location).manifest == store.manifest
            and store.stamp() == stamp
        )
        return cls(store, snapshot, Words(store), stamp if is_settled else None)

    def renewed(self) -> View:
        """Read the store again; the manifest too, for the folder may hold another store now."""
        for _ in range(ATTEMPTS):
            before = self.store.stamp()
            store = open_store(self.store.location)
            snapshot = store.snapshot()
            if store.stamp() == before:
                return View(store, snapshot, self.words, before)
        raise StoreError(f"{self.store.location} is being replaced; search again when that is done")

    def _hubness(self) -> str:
        """Which bank levels the clips that are searched now."""
        bank, note = self.snapshot.bank, self.manifest.hubness
        if bank is None:
            return "off"
        return str(note) if note is not None and note.file == bank else bank

    def info(self) -> dict[str, Any]:
        """What is in the store and how it is searched."""
        snapshot, manifest = self.snapshot, self.manifest
        return {
            "store": self.store.location,
            "clips": len(snapshot),
            "files": sum(len(paths) for paths in snapshot.files.paths),
            "contents": len(snapshot.files),
            "hours": float(snapshot.files.durations.sum()) / 3600,
            "model": manifest.model,
            "method": manifest.method,
            "identity": manifest.identity,
            "dim": manifest.dim,
            "frames": manifest.layout.num_frames,
            "index": way_of(snapshot),
            "hubness": self._hubness(),
            "version": snapshot.version,
            "roots": list(manifest.roots),
            "tags": sorted({tag for tags in snapshot.files.tags for tag in tags}),
            "lines": index.count() if (index := self.words.now()) is not None else 0,
        }
