"""Videos on object storage: found by their prefix, fetched to this machine to be read.

What was fetched is kept for the next who reads it (looking at a file and decoding its clips are
apart), in a folder of bounded size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of
from eaglenet.core.files import atomic_write
from eaglenet.core.object_storage import (
    ObjectEntry,
    MissingObjectError,
    ObjectFolder,
    absolute_location,
    is_object_url,
)
from eaglenet.core.platform import cache_folder
from eaglenet.indexing.files import FileVersion, CandidateFile, is_missing_file, version_of
from eaglenet.video.containers import INDEXED_SUFFIXES

KEPT_BYTES = 8 * 2**30
IN_USE_SECONDS = 600.0
"""A fetched file that was asked for so recently is not removed."""
PART = 16 * 2**20


def find_objects(url: str) -> Iterator[CandidateFile]:
    """Videos and photographs under an address, by their names; or the object that has it."""
    folder, count = ObjectFolder(url.rstrip("/")), 0
    for entry in folder.list():
        name = PurePosixPath(entry.url).name
        if not name.startswith(".") and PurePosixPath(name).suffix.lower() in INDEXED_SUFFIXES:
            count += 1
            yield _found(entry)
    if not count:
        try:
            yield _found(_look(url))
        except MissingObjectError:
            raise UsageError(f"{url}: no video has an address that begins with this") from None


def find_listed_files(lines: Iterable[str]) -> Iterator[CandidateFile]:
    """The files of a list, each once; one that is not there is a problem of its own."""
    for line in dict.fromkeys(lines):
        try:
            if is_object_url(line):
                yield _found(_look(line))
                continue
            name = os.path.abspath(os.path.expanduser(line))
            status = os.stat(name)
            yield CandidateFile(name, status.st_size, status.st_mtime_ns)
        except OSError as error:
            yield CandidateFile(line, 0, 0, error.strerror or str(error))


def read_list(path: Path) -> list[str]:
    """Paths and addresses, one a line; empty lines and those that begin with # are left out."""
    try:
        text = untrusted.read_text(path, untrusted.MAX_ANNOTATIONS)
    except (OSError, ValueError) as error:
        raise UsageError(f"--files {path}: cannot be read ({cause_of(error)})") from error
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def parents_of(lines: Iterable[str]) -> list[str]:
    """The folders that files of a list lie in."""
    return list(
        dict.fromkeys(
            line.rpartition("/")[0] if is_object_url(line) else os.path.dirname(absolute_location(line))
            for line in lines
        )
    )


def current_version(path: str) -> FileVersion:
    """:func:`version_of` for files and objects."""
    if not is_object_url(path):
        return version_of(path)
    entry = _look(path)
    return zlib.crc32(entry.etag.encode()), entry.size, _nanoseconds(entry), 0


def is_missing(path: str) -> bool:
    """:func:`is_missing_file` for files and objects."""
    if not is_object_url(path):
        return is_missing_file(path)
    try:
        _look(path)
    except MissingObjectError:
        return True
    except OSError:
        return False
    return False


def local_path(path: str) -> str:
    """A path of this machine with the content of a file or object."""
    return str(_fetched(path)) if is_object_url(path) else path


def _found(entry: ObjectEntry) -> CandidateFile:
    return CandidateFile(entry.url, entry.size, _nanoseconds(entry))


def _nanoseconds(entry: ObjectEntry) -> int:
    return round(entry.modified.timestamp() * 1e9)


@lru_cache(maxsize=64)
def _bucket(url: str) -> ObjectFolder:
    return ObjectFolder(url)


def _split(url: str) -> tuple[ObjectFolder, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    return _bucket(f"{scheme}://{bucket}"), name


def _look(url: str) -> ObjectEntry:
    folder, name = _split(url)
    return folder.look(name)


def _fetched(url: str) -> Path:
    entry = _look(url)
    folder, name = _split(url)
    key = hashlib.blake2b(f"{url} {entry.etag}".encode(), digest_size=16).hexdigest()
    copy = cache_folder() / "videos" / f"{key}{PurePosixPath(name).suffix}"
    if copy.exists() and copy.stat().st_size == entry.size:
        os.utime(copy)
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    _make_room(copy.parent, entry.size)
    with atomic_write(copy) as partial, partial.open("wb") as stream:
        for start in range(0, entry.size, PART):
            end = min(start + PART, entry.size)
            stream.write(folder.read_ranges(name, [(start, end)])[0])
    return copy


def _make_room(folder: Path, needed: int) -> None:
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # Another process made room too.
            if path.is_file():
                files.append((path, path.stat()))
    total = sum(status.st_size for _, status in files) + needed
    for path, status in sorted(files, key=lambda pair: pair[1].st_mtime):
        if total <= KEPT_BYTES or time.time() - status.st_mtime < IN_USE_SECONDS:
            return
        path.unlink(missing_ok=True)
        total -= status.st_size
