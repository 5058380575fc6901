"""Objects of a store on object storage: its head, the chunks of its files, its log and its lease.

An object cannot be appended to. So a file is kept in chunks, each an object that is never written
again; :class:`Head` lists them with a hash of each. A chunk that is not much smaller than the one
before it is merged with it: there are few of them, and a byte is written a logarithmic number of
times.

The log is the file with every change to the store, in the order it was made. A reader that applies
it to an empty local store has a copy with the same rows. In place of features and thumbnails, clips
in the log have a :data:`POINTER` to them.

The lease is a small object that the one writer keeps renewing. No clock of another machine is
trusted. A process that finds a lease watches it. If it is not renewed for ``LEASE_SECONDS``, it is
taken over by a conditional write, which fails if the holder was faster. A holder that could not
renew it for half that time stops writing.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np

from eaglenet.core.errors import StoreError, StoreLockedError, shell_quote
from eaglenet.core.object_storage import (
    ChangedObjectError,
    MissingObjectError,
    ObjectError,
    ObjectFolder,
)
from eaglenet.store.disk import DamageError
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Layout, Manifest
from eaglenet.store.records import (
    Changes,
    ClipBatch,
    IndexedFile,
    Line,
    Source,
    SourceLines,
    SourceWindows,
)

HEAD = "store.json"
PARTS = ("log", "features", "thumbnails")
FORMAT = 1
MERGED_BYTES = 64 * 2**20
"""Chunks of this size are not merged any more."""
REQUESTS = 8
"""Chunks that are read at the same time."""


@dataclass(frozen=True)
class Chunk:
    """An object with the bytes from ``start`` to ``end`` of a file."""

    name: str
    start: int
    end: int
    hash: str

    def read(self, folder: ObjectFolder) -> bytes:
        """Content, compared with its hash."""
        content, _ = folder.read(self.name)
        if len(content) != self.end - self.start or _hash(content) != self.hash:
            raise damaged_object(folder, self.name)
        return content


Chunks = tuple[Chunk, ...]


def damaged_object(folder: ObjectFolder, name: str) -> DamageError:
    return DamageError(
        f"{folder.url}/{name} is damaged: it is not as it was written. Repair the store with: "
        f"eaglenet store repair --store {shell_quote(folder.url)}"
    )


def length_of(chunks: Chunks) -> int:
    return chunks[-1].end if chunks else 0


def append(folder: ObjectFolder, part: str, chunks: Chunks, content: bytes) -> Chunks:
    """Upload what was appended to a file; returns its chunks. Each begins where an append did."""
    if not content:
        return chunks
    rest = list(chunks)
    while rest and rest[-1].end - rest[-1].start <= min(MERGED_BYTES, 2 * len(content)):
        content = rest.pop().read(folder) + content
    start = length_of(tuple(rest))
    end = start + len(content)
    name = f"{part}/{start:014d}-{end:014d}-{secrets.token_hex(4)}"
    folder.write(name, content)
    return (*rest, Chunk(name, start, end, _hash(content)))


def read_spans(
    folder: ObjectFolder, chunks: Chunks, spans: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Bytes of a file, each from a start up to an end that is in the same chunk."""
    starts = [chunk.start for chunk in chunks]
    by_chunk: dict[int, list[int]] = {}
    for index, (start, end) in enumerate(spans):
        if start == end:
            continue
        by_chunk.setdefault(bisect_right(starts, start) - 1, []).append(index)
    results = [b""] * len(spans)

    def read(number: int) -> None:
        chunk, indices = chunks[number], by_chunk[number]
        inside = [
            (spans[index][0] - chunk.start, spans[index][1] - chunk.start) for index in indices
        ]
        for index, content in zip(indices, folder.read_ranges(chunk.name, inside), strict=True):
            results[index] = content

    if len(by_chunk) == 1:
        read(next(iter(by_chunk)))
    elif by_chunk:
        with ThreadPoolExecutor(min(REQUESTS, len(by_chunk))) as pool:
            list(pool.map(read, by_chunk))
    return results


