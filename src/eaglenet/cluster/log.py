"""Objects of a store on object storage: head, chunks of files, log and lease.

Objects cannot be appended to. So a file is stored in chunks, which are immutable objects;
:class:`Head` lists them with their hashes. An append merges the previous ``MERGED_CHUNKS`` if none
is much larger than itself, so that the number of chunks, and how often each byte is written, grow
with the logarithm of the number of appends.

The log is the file with every change to the store, in order. A reader that applies it to an empty
local store gets a copy with the same rows. Clips in the log have a :data:`POINTER` to their
features and thumbnail.

The lease is a small object that the only writer keeps renewing. Clocks of other machines are not
trusted: a process that finds a lease watches it, and if it is not renewed for ``LEASE_SECONDS``,
takes it over by a conditional write, which fails if the holder was faster. A holder that could not
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
from eaglenet.core.untrusted import parse_json
from eaglenet.store.disk import DamageError
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Layout, Manifest
from eaglenet.store.object_storage import (
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
    Source,
    SourceLines,
    SourceWindows,
)

HEAD = "store.json"
PARTS = ("log", "features", "thumbnails")
FORMAT = 1
MERGED_CHUNKS = 3
"""Chunks that an append merges at a time. With one, there would be half as many chunks, and each
byte would be written and read again almost twice as often."""
MERGED_BYTES = 64 * 2**20
"""Size from which chunks are no longer merged."""
THREADS, SPANS_PER_CALL = 8, 16
"""Threads that read spans, and spans per call. The library makes up to ten requests of a call in
parallel."""


@dataclass(frozen=True)
class Chunk:
    """Object with the bytes from ``start`` to ``end`` of a file."""

    name: str
    start: int
    end: int
    hash: str

    def read(self, folder: ObjectFolder) -> bytes:
        """Return the content; raise ``DamageError`` if its hash is wrong."""
        content, _ = folder.read(self.name)
        if len(content) != self.end - self.start or _hash(content) != self.hash:
            raise damaged_object(folder, self.name)
        return content


Chunks = tuple[Chunk, ...]


def damaged_object(folder: ObjectFolder, name: str) -> DamageError:
    return DamageError(
        f"{folder.url}/{name} is damaged (wrong checksum). Repair the store with: "
        f"eaglenet store repair --store {shell_quote(folder.url)}"
    )


def length_of(chunks: Chunks) -> int:
    return chunks[-1].end if chunks else 0


def append(folder: ObjectFolder, part: str, chunks: Chunks, content: bytes) -> Chunks:
    """Append content to a file and return its chunks; a chunk begins where an append began."""
    if not content:
        return chunks
    earlier_chunks = list(chunks)
    while len(earlier_chunks) >= MERGED_CHUNKS:
        last = earlier_chunks[-MERGED_CHUNKS:]
        if any(chunk.end - chunk.start > min(MERGED_BYTES, 2 * len(content)) for chunk in last):
            break
        content = b"".join([*(chunk.read(folder) for chunk in last), content])
        del earlier_chunks[-MERGED_CHUNKS:]
    start = length_of(tuple(earlier_chunks))
    end = start + len(content)
    name = f"{part}/{start:014d}-{end:014d}-{secrets.token_hex(4)}"
    folder.write(name, content)
    return (*earlier_chunks, Chunk(name, start, end, _hash(content)))


def read_spans(
    folder: ObjectFolder, chunks: Chunks, spans: Sequence[tuple[int, int]]
) -> list[bytes]:
    """Return spans of bytes of a file; start and end of a span are in the same chunk."""
    starts = [chunk.start for chunk in chunks]
    by_chunk: dict[int, list[int]] = {}
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        start, end = spans[index]
        if start < end:
            by_chunk.setdefault(bisect_right(starts, start) - 1, []).append(index)
    calls = [
        (chunks[number], indices[first : first + SPANS_PER_CALL])
        for number, indices in by_chunk.items()
        for first in range(0, len(indices), SPANS_PER_CALL)
    ]
    results = [b""] * len(spans)

    def read(call: tuple[Chunk, list[int]]) -> None:
        chunk, indices = call
        ranges = [
            (spans[index][0] - chunk.start, spans[index][1] - chunk.start) for index in indices
        ]
        for index, content in zip(indices, folder.read_ranges(chunk.name, ranges), strict=True):
            results[index] = content

    if len(calls) == 1:
        read(calls[0])
    elif calls:
        with ThreadPoolExecutor(min(THREADS, len(calls))) as pool:
            list(pool.map(read, calls))
    return results


@dataclass(frozen=True)
class Head:
    """Content of ``store.json``: the manifest of a store, and the chunks of its files.

    id: identifies the files; changes when they are rewritten.
    version: number of operations ever appended, including those before a rewrite.
    is_finished: True if nothing was stored since the last ``finish``.
    tag: tag of the object from which this was read.
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
            values = parse_json(content)
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
                f"{folder.url}/{HEAD} is damaged, and the store cannot be read without it. Restore "
                "an earlier version of this object, or index the videos into a new --store"
            ) from error

    def write(self, folder: ObjectFolder) -> Head:
        """Replace the object that this was read from; fail if another writer was faster."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "id": self.id,
            "version": self.version,
            "manifest": self.manifest.to_json(),
            "parts": {part: [asdict(chunk) for chunk in self.parts[part]] for part in PARTS},
            "is_finished": self.is_finished,
            "nonce": secrets.token_hex(8),  # Makes the content unique: see ObjectFolder.write_if.
        }
        content = json.dumps({**values, "checksum": _checksum(values)}).encode()
        return replace(self, tag=folder.write_if(HEAD, content, self.tag))

    @property
    def names(self) -> set[str]:
        """Names of all objects of this version."""
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
"""Index of the features of a clip in their file, offset of its thumbnail, and checksums."""
POINTER_LAYOUT = Layout(POINTER)
FRAME = struct.Struct("<QI")
"""Length and checksum before each operation."""


@dataclass(frozen=True)
class SetHubness:
    """Operation that replaces or removes the hubness bank."""

    bank: HubnessBank | None


@dataclass(frozen=True)
class Finish:
    """Operation that removes unneeded clips and reclaims space, as ``Writer.finish`` does."""


Operation = Changes | SetHubness | Finish


def encode(operation: Operation) -> bytes:
    """Encode an operation for the log: length, checksum, and arrays with a JSON header."""
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
    """Yield operations with the offsets of their ends; raise ``ValueError`` if invalid."""
    start = 0
    while start < len(content):
        try:
            size, checksum = FRAME.unpack_from(content, start)
            end = start + FRAME.size + size
            body = content[start + FRAME.size : end]
            if len(body) != size or zlib.crc32(body) != checksum:
                raise ValueError("an operation has a wrong checksum")
            operation = _operation(body)
        except (struct.error, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        yield end, operation
        start = end


def _operation(body: bytes) -> Operation:
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        header = parse_json(zlib.decompress(arrays["header"].tobytes()))
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
    """Right to write to a store, until it is released or another process takes it over."""

    def __init__(self, folder: ObjectFolder) -> None:
        self.folder = folder
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._tag = ""
        self._renewal_time = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def take(self) -> None:
        """Take the lease, or raise an error that names its holder."""
        first_tag: str | None = None
        watch_start = 0.0
        while True:
            tag: str | None
            try:
                content, tag = self.folder.read(LEASE)
            except MissingObjectError:
                content, tag = b"", None
            if tag is not None and tag != first_tag:
                if first_tag is not None:
                    raise self._held_error(content)  # Its holder has renewed it.
                first_tag, watch_start = tag, time.monotonic()
                logger.warning(
                    "%s: checking whether %s is alive", self.folder.url, _holder(content)
                )
            if tag is None or time.monotonic() - watch_start >= LEASE_SECONDS:
                break
            time.sleep(min(1.0, LEASE_SECONDS / 20))
        self._renewal_time = time.monotonic()
        try:
            self._tag = self.folder.write_if(LEASE, self._content(), tag)
        except ChangedObjectError:
            raise self._held_error(self.folder.read(LEASE)[0]) from None
        self._thread.start()

    def _held_error(self, content: bytes) -> StoreLockedError:
        return StoreLockedError(
            f"{self.folder.url} is being written to by {_holder(content)}; wait for it to finish. "
            "Searching still works"
        )

    def _content(self) -> bytes:
        # The nonce makes the content unique: see ObjectFolder.write_if.
        return json.dumps({"holder": self._holder, "nonce": secrets.token_hex(8)}).encode()

    def _renew(self) -> None:
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
                logger.warning("%s; renewing the lease later", error)

    def require(self) -> None:
        """Raise an error unless this process certainly holds the lease."""
        if time.monotonic() - self._renewal_time > LEASE_SECONDS / 2:
            raise StoreError(
                f"{self.folder.url}/{LEASE} could not be renewed, or another writer took it; all "
                "reported progress is saved. Run the same command again to continue"
            )

    def release(self) -> None:
        """Release the lease, so that other writers need not wait."""
        self._stop.set()
        # A renewal in progress would change the tag, and the lease would seem that of another.
        self._thread.join(LEASE_SECONDS)
        try:
            if self.folder.tag(LEASE) == self._tag:
                self.folder.remove([LEASE])
        except ObjectError as error:
            logger.warning("%s; the next writer will wait %.0f s", error, LEASE_SECONDS)


def _holder(content: bytes) -> str:
    try:
        return f"another eaglenet ({parse_json(content)['holder']})"
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
