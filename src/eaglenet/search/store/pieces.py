"""A file that only grows, as objects: every publication adds a piece, small ones are merged.

Objects cannot be appended to. So ``records-3.bin`` lies in pieces, each an object that is never
written again; a list of them, with a hash of each, is published with the snapshot. A piece that is
not much smaller than the one before it is merged with it, so there are few of them and a byte is
written a logarithmic number of times.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from eaglenet.core.object_storage import ObjectError, ObjectFolder
from eaglenet.search.store.byte_sources import Span

LARGE = 64 * 2**20
"""Bytes from which on a piece is not merged any more."""


@dataclass(frozen=True)
class Piece:
    """An object with the bytes from ``start`` up to ``end`` of a file."""

    name: str
    start: int
    end: int
    check: str

    def read(self, folder: ObjectFolder) -> bytes:
        """Its content, compared with its hash."""
        content, _ = folder.read(self.name)
        if len(content) != self.end - self.start or _check(content) != self.check:
            raise ObjectError(f"{folder.url}/{self.name}: it is not as it was written")
        return content


Pieces = tuple[Piece, ...]


def to_json(pieces: Pieces) -> list[dict[str, Any]]:
    return [asdict(piece) for piece in pieces]


def from_json(values: Sequence[dict[str, Any]]) -> Pieces:
    """Raises ``ValueError`` or ``TypeError`` where they do not follow each other."""
    pieces = tuple(Piece(**value) for value in values)
    place = 0
    for piece in pieces:
        if piece.start != place or piece.end <= piece.start:
            raise ValueError(f"pieces do not follow each other at {piece.name!r:.100}")
        place = piece.end
    return pieces


def length_of(pieces: Pieces) -> int:
    return pieces[-1].end if pieces else 0


def add(folder: ObjectFolder, name: str, pieces: Pieces, content: bytes) -> Pieces:
    """Upload what was appended to the file ``name``; gives the pieces it has now."""
    if not content:
        return pieces
    start, kept = length_of(pieces), list(pieces)
    while kept:
        last = kept[-1]
        size = last.end - last.start
        if size > LARGE or size > 2 * len(content):
            break
        content = last.read(folder) + content
        start = last.start
        kept.pop()
    for first in range(0, len(content), LARGE):
        part = content[first : first + LARGE]
        begin, end = start + first, start + first + len(part)
        stored_name = f"snapshot/{name}/{begin:014d}-{end:014d}-{secrets.token_hex(4)}"
        folder.write(stored_name, part)
        kept.append(Piece(stored_name, begin, end, _check(part)))
    return tuple(kept)


def bring(folder: ObjectFolder, pieces: Pieces, path: Path) -> None:
    """Make the local file ``path`` hold these pieces; what it holds already is kept.

    The file is only ever appended to under one name, as the one it is a copy of.
    """
    length = length_of(pieces)
    with path.open("r+b" if path.exists() else "w+b") as stream:
        have = min(os.fstat(stream.fileno()).st_size, length)
        for piece in pieces:
            if piece.end > have:
                _put(stream, piece, piece.read(folder), have)
                have = piece.end
        stream.flush()
        os.fsync(stream.fileno())


def _put(stream: BinaryIO, piece: Piece, content: bytes, have: int) -> None:
    stream.seek(max(have, piece.start))
    stream.write(content[max(have, piece.start) - piece.start :])


class RemoteBytes:
    """Reads stretches of a file in pieces, without a copy of it."""

    def __init__(self, folder: ObjectFolder, pieces: Pieces) -> None:
        self.folder = folder
        self.pieces = pieces
        self._starts = [piece.start for piece in pieces]

    def read_into(self, spans: Sequence[Span]) -> bool:
        """See ``ByteSource``. A stretch never reaches over more pieces than it must."""
        wanted: dict[int, list[tuple[int, int, memoryview]]] = {}
        for offset, part in spans:
            place = offset
            while place < offset + len(part):
                number = bisect_right(self._starts, place) - 1
                if number < 0 or place >= self.pieces[number].end:
                    return False
                end = min(offset + len(part), self.pieces[number].end)
                target = part[place - offset : end - offset]
                wanted.setdefault(number, []).append((place, end, target))
                place = end
        for number, parts in wanted.items():
            piece = self.pieces[number]
            inside = [(first - piece.start, end - piece.start) for first, end, _ in parts]
            found = self.folder.read_ranges(piece.name, inside)
            for content, (_, _, target) in zip(found, parts, strict=True):
                if len(content) != len(target):
                    return False
                target[:] = content
        return True


def _check(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
