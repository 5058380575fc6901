"""Store on object storage: a log of changes, from which every machine makes a local copy.

::

    store.json        manifest, and the names of the current objects; replaced by every commit
    log/...           changes to clips, files and transcripts, in order (see ``log``)
    features/...      features of the clips, one record each
    thumbnails/...    concatenated JPEG files
    writer.lease      lease of the only writer (see ``log``)

All objects but ``store.json`` and the lease are immutable. A commit uploads objects and then lists
them in ``store.json`` by a conditional write. So it becomes visible as a whole or not at all, and a
writer that lost its lease cannot commit. Readers and writers apply the log to a local store in the
cache folder (see ``mirror``), so that every search reads the same format.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from eaglenet.cluster.log import (
    HEAD,
    PARTS,
    POINTER,
    Chunk,
    Finish,
    Head,
    Lease,
    Operation,
    SetHubness,
    append,
    encode,
    hold_lease,
    length_of,
    new_id,
)
from eaglenet.cluster.mirror import BucketSnapshot, Mirror, MirrorStore, MirrorWriter, Position
from eaglenet.core.errors import StoreError, UnreachableError, shell_join, shell_quote, store_option
from eaglenet.store import transcripts
from eaglenet.store.database import read_bank
from eaglenet.store.disk import DamageError
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.object_storage import (
    SCHEMES,
    ChangedObjectError,
    MissingObjectError,
    ObjectError,
    ObjectFolder,
)
from eaglenet.store.records import (
    Changes,
    ClipBatch,
    IndexedFile,
    Line,
    Repaired,
    Source,
    SourceKey,
    SourceLines,
    Verified,
)
from eaglenet.store.segments import checksums_of
from eaglenet.store.store import STORES

logger = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
"""Seconds for which the tag of ``store.json`` is reused, because reading it takes a request."""
ATTEMPTS = 5
COPY_CLIPS = 4096
COPY_LINES = 10_000
REWRITE_FRACTION = 0.5
"""Fraction of removed clips above which the log and its files are rewritten without them."""

Result = TypeVar("Result")


class BucketStore:
    """Implementation of :class:`eaglenet.store.base.Store` on object storage."""

    def __init__(self, folder: ObjectFolder, head: Head) -> None:
        self.folder = folder
        self.manifest = head.manifest
        self.mirror = Mirror(folder)
        self._local: MirrorStore | None = None
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return self.folder.url

    @classmethod
    def exists(cls, location: str) -> bool:
        return read_head(ObjectFolder(location)) is not None

    @classmethod
    def open(cls, location: str) -> Self:
        folder = ObjectFolder(location)
        head = read_head(folder)
        if head is None:
            raise StoreError(
                f"no store at {folder.url}; create one with: eaglenet index PATH"
                f"{store_option(folder.url)}"
            )
        return cls(folder, head)

    @classmethod
    @contextmanager
    def write(
        cls, location: str, manifest: Manifest | None = None, bank: HubnessBank | None = None
    ) -> Iterator[BucketWriter]:
        folder = ObjectFolder(location)
        if manifest is None or cls.exists(location):
            stored_manifest = cls.open(location).manifest
            if manifest is not None:
                # Checked before the lease is taken, so that it fails even if another writer works.
                stored_manifest.require_same(manifest, folder.url)
        with storage_errors(), hold_lease(folder) as lease:
            head = read_head(folder)
            if head is None:
                assert manifest is not None
                head = Head(new_id(), 0, manifest)
                if bank is not None:
                    head, _ = _append_operation(folder, head, SetHubness(bank))
            elif manifest is not None:
                head.manifest.require_same(manifest, folder.url)
                head = replace(head, manifest=head.manifest.with_roots(manifest.roots))
            # Written even without changes, so that commits of a writer that lost its lease fail.
            yield BucketWriter(folder, head.write(folder), lease)

    def files(self) -> list[IndexedFile]:
        return self._read(lambda local: local.files())

    def snapshot(self) -> BucketSnapshot:
        return self._read(lambda local: local.snapshot())

    def _read(self, read: Callable[[MirrorStore], Result]) -> Result:
        """Read from the local copy of the newest version."""

        def read_copy(head: Head) -> Result:
            with self.mirror.lock(), self.mirror.writer(head) as writer:
                if writer.position.end > length_of(head.parts["log"]):
                    raise MissingObjectError(f"{self.location} changes too often to be read")
                self.mirror.last_read = time.monotonic(), head.tag
                self.manifest = head.manifest
                return read(self._open(head))

        with self._lock:
            try:
                return self._with_newest(read_copy)
            except DamageError:
                self._local = None
                self.mirror.drop_if_idle()
                return self._with_newest(read_copy)

    def _with_newest(self, use: Callable[[Head], Result]) -> Result:
        """Call ``use`` with the newest version; retry if a writer replaced objects meanwhile."""
        with storage_errors():
            for attempt in range(ATTEMPTS):
                head = Head.read(self.folder)
                try:
                    return use(head)
                except MissingObjectError as error:
                    missing_error = error
                    time.sleep(0.2 * attempt)
            raise DamageError(
                f"{missing_error}. Repair the store with: eaglenet store repair --store "
                f"{shell_quote(self.location)}"
            ) from missing_error

    def _open(self, head: Head) -> MirrorStore:
        if self._local is None or self._local.is_replaced:
            self._local = MirrorStore(self.mirror, head)
        self._local.head = head
        return self._local

    def stamp(self) -> Hashable:
        last_read = self.mirror.last_read
        if last_read is None or time.monotonic() - last_read[0] > FRESH_SECONDS:
            last_read = self.mirror.last_read = time.monotonic(), self.folder.tag(HEAD)
        return last_read[1], self.mirror.file_id

    def usage(self) -> dict[str, int]:
        with storage_errors():
            return {
                part: sum(entry.size for entry in self.folder.list(f"{part}/")) for part in PARTS
            }

    def verify(self) -> Verified:
        """Compare every object with its hash, and the local copy with its checksums."""

        def read_objects(head: Head) -> None:
            for chunks in head.parts.values():
                for chunk in chunks:
                    chunk.read(self.folder)

        self._with_newest(read_objects)
        return self._read(lambda local: local.verify())

    @classmethod
    def repair(cls, location: str) -> Repaired:
        with cls.write(location) as writer:
            return writer.repair()


class BucketWriter:
    """Implementation of :class:`eaglenet.store.base.Writer` on object storage."""

    def __init__(self, folder: ObjectFolder, head: Head, lease: Lease) -> None:
        self.folder = folder
        self.head = head
        self.lease = lease
        self.mirror = Mirror(folder)
        self._previous_names: set[str] = set()
        """Objects that only the previous version needs."""

    @property
    def manifest(self) -> Manifest:
        return self.head.manifest

    @property
    def location(self) -> str:
        return self.folder.url

    @contextmanager
    def _copy(self) -> Iterator[MirrorWriter]:
        with storage_errors(), self.mirror.lock(), self.mirror.writer(self.head) as writer:
            yield writer

    def files(self) -> list[IndexedFile]:
        with self._copy() as copy:
            return copy.files()

    def incomplete_contents(self) -> Mapping[str, frozenset[int]]:
        with self._copy() as copy:
            return copy.incomplete_contents()

    def clip_numbers(self, content: str) -> frozenset[int]:
        with self._copy() as copy:
            return copy.clip_numbers(content)

    def keyframe_clips(self) -> Mapping[str, frozenset[int]]:
        with self._copy() as copy:
            return copy.keyframe_clips()

    def sources(self, *, without_windows_of: str | None = None) -> Mapping[SourceKey, Source]:
        with self._copy() as copy:
            return copy.sources(without_windows_of=without_windows_of)

    def lines(self, key: SourceKey) -> list[Line]:
        with self._copy() as copy:
            return copy.lines(key)

    def commit(self, changes: Changes) -> None:
        if changes:
            self._append(changes)

    def set_hubness(self, bank: HubnessBank | None) -> None:
        with self._copy() as copy:
            is_same = read_bank(copy.database, copy.manifest) == bank
        if not is_same:
            self._append(SetHubness(bank))

    def finish(self) -> int:
        if not self.head.is_finished:
            self._append(Finish())
        with self._copy() as copy:
            num_visible = copy.num_visible()
            num_stored = int(copy.database.value("SELECT count(*) FROM clips"))
        total = length_of(self.head.parts["features"]) // self.manifest.layout.dtype.itemsize
        if total > COPY_CLIPS and num_stored < (1 - REWRITE_FRACTION) * total:
            self._rewrite()
        self._remove_unknown()
        return num_visible

    def _append(self, operation: Operation) -> None:
        with storage_errors():
            self.lease.require()
            head, operation = _append_operation(self.folder, self.head, operation)
            with self.mirror.lock(), self.mirror.writer(self.head) as copy:
                position = Position(head.id, length_of(head.parts["log"]))
                copy.apply(operation, position, publish=lambda: self._publish(head))

    def _publish(self, head: Head) -> None:
        """Publish a version, and remove objects that no reader needs."""
        self.lease.require()
        previous_head = self.head
        self.head = head.write(self.folder)
        obsolete = self._previous_names - head.names
        # Readers may still be at the previous version.
        self._previous_names = previous_head.names - head.names
        try:
            self.folder.remove(sorted(obsolete))
        except ObjectError as error:  # The commit succeeded; the next run removes them.
            logger.warning("%s; the next run removes the unused object", error)

    def _remove_unknown(self) -> None:
        """Remove objects of interrupted writers, which no recent version lists."""
        current_names = self.head.names | self._previous_names
        with storage_errors():
            names = [
                entry.url.removeprefix(f"{self.folder.url}/")
                for part in PARTS
                for entry in self.folder.list(f"{part}/")
            ]
            self.lease.require()
            self.folder.remove([name for name in names if name not in current_names])

    def _rewrite(self, damaged_chunks: Mapping[str, Sequence[Chunk]] | None = None) -> list[str]:
        """Write a new log and new files, without removed clips and clips in ``damaged_chunks``.

        Returns the paths of indexed files that are no longer complete; they are left out.
        """
        with storage_errors(), self.mirror.lock(), self.mirror.writer(self.head) as copy:
            snapshot = MirrorStore(self.mirror, self.head).snapshot()
            head = replace(self.head, id=new_id(), parts=dict.fromkeys(PARTS, ()))
            counts: Counter[str] = Counter()
            for operation in _operations_of(copy, snapshot, damaged_chunks or {}, counts):
                head, _ = _append_operation(self.folder, head, operation)
            files = copy.files()
            incomplete = [
                file.path
                for file in files
                if file.status == "done" and counts[file.content] < file.num_clips
            ]
            complete = [file for file in files if file.path not in set(incomplete)]
            head, _ = _append_operation(self.folder, head, Changes(files=complete))
            if not damaged_chunks:
                # Clips of incomplete files stay, so that they need not be encoded again.
                head, _ = _append_operation(self.folder, head, Finish())
            self._publish(head)
        return incomplete

    def repair(self) -> Repaired:
        """Rebuild the local copy; if objects are damaged, rewrite the store without them."""
        damaged_chunks = {part: self._damaged_chunks(part) for part in PARTS}
        with self.mirror.lock():
            self.mirror.drop()
        incomplete: list[str] = []
        if any(damaged_chunks.values()):
            log = tuple(
                chunk for chunk in self.head.parts["log"] if chunk not in damaged_chunks["log"]
            )
            parts = {**self.head.parts, "log": log}
            self.head = replace(self.head, id=new_id(), parts=parts)
            incomplete = self._rewrite(damaged_chunks)
            self._remove_unknown()
        with self._copy() as copy:
            num_files = int(copy.database.value("SELECT count(*) FROM files WHERE status = 'done'"))
            num_lines = int(copy.database.value("SELECT count(*) FROM lines"))
            num_clips = copy.num_visible()
        roots = self.manifest.roots or ("PATH",)
        details = [
            f"{chunk.name} was damaged" for each in damaged_chunks.values() for chunk in each
        ]
        if damaged_chunks["log"]:
            details.append(
                "files that were recorded there must be indexed again: eaglenet index "
                f"{shell_join(roots)} --store {shell_quote(self.location)}"
            )
        return Repaired(num_clips, num_files, num_lines, tuple(sorted(incomplete)), tuple(details))

    def _damaged_chunks(self, part: str) -> list[Chunk]:
        chunks = []
        for chunk in self.head.parts[part]:
            with storage_errors():
                try:
                    chunk.read(self.folder)
                except (DamageError, MissingObjectError):
                    chunks.append(chunk)
        return chunks


def read_head(folder: ObjectFolder) -> Head | None:
    """Return the newest version; None if there is no store."""
    with storage_errors():
        try:
            return Head.read(folder)
        except MissingObjectError:
            return None


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn errors of object storage into errors of the store."""
    try:
        yield
    except MissingObjectError:
        raise
    except ChangedObjectError as error:
        raise StoreError(
            f"{error}; all reported progress is saved. Run the same command again to continue"
        ) from error
    except ObjectError as error:
        raise UnreachableError(
            f"{error}; all reported progress is saved. Try again later"
        ) from error


