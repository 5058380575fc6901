"""Input files, opened by path or shared with a confined worker as an open descriptor.

A confined worker cannot open files. Its parent opens the file of a request and sends the
descriptor; :func:`use_shared_file` makes the readers of the worker use it for the path of the file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglenet.core.platform import (
    is_below,
    open_beneath,
    open_for_reading,
    read_at,
    read_into,
    split_below,
)
from eaglenet.video.confinement import FileStatus, descriptor_status

Version = tuple[int, int, int, int]
EMPTY_FILE = "the file is empty (0 bytes)"


@dataclass
class SharedFile:
    """An open file for a worker, with the path or URL that names it.

    error: error of opening the file, which readers in the worker raise.
    version: version of an object in object storage; None for a local file, which has a status.
    """

    path: str
    descriptor: int | None = None
    error: OSError | None = None
    version: Version | None = None

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def require_descriptor(self) -> int:
        """Return the descriptor, or raise the error of opening the file."""
        if self.descriptor is None:
            raise self.error or FileNotFoundError(2, "no such file", self.path)
        return self.descriptor

    @property
    def identity(self) -> tuple[str | int, ...]:
        """The path, and values that identify the open file and its current content."""
        if self.descriptor is None:
            return (self.path,)
        return (self.path, *_identity(os.fstat(self.descriptor)))


def share_file(path: str | Path) -> SharedFile:
    """Open a regular file for a worker."""
    name = str(path)
    try:
        descriptor = open_for_reading(name)
    except OSError as error:
        return SharedFile(name, error=OSError(error.errno, error.strerror, name))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return SharedFile(name, error=OSError(22, "not a regular file", name))
    return SharedFile(name, descriptor)


CHANGED = "the file has changed since it was indexed; index its folder again: eaglenet index FOLDER"
MAX_TIME_DIFFERENCE = 1e-5
"""Seconds by which equal modification times may differ after rounding to 64-bit floats."""
MAX_DIGESTS = 1024
_digests: dict[tuple[int, ...], str] = {}
"""Hashes of the files compared last, by device, inode, size and times."""


def share_indexed_file(
    path: str, size: int, mtime: float, content: str, roots: Sequence[str]
) -> SharedFile:
    """Open a file for a worker if it still has the indexed content.

    Users who may write to an indexed folder can replace an indexed file by another one, or by a
    link to a private one. A file with the indexed size and modification time (``mtime``, in
    seconds) that is reached from ``roots`` without a link is accepted. Any other file must have the
    hash ``content``. If the file is refused, the result has an error.
    """
    try:
        descriptor, is_direct = _open_below(path, roots)
    except OSError as error:
        return SharedFile(path, error=OSError(error.errno, error.strerror, path))
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size == size:
        is_untouched = abs(status.st_mtime_ns / 1e9 - mtime) < MAX_TIME_DIFFERENCE
        if (is_direct and is_untouched) or _digest(descriptor, status) == content:
            return SharedFile(path, descriptor)
    os.close(descriptor)
    return SharedFile(path, error=OSError(errno.ESTALE, CHANGED, path))


def _open_below(path: str, roots: Sequence[str]) -> tuple[int, bool]:
    """Return a descriptor, and whether the path below one of ``roots`` has no link."""
    for root in roots:
        # A root that is a file may also have become a link.
        folder = os.path.dirname(path) if path == root else root
        if is_below(path, folder):
            try:
                return open_beneath(os.path.realpath(folder), split_below(path, folder)), True
            except OSError:
                break
    return open_for_reading(path), False


def _digest(descriptor: int, status: os.stat_result) -> str:
    key = _identity(status)
    content = _digests.get(key)  # Not looked up again: another thread may clear the table.
    if content is None:
        with InputFile(os.dup(descriptor), "") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16))
        content = digest.hexdigest()
        if len(_digests) >= MAX_DIGESTS:
            _digests.clear()
        _digests[key] = content
    return content


_current_file: SharedFile | None = None


def use_shared_file(file: SharedFile | None) -> None:
    """Let readers of this process use ``file`` for its path; close the previous file."""
    global _current_file
    if _current_file is not None:
        _current_file.close()
    _current_file = file


def shared_file(path: str | Path) -> SharedFile | None:
    """Return the shared file with this path, if there is one."""
    # Path("s3://bucket/a.mp4") has a single slash.
    return (
        _current_file
        if _current_file is not None and Path(_current_file.path) == Path(path)
        else None
    )


def file_status(path: str | Path) -> os.stat_result | FileStatus:
    """Return the status of a file, like :func:`os.stat`."""
    file = shared_file(path)
    return os.stat(path) if file is None else descriptor_status(file.require_descriptor())


def file_size(path: str | Path) -> int:
    return file_status(path).st_size


def file_identity(path: str | Path) -> tuple[int, int, int, int, int]:
    """Return values that identify a file and its current content."""
    return _identity(file_status(path))


def _identity(status: os.stat_result | FileStatus) -> tuple[int, int, int, int, int]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def open_input_file(path: str | Path) -> InputFile:
    """Open a file for reading."""
    file = shared_file(path)
    if file is None:
        return InputFile(open_for_reading(path), str(path))
    return InputFile(os.dup(file.require_descriptor()), str(path))


class InputFile(io.RawIOBase):
    """A file with its own position, even if others read from the same descriptor.

    Has no ``fileno``: libraries would ask for the status of the file, which a confined process may
    only read by :func:`~eaglenet.video.confinement.descriptor_status`.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._position = 0
        self.name = name
        """Path, whose extension helps to recognise the container."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        content = read_at(self._descriptor, size, self._position)
        self._position += len(content)
        return content

    def readinto(self, buffer: object) -> int:
        count = read_into(self._descriptor, memoryview(buffer).cast("B"), self._position)  # type: ignore[arg-type]
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += descriptor_status(self._descriptor).st_size
        if offset < 0:
            raise OSError(22, "negative position", self.name)
        self._position = offset
        return offset

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
