"""Atomic writes and lock files.

Files and folders are written under a temporary name beside the target, synced to the disk and
renamed, and the rename is synced. Readers see the old content or the new one, even after a power
cut.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.platform import open_for_locking, replace, sync

logger = logging.getLogger(__name__)

MAX_STEM = 40
"""Maximum characters of a file's name in that of its temporary file; each takes up to 4 bytes."""
_HOLDER_OFFSET = 1
"""Offset of the holder's name in a lock file: byte 0 is locked, which Windows does not read."""


def partial_path(path: Path) -> Path:
    """Return a new temporary name for writing ``path``, with its suffix.

    The name cannot be guessed: other users of a shared folder could create a link of that name. It
    has only the beginning of a long name, since systems limit names to 255 bytes.
    """
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f".{path.stem[:MAX_STEM]}.{unique}.partial{path.suffix}")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end of the block.

    If the block fails, ``path`` stays as it was.
    """
    partial = partial_path(path)
    try:
        yield partial
        sync(partial)
        replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder that replaces ``folder`` at the end of the block."""
    partial = partial_path(folder)
    old = folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():  # A process was killed between the two renames below.
        replace(old, folder)
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.rglob("*"):
            sync(path)
        sync(partial)
        if folder.exists():
            replace(folder, old)
        replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def require_writable(folder: Path) -> None:
    """Raise ``OSError`` if nothing can be created in an existing folder.

    Tries it: /proc and disks that are mounted read-only look writable to root.
    """
    os.rmdir(tempfile.mkdtemp(prefix=".eaglenet-", dir=folder))


def expand_home(path: str | Path) -> Path:
    """Expand ``~``, like shells: unlike ``Path.expanduser``, an unknown user is no error."""
    return Path(os.path.expanduser(path))


def nearest_existing(path: Path) -> Path:
    """Return a path, or the closest of its parents that exists."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def write_tensors(path: Path, weights: dict[str, Any]) -> None:
    """Write a safetensors file atomically, with the permissions of other new files.

    The library makes its files readable by their owner only; a service that runs as another user
    could not load them.
    """
    import safetensors.torch

    with atomic_write(path) as partial:
        partial.touch()
        mode = stat.S_IMODE(partial.stat().st_mode)
        safetensors.torch.save_file(weights, partial, metadata={"format": "pt"})
        partial.chmod(mode)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_write(path) as partial:
        partial.write_bytes(content)


def write_output(path: Path, content: bytes) -> None:
    """Write a file that a user named: atomically, unless it is a device, a pipe or a descriptor.

    A link stays a link, and an existing file keeps its owner and permissions. An existing file is
    written in place where it cannot be replaced: in a folder where no other file can be created,
    or if it is mounted itself, as containers do with single files.
    """
    target = Path(os.path.realpath(path))
    # /dev/stdout may be a regular file, to which the program's other output goes.
    is_descriptor = os.path.islink(path) and os.readlink(path).startswith("/proc/")
    is_descriptor = is_descriptor or os.path.realpath(path.parent).startswith("/proc/")
    is_descriptor = is_descriptor or str(target).startswith("/proc/")
    # A target that is still a link is one of a circle.
    if is_descriptor or target.is_symlink() or (target.exists() and not target.is_file()):
        path.write_bytes(content)
        return
    old_status = target.stat() if target.exists() else None
    if old_status is not None and not os.access(target, os.W_OK):
        # Replacing the file needs no right to write to it.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        with atomic_write(target) as partial:
            partial.touch()
            if old_status is not None:
                _copy_owner_and_mode(old_status, partial)
            partial.write_bytes(content)
    except OSError as error:
        if old_status is None or error.errno not in NOT_REPLACEABLE:
            raise
        target.write_bytes(content)


NOT_REPLACEABLE = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS, errno.EXDEV)


def _copy_owner_and_mode(status: os.stat_result, path: Path) -> None:
    """Give a new file the owner and the permissions of another; raise ``OSError`` if refused."""
    own_status = path.stat()
    owner = status.st_uid, status.st_gid
    if owner != (own_status.st_uid, own_status.st_gid):  # Never on Windows, which has no chown.
        os.chown(path, *owner)
    path.chmod(stat.S_IMODE(status.st_mode))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write JSON with a final newline, atomically."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file. Raises ``OSError`` or ``ValueError``."""
    return untrusted.read_json(path, untrusted.MAX_ANNOTATIONS)


class LockHeldError(Exception):
    """Another process holds the lock; the message says which."""


@contextmanager
def hold_lock(path: Path, *, wait: bool = False, with_folder: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``; the system releases it when the process ends.

    wait: wait for another process that holds it, instead of raising :class:`LockHeldError`.
    with_folder: lock the folder, too, so that deleting the lock file does not release the lock.
    """
    with contextlib.ExitStack() as stack:
        descriptor = _open_and_lock(path, wait)
        stack.callback(os.close, descriptor)
        if with_folder and os.name != "nt":  # Windows refuses to delete an open file.
            folder = os.open(path.parent, os.O_RDONLY)
            stack.callback(os.close, folder)
            if try_lock(folder) is False:
                raise LockHeldError("another eaglenet, whose lock file was deleted")
        os.ftruncate(descriptor, 0)
        holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b" " * _HOLDER_OFFSET + holder.encode())
        yield


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed.

    Returns False if another process holds the lock, and None if the file system has no locks.
    """
    from filelock import lock_descriptor

    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError:
        return None


def _open_and_lock(path: Path, wait: bool) -> int:
    from filelock import lock_descriptor

    while True:
        descriptor = open_for_locking(path)
        try:
            is_locked = try_lock(descriptor)
            if is_locked is None:
                logger.info("%s cannot be locked: use %s with one process only", path, path.parent)
                return descriptor
            if not is_locked:
                if not wait:
                    raise LockHeldError(_describe_holder(descriptor))
                logger.warning("%s is held by %s; waiting", path, _describe_holder(descriptor))
                lock_descriptor(descriptor)
            # If the file was deleted meanwhile, the next process would lock another one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _describe_holder(descriptor: int) -> str:
    try:
        os.lseek(descriptor, _HOLDER_OFFSET, os.SEEK_SET)
        holder = untrusted.parse_json(os.read(descriptor, 4096))
        return f"another eaglenet (process {holder['pid']} on {holder['host']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another eaglenet"