def _append_operation(
    folder: ObjectFolder, head: Head, operation: Operation
) -> tuple[Head, Operation]:
    """Upload an operation; return the head to publish, and the operation as the log has it."""
    parts = dict(head.parts)
    if isinstance(operation, Changes) and operation.clips:
        batch = ClipBatch.concatenate(operation.clips)
        _require_layout(batch, head.manifest, folder.url)
        itemsize = head.manifest.layout.dtype.itemsize
        records = length_of(parts["features"]) // itemsize
        pointers = _pointers(batch, records, length_of(parts["thumbnails"]))
        contents = {"features": batch.features.tobytes(), "thumbnails": b"".join(batch.thumbnails)}
        for part, content in contents.items():
            parts[part] = append(folder, part, parts[part], content)
        batch = replace(batch, features=pointers, thumbnails=[b""] * len(batch))
        operation = replace(operation, clips=[batch])
    parts["log"] = append(folder, "log", parts["log"], encode(operation))
    head = replace(
        head, version=head.version + 1, parts=parts, is_finished=isinstance(operation, Finish)
    )
    return head, operation


def _require_layout(batch: ClipBatch, manifest: Manifest, location: str) -> None:
    is_same = batch.vectors.shape == (len(batch), manifest.dim)
    if not is_same or batch.features.dtype != manifest.layout.dtype:
        raise StoreError(
            f"the features have another layout than those in {location}; index into a new store"
        )


