"""Files that only grow, as objects: every commit adds a chunk, small chunks are merged.

An object cannot be appended to. So a file is kept in chunks, each an object that is never written
again; :class:`Head` lists them with a hash of each. A chunk that is not much smaller than the one
before it is merged with it: there are few of them, and a byte is written a logarithmic number of
times.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from eaglenet.core.errors import shell_quote
from eaglenet.core.object_storage import ObjectFolder
from eaglenet.store.disk import DamageError
from eaglenet.store.manifest import Manifest

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
