"""A store as a search sees it: manifest, snapshot and index that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eaglenet.errors import StoreError
from eaglenet.search.approximate import Approximate
from eaglenet.search.store.manifest import NAME, Manifest
from eaglenet.search.store.snapshot import Snapshot, snapshot_stamp

Stamp = tuple[tuple[int, int], tuple[int, int]]
ATTEMPTS = 5


def store_stamp(folder: Path) -> Stamp:
    """Changes whenever a writer publishes or the store is replaced; costs two system calls."""
    status = (folder / NAME).stat()
    return (status.st_mtime_ns, status.st_ino), snapshot_stamp(folder)


@dataclass(frozen=True)
class View:
    """What was read of a store at one moment; a search holds on to the one it began with."""

    folder: Path
    manifest: Manifest
    snapshot: Snapshot
    approximate: Approximate
    stamp: Stamp | None

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> View:
        snapshot = Snapshot(folder, manifest.layout, manifest.dim)
        return cls(folder, manifest, snapshot, Approximate(folder, manifest), None)

    def renewed(self) -> View:
        """Read the store again; the manifest too, for the folder may hold another store now."""
        for _ in range(ATTEMPTS):
            before = store_stamp(self.folder)
            manifest = Manifest.read(self.folder)
            snapshot = Snapshot(self.folder, manifest.layout, manifest.dim)
            if store_stamp(self.folder) == before:
                # The tables are opened anew only where they are other tables.
                is_same = manifest == self.manifest
                approximate = self.approximate if is_same else Approximate(self.folder, manifest)
                return View(self.folder, manifest, snapshot, approximate, before)
        raise StoreError(f"{self.folder} is being replaced; search again when that is done")