def _pointers(batch: ClipBatch, first_record: int, thumbnails_start: int) -> NDArray[np.void]:
    pointers = np.zeros(len(batch), POINTER)
    sizes = np.array([len(image) for image in batch.thumbnails], np.int64)
    pointers["record"] = first_record + np.arange(len(batch))
    pointers["features_checksum"] = checksums_of([row.tobytes() for row in batch.features])
    pointers["thumbnail_start"] = thumbnails_start + np.cumsum(sizes) - sizes
    pointers["thumbnail_size"] = sizes
    pointers["thumbnail_checksum"] = checksums_of(batch.thumbnails)
    return pointers


def _operations_of(
    copy: MirrorWriter,
    snapshot: BucketSnapshot,
    damaged_chunks: Mapping[str, Sequence[Chunk]],
    counts: Counter[str],
) -> Iterator[Operation]:
    """Yield operations that recreate the store without its files; count the clips per content.

    Transcript windows are left out; the next index run encodes them again, without decoding.
    """
    bank = read_bank(copy.database, copy.manifest)
    if bank is not None:
        yield SetHubness(bank)
    ids = np.array(
        [number for (number,) in copy.database.rows("SELECT id FROM clips ORDER BY id")], np.int64
    )
    keyframe_ids = {row[0] for row in copy.database.verified_rows("keyframe_clips")}
    for start in range(0, len(ids), COPY_CLIPS):
        batch_ids = ids[start : start + COPY_CLIPS]
        rows = snapshot.rows_of_clips(batch_ids)
        pointers = snapshot.pointers_at(rows)
        starts = pointers["record"] * snapshot.manifest.layout.dtype.itemsize
        is_damaged = _is_inside(starts, damaged_chunks.get("features", ()))
        is_damaged |= _is_inside(pointers["thumbnail_start"], damaged_chunks.get("thumbnails", ()))
        rows = rows[~is_damaged]
        if not len(rows):
            continue
        clips = snapshot.clips(rows)
        keys = [(clip.content, clip.number) for clip in clips]
        from_keyframes = [clip_id in keyframe_ids for clip_id in batch_ids[~is_damaged].tolist()]
        counts.update(clip.content for clip in clips)
        batch = ClipBatch(
            keys=keys,
            starts=np.array([clip.start for clip in clips]),
            ends=np.array([clip.end for clip in clips]),
            vectors=snapshot.vectors_at(rows),
            features=snapshot.features_at(rows),
            thumbnails=snapshot.thumbnails_at(rows),
            keyframe_keys=frozenset(itertools.compress(keys, from_keyframes)),
        )
        yield Changes([batch])
    source_lines: list[SourceLines] = []
    for source_id, source in transcripts.stored_sources(copy.database):
        lines = transcripts.lines_of_source(copy.database, source_id)
        source_lines.append(SourceLines(source, lines))
        if sum(len(each.lines) for each in source_lines) >= COPY_LINES:
            yield Changes(transcripts=source_lines)
            source_lines = []
    if source_lines:
        yield Changes(transcripts=source_lines)


def _is_inside(starts: NDArray[np.int64], chunks: Sequence[Chunk]) -> NDArray[np.bool_]:
    is_inside = np.zeros(len(starts), bool)
    for chunk in chunks:
        is_inside |= (starts >= chunk.start) & (starts < chunk.end)
    return is_inside


for _scheme in SCHEMES:
    STORES.add(_scheme, BucketStore)
