"""Find videos on object storage and in lists, and download objects to a local cache.

The size of the cache is limited. One download serves both inspecting and decoding a file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of
from eaglenet.core.files import atomic_write
from eaglenet.core.platform import cache_folder, opened_path
from eaglenet.indexing.files import (
    LEADS_OUT,
    CandidateFile,
    FileVersion,
    is_missing_file,
    leads_out,
    version_of,
)
from eaglenet.store.object_storage import (
    MissingObjectError,
    ObjectEntry,
    ObjectFolder,
    absolute_location,
    is_object_url,
)
from eaglenet.store.records import IndexedFile
from eaglenet.video.containers import INDEXED_SUFFIXES
from eaglenet.video.input_file import SharedFile, share_file, share_indexed_file, shared_file

CACHE_BYTES = 8 * 2**30
IN_USE_SECONDS = 600.0
"""Downloads used this recently are not removed."""
CHUNK = 16 * 2**20


def find_objects(url: str) -> Iterator[CandidateFile]:
    """Yield the videos and images under a URL, recognised by suffix, or the object at that URL."""
    folder, count = ObjectFolder(url.rstrip("/")), 0
    for entry in folder.list():
        name = PurePosixPath(entry.url).name
        if not name.startswith(".") and PurePosixPath(name).suffix.lower() in INDEXED_SUFFIXES:
            count += 1
            yield _candidate(entry)
    if not count:
        try:
            # A request for the root of a bucket may succeed, but the root is no object.
            if "/" not in folder.url.partition("://")[2]:
                raise MissingObjectError(url)
            yield _candidate(_entry(url))
        except MissingObjectError:
            raise UsageError(f"{url}: no video or image at or below this address") from None


def find_listed_files(lines: Iterable[str]) -> Iterator[CandidateFile]:
    """Yield the files of a list, each once; a missing one has a problem."""
    for line in dict.fromkeys(lines):
        try:
            if is_object_url(line):
                yield _candidate(_entry(line))
                continue
            name = os.path.abspath(os.path.expanduser(line))
            status = os.stat(name)
            yield CandidateFile(name, status.st_size, status.st_mtime_ns)
        except OSError as error:
            yield CandidateFile(line, 0, 0, error.strerror or str(error))


def read_list(path: Path) -> list[str]:
    """Read paths and addresses, one per line; blank lines and lines starting with # are skipped."""
    try:
        text = untrusted.read_text(path, untrusted.MAX_ANNOTATIONS)
    except (OSError, ValueError) as error:
        raise UsageError(f"--files {path}: cannot read it ({cause_of(error)})") from error
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def parents_of(lines: Iterable[str]) -> list[str]:
    """Return the parent folders of the files of a list."""
    return list(
        dict.fromkeys(
            line.rpartition("/")[0]
            if is_object_url(line)
            else os.path.dirname(absolute_location(line))
            for line in lines
        )
    )


def current_version(path: str) -> FileVersion:
    """Return :func:`version_of` a file, or its equivalent for an object."""
    if not is_object_url(path):
        return version_of(path)
    file = shared_file(path)
    if file is not None:
        file.require_descriptor()
        return file.version or (0, 0, 0, 0)
    return _version(_entry(path))


def _version(entry: ObjectEntry) -> FileVersion:
    return zlib.crc32(entry.etag.encode()), entry.size, _nanoseconds(entry), 0


def is_missing(path: str) -> bool:
    """Return whether there is no such file or object; an unreadable one is not missing."""
    if not is_object_url(path):
        return is_missing_file(path)
    try:
        _entry(path)
    except MissingObjectError:
        return True
    except OSError:
        return False
    return False


def local_path(path: str) -> str:
    """Return a local path with the content of a file or object; download an object."""
    is_remote = is_object_url(path) and shared_file(path) is None
    return str(_download(path)) if is_remote else path


def share(path: str, folders: Sequence[str] = ()) -> SharedFile:
    """Open a file or object for a worker, which cannot open files; an object is downloaded.

    A file in none of ``folders`` (real paths) is refused: it, or a folder above it, may have been
    replaced by a link since it was listed.
    """
    if not is_object_url(path):
        file = share_file(path)
        if not folders or file.descriptor is None:
            return file
        if not leads_out(opened_path(file.descriptor, path), folders):
            return file
        file.close()
        return SharedFile(path, error=PermissionError(errno.EPERM, LEADS_OUT, path))
    try:
        version = _version(_entry(path))
        return replace(share_file(_download(path)), path=path, version=version)
    except OSError as error:
        return SharedFile(path, error=OSError(error.errno, error.strerror or str(error), path))


def share_stored(file: IndexedFile, roots: Sequence[str]) -> SharedFile:
    """Open a file that is in the store; refuse one that has changed, or that a link replaced."""
    if is_object_url(file.path):
        return share(file.path)
    return share_indexed_file(file.path, file.size, file.modified_ns / 1e9, file.content, roots)


def _candidate(entry: ObjectEntry) -> CandidateFile:
    return CandidateFile(entry.url, entry.size, _nanoseconds(entry))


def _nanoseconds(entry: ObjectEntry) -> int:
    return round(entry.last_modified.timestamp() * 1e9)


_open_bucket = lru_cache(maxsize=64)(ObjectFolder)


def _locate(url: str) -> tuple[ObjectFolder, str]:
    """Return the bucket of an object, and its name there."""
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    return _open_bucket(f"{scheme}://{bucket}"), name


def _entry(url: str) -> ObjectEntry:
    bucket, name = _locate(url)
    return bucket.entry(name)


def _download(url: str) -> Path:
    bucket, name = _locate(url)
    entry = bucket.entry(name)
    key = hashlib.blake2b(f"{url} {entry.etag}".encode(), digest_size=16).hexdigest()
    copy = cache_folder() / "videos" / f"{key}{PurePosixPath(name).suffix}"
    if copy.exists() and copy.stat().st_size == entry.size:
        os.utime(copy)
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    _free_space(copy.parent, entry.size)
    with atomic_write(copy) as partial, partial.open("wb") as stream:
        for start in range(0, entry.size, CHUNK):
            end = min(start + CHUNK, entry.size)
            stream.write(bucket.read_ranges(name, [(start, end)])[0])
        # The ranges of an object that was replaced meanwhile belong to two files.
        if bucket.entry(name).etag != entry.etag:
            raise OSError(errno.EBUSY, "the object was replaced while it was downloaded", url)
    return copy


def _free_space(folder: Path, required_bytes: int) -> None:
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # Removed by another process.
            if path.is_file():
                files.append((path, path.stat()))
    total = sum(status.st_size for _, status in files) + required_bytes
    for path, status in sorted(files, key=lambda pair: pair[1].st_mtime):
        if total <= CACHE_BYTES or time.time() - status.st_mtime < IN_USE_SECONDS:
            return
        path.unlink(missing_ok=True)
        total -= status.st_size