@dataclass(frozen=True)
class Head:
    """The one object that changes: the manifest of a store, and the chunks of its files.

    id: another one means that the files were written again from the start. version: number of
    operations in the log, over all ids. is_finished: nothing was stored since the last ``finish``.
    tag: of the object that this was read from.
    """

    id: str
    version: int
    manifest: Manifest
    parts: Mapping[str, Chunks] = field(default_factory=lambda: dict.fromkeys(PARTS, ()))
    is_finished: bool = True
    tag: str | None = None

    @classmethod
    def read(cls, folder: ObjectFolder) -> Head:
        content, tag = folder.read(HEAD)
        try:
            values = json.loads(content)
            checksum = values.pop("checksum")
            if checksum != _checksum(values) or values["format"] != FORMAT:
                raise ValueError("checksum")
            parts = {
                part: tuple(Chunk(**chunk) for chunk in values["parts"][part]) for part in PARTS
            }
            manifest = Manifest.from_json(values["manifest"])
            return cls(values["id"], values["version"], manifest, parts, values["is_finished"], tag)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamageError(
                f"{folder.url}/{HEAD} is damaged, and everything is found through it. Restore an "
                "earlier version of this object, or index the videos into a new --store"
            ) from error

    def write(self, folder: ObjectFolder) -> Head:
        """Replace the object this was read from; fails if another writer was faster."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "id": self.id,
            "version": self.version,
            "manifest": self.manifest.to_json(),
            "parts": {part: [asdict(chunk) for chunk in self.parts[part]] for part in PARTS},
            "is_finished": self.is_finished,
            "nonce": secrets.token_hex(8),  # Never the same twice: see ObjectFolder.write_if.
        }
        content = json.dumps({**values, "checksum": _checksum(values)}).encode()
        return replace(self, tag=folder.write_if(HEAD, content, self.tag))

    @property
    def names(self) -> set[str]:
        """Every object this version needs."""
        return {chunk.name for chunks in self.parts.values() for chunk in chunks}


def new_id() -> str:
    return secrets.token_hex(8)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _checksum(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


POINTER = np.dtype(
    [
        ("record", "<i8"),
        ("features_checksum", "<u4"),
        ("thumbnail_start", "<i8"),
        ("thumbnail_size", "<u4"),
        ("thumbnail_checksum", "<u4"),
    ]
)
"""Index of a clip's record in the file of features, and offset of its thumbnail in theirs."""
POINTER_LAYOUT = Layout(POINTER)
FRAME = struct.Struct("<QI")
"""Length and checksum before each operation."""


@dataclass(frozen=True)
class SetHubness:
    bank: HubnessBank | None


@dataclass(frozen=True)
class Finish:
    pass


Operation = Changes | SetHubness | Finish


def encode(operation: Operation) -> bytes:
    header: dict[str, Any] = {"kind": type(operation).__name__}
    arrays: dict[str, Any] = {}
    if isinstance(operation, SetHubness) and operation.bank is not None:
        bank = operation.bank
        header["bank"] = [bank.source, bank.weight, bank.scale, list(bank.texts)]
        arrays["vectors"] = bank.vectors
    elif isinstance(operation, Changes):
        header |= {
            "files": [asdict(file) for file in operation.files],
            "removed_files": list(operation.removed_files),
            "transcripts": [
                [asdict(each.source), [astuple(line) for line in each.lines], each.keep_until]
                for each in operation.transcripts
            ],
            "removed_sources": list(operation.removed_sources),
            "windows": [[each.key, each.encoder] for each in operation.windows],
        }
        if operation.clips:
            batch = ClipBatch.concatenate(operation.clips)
            header |= {"keys": batch.keys, "keyframe_keys": sorted(batch.keyframe_keys)}
            arrays = {"starts": batch.starts, "ends": batch.ends, "vectors": batch.vectors}
            arrays["pointers"] = batch.features
        for number, each in enumerate(operation.windows):
            arrays[f"windows_{number}"] = np.stack([each.first_lines, each.num_lines])
            arrays[f"meanings_{number}"] = np.asarray(each.vectors, np.float32)
    text = np.frombuffer(zlib.compress(json.dumps(header).encode()), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, header=text, **arrays)
    body = buffer.getvalue()
    return FRAME.pack(len(body), zlib.crc32(body)) + body


