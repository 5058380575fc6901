"""A store on object storage: the same parts as in a folder, with a lease in the place of the lock.

manifest.json               what the store was made with
bank-CHECK.npz              sentences that level its clips; not in every store
clips.lance, files.lance    the durable tables; Lance writes each version in one step
words.lance, sources.lance  what is said and written
snapshot/pieces.json        which version is searched, and of which objects it is made
snapshot/NAME/...           pieces of the files that only grow (see ``pieces``)
snapshot/rows-V..., files-V...
writer.lease                renewed by the one writer

A reader keeps the vectors, codes, rows and files of the version it searches in a local folder,
compared with their hashes; records and thumbnails are read from the objects for the hits alone.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import secrets
import tempfile
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from eaglenet.core.errors import StoreError, UnreachableError, shell_quote, store_option
from eaglenet.core.object_storage import (
    MissingObjectError,
    ObjectError,
    ObjectFolder,
    storage_options,
)
from eaglenet.search.store import publishing
from eaglenet.search.store.cache import SnapshotCache
from eaglenet.search.store.checks import sealed, unsealed
from eaglenet.search.store.durability import LARGEST, VERSIONS
from eaglenet.search.store.hub_bank import HubBank, lost_bank, read_bank
from eaglenet.search.store.lease import Lease, held_lease
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.pieces import Pieces, RemoteBytes, add, length_of, to_json
from eaglenet.search.store.published import PUBLISHED, Published
from eaglenet.search.store.snapshot import CURRENT, Snapshot
from eaglenet.search.store.tables import ClipStore
from eaglenet.search.store.words import WordIndex

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
WORD_TABLES = ("words.lance", "sources.lance")
GROWING = ("vectors-{}.f32", "records-{}.bin", "thumbnails-{}.bin", "codes-{}.bits")
FRESH_SECONDS = 2.0
"""For which what was seen of the store is taken as it is now: a look costs two requests."""


class StoreBucket:
    """See :class:`eaglenet.search.store.base.Store`."""

    def __init__(
        self, folder: ObjectFolder, manifest: Manifest, lease: Lease | None = None
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self._lease = lease
        self._lock = threading.Lock()
        self._stamp: tuple[float, Hashable] | None = None
        self._words: tuple[float, int | None] | None = None

    @property
    def location(self) -> str:
        return self.folder.url

    @property
    def is_searched(self) -> bool:
        with _store_errors():
            try:
                self.folder.tag(PUBLISHED)
            except MissingObjectError:
                return False
            return True

    @classmethod
    def require_room(cls, location: str) -> None:
        cls.exists(location)  # says where it cannot be reached

    @classmethod
    def exists(cls, location: str) -> bool:
        with _store_errors():
            try:
                ObjectFolder(location).tag(MANIFEST)
            except MissingObjectError:
                return False
            return True

    @classmethod
    def open(cls, location: str) -> Self:
        folder = ObjectFolder(location)
        with _store_errors():
            try:
                content, _ = folder.read(MANIFEST)
            except MissingObjectError:
                raise StoreError(
                    f"no store at {folder.url}; make one with: eaglenet index PATH"
                    f"{store_option(folder.url)}"
                ) from None
        return cls(folder, Manifest.from_bytes(content, f"{folder.url}/{MANIFEST}"))

    @classmethod
    @contextmanager
    def create(cls, location: str, wanted: Manifest) -> Iterator[Self]:
        folder = ObjectFolder(location)
        if cls.exists(location):
            # Before the lease, so that a wrong model is told even while another writer works.
            cls.open(location).manifest.require_same(wanted, folder.url)
        with _store_errors(), held_lease(folder) as lease:
            manifest = wanted
            if cls.exists(location):
                stored = cls.open(location).manifest
                stored.require_same(wanted, folder.url)
                manifest = stored.extended_by(wanted)
            store = cls(folder, manifest, lease)
            lease.require()
            folder.write(MANIFEST, manifest.to_bytes())
            yield store

    def bank(self) -> HubBank | None:
        note = self.manifest.hubness
        if note is None:
            return None
        try:
            content = self.folder.read(note.file)[0]
        except MissingObjectError as error:
            raise lost_bank(note, self.location, error) from error
        return read_bank(content, note, self.manifest.dim, self.location)

    def with_bank(self, bank: HubBank | None) -> Self:
        self._require_lease()
        before, note = self.manifest.hubness, None if bank is None else bank.note
        if bank is not None:
            self.folder.write(bank.note.file, bank.content)
        self.manifest = dataclasses.replace(self.manifest, hubness=note)
        self.folder.write(MANIFEST, self.manifest.to_bytes())
        if before is not None and before != note:
            self.folder.remove([before.file])
        return self

    @contextmanager
    def hold(self) -> Iterator[None]:
        with _store_errors(), held_lease(self.folder) as lease:
            self._lease = lease
            try:
                yield
            finally:
                self._lease = None

    def tables(self) -> ClipStore:
        from eaglenet.search.store.lance import LanceStore

        return LanceStore(
            self.folder.url,
            self.manifest.layout,
            self.manifest.dim,
            is_searched=self.is_searched,
            before_writing=self._lease.require if self._lease is not None else None,
            storage=storage_options(self.folder.url),
        )

    def snapshot(self) -> Snapshot:
        """From a local copy of the vectors, rows and files that is brought up to date first."""
        with _store_errors():
            for attempt in range(5):
                try:
                    return self._cached()
                except MissingObjectError as error:
                    # A writer may have published and cleaned up since the list was read.
                    if attempt == 4:
                        raise StoreError(
                            f"{self.location} has no readable snapshot ({error}); rebuild it with: "
                            f"eaglenet store repair --store {shell_quote(self.location)}"
                        ) from error
                    time.sleep(0.2 * attempt)
        raise AssertionError("unreachable")

    def _cached(self) -> Snapshot:
        published = Published.read(self.folder)
        cache = SnapshotCache(self.folder)
        for attempt in (1, 2):
            with cache.filled(published.current, published.files, published.small) as folder:
                try:
                    snapshot = self._open(folder, published)
                    snapshot.check_new_vectors()
                    return snapshot
                except StoreError:
                    if attempt == 2:
                        raise
                    logger.warning("%s is damaged; it is fetched again", folder)
                    cache.drop()
        raise AssertionError("unreachable")

    def _open(self, folder: Path, published: Published) -> Snapshot:
        return Snapshot(
            folder,
            self.manifest.layout,
            self.manifest.dim,
            location=self.location,
            source=lambda name: RemoteBytes(self.folder, published.files.get(name, ())),
        )

    def words_stamp(self) -> Hashable | None:
        """The newest version of the table of words."""
        with self._lock:
            now = time.monotonic()
            if self._words is None or now - self._words[0] > FRESH_SECONDS:
                # Named by their distance from the largest number: the newest comes first.
                found = next(self.folder.list(f"{WORD_TABLES[0]}/{VERSIONS}"), None)
                stem = found.url.rpartition("/")[2].partition(".")[0] if found else ""
                self._words = (now, LARGEST - int(stem) if stem.isdigit() else None)
            return self._words[1]

    def words(self) -> WordIndex | None:
        from eaglenet.search.store.lance_words import LanceWordIndex

        version = self.words_stamp()
        if not isinstance(version, int):
            return None
        return LanceWordIndex(self.folder.url, version, storage_options(self.folder.url))

    def forget_words(self) -> None:
        self._require_lease()
        for table in WORD_TABLES:
            found = [
                entry.url.removeprefix(self.folder.url + "/") for entry in self.folder.list(table)
            ]
            self.folder.remove(found)

    def publish(self, tables: ClipStore, *, anew: bool = False) -> int:
        if self._lease is None:
            raise StoreError(f"{self.location} is not held for writing")
        before: Published | None = None
        with suppress(MissingObjectError, StoreError):
            before = Published.read(self.folder)
        with tempfile.TemporaryDirectory(prefix="eaglenet-publish-") as name:
            folder = Path(name)
            previous = None
            if before is not None:
                with suppress(StoreError, MissingObjectError):
                    previous = None if anew else self._sparse(folder, before)
            if previous is None and before is not None:
                # Names that were used are not used again.
                for pattern in (*GROWING, "rows-{}.npz"):
                    number = before.current["version" if "rows" in pattern else "generation"]
                    (folder / pattern.format(number)).touch()
            bank = self.bank()
            clips = publishing.publish(
                folder, tables, self.manifest.layout, self.manifest.dim, previous, bank
            )
            self._upload(folder, before if previous is not None else None, before)
        self._stamp = None
        return clips

    def _sparse(self, folder: Path, published: Published) -> Snapshot:
        """A folder for the writer to append to: growing files have their length, no content."""
        for name, pieces in published.files.items():
            with (folder / name).open("wb") as stream:
                stream.truncate(length_of(pieces))
        for name, stored_name in published.small.items():
            (folder / name).write_bytes(self.folder.read(stored_name)[0])
        (folder / CURRENT).write_bytes(sealed(_plain(published.current)))
        return self._open(folder, published)

    def _upload(self, folder: Path, base: Published | None, before: Published | None) -> None:
        """``base``: what was appended to; ``before``: what is searched now."""
        current = unsealed(json.loads((folder / CURRENT).read_bytes()))
        if base is not None and current["version"] == base.current["version"]:
            return  # Nothing to show that is not shown.
        files: dict[str, Pieces] = {}
        for pattern in GROWING:
            name = pattern.format(current["generation"])
            if not (folder / name).exists():
                continue  # Made before there were codes.
            pieces = base.files.get(name, ()) if base is not None else ()
            with (folder / name).open("rb") as stream:
                stream.seek(length_of(pieces))
                files[name] = add(self.folder, name, pieces, stream.read())
        small = {}
        for part in ("rows", "files"):
            name = current[part]
            small[name] = f"snapshot/{name}-{secrets.token_hex(4)}"
            self.folder.write(small[name], (folder / name).read_bytes())
        values = {
            "current": _plain(current),
            "files": {name: to_json(pieces) for name, pieces in files.items()},
            "small": small,
            "nonce": secrets.token_hex(8),
        }
        self._require_lease()
        tag = self.folder.write_if(
            PUBLISHED, sealed(values), before.tag if before is not None else None
        )
        self._clean_up(Published(current, files, small, tag), before)

    def _clean_up(self, now: Published, before: Published | None) -> None:
        """Remove objects that neither this version nor the one before it needs."""
        kept = now.names() | (before.names() if before is not None else set())
        found = [
            entry.url.removeprefix(self.folder.url + "/") for entry in self.folder.list("snapshot")
        ]
        self._require_lease()
        self.folder.remove([name for name in found if name not in kept and name != PUBLISHED])

    def _require_lease(self) -> None:
        if self._lease is not None:
            self._lease.require()

    def stamp(self) -> Hashable:
        with self._lock:
            now = time.monotonic()
            if self._stamp is None or now - self._stamp[0] > FRESH_SECONDS:
                found = (self.folder.tag(MANIFEST), self.folder.tag(PUBLISHED))
                self._stamp = (now, found)
            return self._stamp[1]


def _plain(current: dict[str, Any]) -> dict[str, Any]:
    """Without what sealing adds."""
    return {name: value for name, value in current.items() if name not in ("format", "check")}


@contextmanager
def _store_errors() -> Iterator[None]:
    """What storage refuses, as an error of the store; it names the object."""
    try:
        yield
    except MissingObjectError:
        raise
    except ObjectError as error:
        raise UnreachableError(
            f"{error}; what was reported as done is safe, try again later"
        ) from error
