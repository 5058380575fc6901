"""A store in a folder of this machine: alone knows where its parts lie and how each is opened.

manifest.json               what the store was made with
bank-CHECK.npz              sentences that level its clips; not in every store
clips.lance, files.lance    the durable tables
words.lance, sources.lance  what is said and written, and where that was read; not in every store
tables.json                 the versions of the tables that are on the disk for certain
snapshot/                   what searching reads, derived from the tables
writer.lock                 held by the one writer
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from eaglenet.core import untrusted
from eaglenet.core.errors import StoreError, store_option
from eaglenet.core.files import LockHeldError, hold_lock, write_bytes
from eaglenet.core.platform import sync
from eaglenet.search.store import publishing
from eaglenet.search.store.durability import MARK, marked_version, recover
from eaglenet.search.store.faults import disk_errors
from eaglenet.search.store.hub_bank import FILES, MAX_BYTES, HubBank, lost_bank, read_bank
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import CURRENT, Snapshot
from eaglenet.search.store.tables import ClipStore
from eaglenet.search.store.words import WordIndex

MANIFEST = "manifest.json"
TABLES = ("clips.lance", "files.lance")
WORD_TABLES = ("words.lance", "sources.lance")
"""Made when the first words are found; read again from the videos where they get lost."""
SNAPSHOT = "snapshot"
LOCK = "writer.lock"


@dataclass(frozen=True)
class StoreFolder:
    """See :class:`eaglenet.search.store.base.Store`."""

    folder: Path
    manifest: Manifest

    @property
    def location(self) -> str:
        return str(self.folder)

    @property
    def is_searched(self) -> bool:
        """Whether something was published."""
        return (self.folder / SNAPSHOT / CURRENT).exists()

    @classmethod
    def exists(cls, location: str | Path) -> bool:
        return (_path(location) / MANIFEST).exists()

    @classmethod
    def require_room(cls, location: str | Path) -> None:
        folder = _path(location)
        for part in (folder, *folder.parents):
            if part.exists() and not part.is_dir():
                raise StoreError(f"{part} is a file; give a folder for --store")
        if not folder.exists() or (folder / MANIFEST).exists():
            return
        if (folder / TABLES[0]).exists():
            # The manifest is written before the tables, so it did not get lost in a crash.
            raise StoreError(
                f"{folder} holds a store's tables but no {MANIFEST}, which says with what model "
                "and settings they were made; restore it, or give another --store"
            )
        ours = {LOCK, SNAPSHOT, MARK, *TABLES, *WORD_TABLES}
        if any(
            path.name not in ours and not path.name.startswith(".") for path in folder.iterdir()
        ):
            raise StoreError(f"{folder} holds other files and is not a store; give another --store")

    @classmethod
    def open(cls, location: str | Path) -> Self:
        folder = _path(location)
        try:
            content = (folder / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            with suppress(OSError):
                StoreFolder.require_room(folder)  # else the command below would be refused
            raise StoreError(
                f"no store at {folder}; make one with: eaglenet index PATH{store_option(folder)}"
            ) from None
        except OSError as error:
            raise StoreError(
                f"{folder / MANIFEST} cannot be read ({error}); restore it or index into a new "
                "store"
            ) from error
        return cls(folder, Manifest.from_bytes(content, str(folder / MANIFEST)))

    @classmethod
    @contextmanager
    def create(cls, location: str | Path, wanted: Manifest) -> Iterator[Self]:
        folder = _path(location)
        StoreFolder.require_room(folder)
        if cls.exists(folder):
            # Before the lock, so that a wrong model is told even while another writer works.
            cls.open(folder).manifest.require_same(wanted, str(folder))
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
        with _writer_lock(folder):
            yield cls._with_manifest(folder, wanted)

    @classmethod
    def _with_manifest(cls, folder: Path, wanted: Manifest) -> Self:
        """The store with the roots of both; its manifest is written where it changed."""
        store = cls(folder, wanted)
        if cls.exists(folder):
            stored = cls.open(folder).manifest
            stored.require_same(wanted, str(folder))
            changed = stored.extended_by(wanted)
            store = cls(folder, changed)
            if changed == stored:
                return store
        store.write_manifest()
        return store

    def write_manifest(self) -> None:
        """Replace the file in one step."""
        with disk_errors(self.folder):
            write_bytes(self.folder / MANIFEST, self.manifest.to_bytes())

    def bank(self) -> HubBank | None:
        note = self.manifest.hubness
        if note is None:
            return None
        try:
            content = untrusted.read_bytes(self.folder / note.file, MAX_BYTES)
        except (OSError, ValueError) as error:
            raise lost_bank(note, self.location, error) from error
        return read_bank(content, note, self.manifest.dim, self.location)

    def with_bank(self, bank: HubBank | None) -> Self:
        note = None if bank is None else bank.note
        store = dataclasses.replace(self, manifest=dataclasses.replace(self.manifest, hubness=note))
        with disk_errors(self.folder):
            if bank is not None:
                write_bytes(self.folder / bank.note.file, bank.content)
            store.write_manifest()
            for path in self.folder.glob(FILES):
                if note is None or path.name != note.file:
                    path.unlink(missing_ok=True)
        return store

    @contextmanager
    def hold(self) -> Iterator[None]:
        with _writer_lock(self.folder):
            yield

    def tables(self) -> ClipStore:
        from eaglenet.search.store.lance import LanceStore

        manifest = self.manifest
        return LanceStore(self.folder, manifest.layout, manifest.dim, is_searched=self.is_searched)

    def snapshot(self) -> Snapshot:
        manifest = self.manifest
        return Snapshot(
            self.folder / SNAPSHOT, manifest.layout, manifest.dim, location=self.location
        )

    def words_stamp(self) -> Hashable | None:
        if not (self.folder / WORD_TABLES[0]).is_dir():
            return None
        mark = (self.folder / MARK).stat()
        return mark.st_mtime_ns, mark.st_ino

    def words(self) -> WordIndex | None:
        from eaglenet.search.store.lance_words import LanceWordIndex

        version = marked_version(self.folder, WORD_TABLES[0])
        return LanceWordIndex(self.folder, version) if version else None

    def forget_words(self) -> None:
        for name in WORD_TABLES:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def publish(self, tables: ClipStore, *, anew: bool = False) -> int:
        with disk_errors(self.folder, is_searched=self.is_searched):
            target = self.folder / SNAPSHOT
            target.mkdir(parents=True, exist_ok=True)
            # Readers must not see what a power cut could take away again.
            tables.sync()
            sync(self.folder)
            previous = None
            # Missing or damaged: everything is derived from the tables again.
            with suppress(StoreError):
                previous = None if anew else self.snapshot()
            clips = publishing.publish(
                target, tables, self.manifest.layout, self.manifest.dim, previous, self.bank()
            )
            if anew:
                # Only now: the tables may be what is damaged.
                publishing.remove_others(target, self.snapshot())
            return clips

    def stamp(self) -> Hashable:
        manifest = (self.folder / MANIFEST).stat()
        current = (self.folder / SNAPSHOT / CURRENT).stat()
        return (
            (manifest.st_mtime_ns, manifest.st_ino),
            (current.st_mtime_ns, current.st_ino),
        )


def _path(location: str | Path) -> Path:
    path = Path(str(location).removeprefix("file://"))
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StoreError(f"--store {location}: {error}") from None


@contextmanager
def _writer_lock(folder: Path) -> Iterator[None]:
    """Hold the folder for writing, or say who does."""
    with ExitStack() as held:
        try:
            with disk_errors(folder, is_searched=(folder / MANIFEST).exists()):
                held.enter_context(hold_lock(folder / LOCK, with_folder=True))
                is_searched = (folder / SNAPSHOT / CURRENT).exists()
                recover(folder, TABLES, WORD_TABLES, is_searched=is_searched)
        except LockHeldError as holder:
            raise StoreError(
                f"{folder} is being written to by {holder}; wait for it to finish. "
                "Searching works meanwhile"
            ) from None
        yield