def decode(content: bytes) -> Iterator[tuple[int, Operation]]:
    """Operations, each with the offset of its end; raises ``ValueError`` for anything else."""
    start = 0
    while start < len(content):
        try:
            size, checksum = FRAME.unpack_from(content, start)
            end = start + FRAME.size + size
            body = content[start + FRAME.size : end]
            if len(body) != size or zlib.crc32(body) != checksum:
                raise ValueError("an operation is not as it was written")
            operation = _operation(body)
        except (struct.error, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        yield end, operation
        start = end


def _operation(body: bytes) -> Operation:
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        header = json.loads(zlib.decompress(arrays["header"].tobytes()))
        if header["kind"] == "Finish":
            return Finish()
        if header["kind"] == "SetHubness":
            if "bank" not in header:
                return SetHubness(None)
            source, weight, scale, texts = header["bank"]
            return SetHubness(HubnessBank(source, arrays["vectors"], weight, scale, tuple(texts)))
        clips = []
        if "keys" in header:
            keys = [(content, number) for content, number in header["keys"]]
            names = ("starts", "ends", "vectors", "pointers")
            starts, ends, vectors, pointers = (arrays[name] for name in names)
            keyframe_keys = frozenset((key[0], key[1]) for key in header["keyframe_keys"])
            thumbnails = [b""] * len(keys)
            clips = [ClipBatch(keys, starts, ends, vectors, pointers, thumbnails, keyframe_keys)]
        windows = []
        for number, ((content, kind, path), encoder) in enumerate(header["windows"]):
            lines, meanings = arrays[f"windows_{number}"], arrays[f"meanings_{number}"]
            key = content, kind, path
            windows.append(SourceWindows(key, encoder, lines[0], lines[1], meanings))
    return Changes(
        clips,
        [IndexedFile(**{**file, "tags": tuple(file["tags"])}) for file in header["files"]],
        header["removed_files"],
        [
            SourceLines(Source(**source), [Line(*line) for line in lines], keep_until)
            for source, lines, keep_until in header["transcripts"]
        ],
        [(content, kind, path) for content, kind, path in header["removed_sources"]],
        windows,
    )


logger = logging.getLogger(__name__)

LEASE = "writer.lease"
LEASE_SECONDS = 30.0


class Lease:
    """Held by this process until it is released, or taken over by another."""

    def __init__(self, folder: ObjectFolder) -> None:
        self.folder = folder
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._tag = ""
        self._renewal_time = 0.0
        self._stop = threading.Event()

    def take(self) -> None:
        """Take the lease, or raise an error that names its holder."""
        first_tag: str | None = None
        since = 0.0
        while True:
            tag: str | None
            try:
                content, tag = self.folder.read(LEASE)
            except MissingObjectError:
                content, tag = b"", None
            if tag is not None and tag != first_tag:
                if first_tag is not None:
                    raise self._held_error(content)  # It was renewed while we watched.
                first_tag, since = tag, time.monotonic()
                logger.warning(
                    "%s: checking whether %s is alive", self.folder.url, _holder(content)
                )
            if tag is None or time.monotonic() - since >= LEASE_SECONDS:
                break
            time.sleep(min(1.0, LEASE_SECONDS / 20))
        self._renewal_time = time.monotonic()
        try:
            self._tag = self.folder.write_if(LEASE, self._content(), tag)
        except ChangedObjectError:
            raise self._held_error(self.folder.read(LEASE)[0]) from None
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def _held_error(self, content: bytes) -> StoreLockedError:
        return StoreLockedError(
            f"{self.folder.url} is being written to by {_holder(content)}; wait for it to finish. "
            "Searching still works"
        )

    def _content(self) -> bytes:
        # Never the same twice: see ObjectFolder.write_if.
        return json.dumps({"holder": self._holder, "nonce": secrets.token_hex(8)}).encode()

    def _keep(self) -> None:
        while not self._stop.wait(LEASE_SECONDS / 6):
            start = time.monotonic()
            try:
                self._tag = self.folder.write_if(LEASE, self._content(), self._tag)
                self._renewal_time = start
            except (ChangedObjectError, MissingObjectError):
                self._renewal_time = -LEASE_SECONDS
                logger.warning("%s: another writer took the lease", self.folder.url)
                return
            except ObjectError as error:
                logger.warning("%s; the lease is renewed later", error)

    def require(self) -> None:
        """Raise an error unless this process certainly holds the lease."""
        if time.monotonic() - self._renewal_time > LEASE_SECONDS / 2:
            raise StoreError(
                f"{self.folder.url}/{LEASE} could not be renewed, or another writer took it; what "
                "was reported as done is safe. Run the same command again to continue"
            )

    def release(self) -> None:
        """Let other writers in at once."""
        self._stop.set()
        try:
            if self.folder.tag(LEASE) == self._tag:
                self.folder.remove([LEASE])
        except ObjectError as error:
            logger.warning("%s; the next writer will wait %.0f s", error, LEASE_SECONDS)


def _holder(content: bytes) -> str:
    try:
        return f"another eaglenet ({json.loads(content)['holder']})"
    except (ValueError, KeyError, TypeError):
        return "another eaglenet"


@contextmanager
def hold_lease(folder: ObjectFolder) -> Iterator[Lease]:
    lease = Lease(folder)
    lease.take()
    try:
        yield lease
    finally:
        lease.release()
