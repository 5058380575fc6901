"""Files and folders that are written whole: a reader sees the old one or the new one.

Each is written beside its place, brought to the disk, renamed, and the rename brought to the disk:
after a kill or a power cut at any moment there is no half of one.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from eaglenet.core import untrusted


def partial_path(path: Path) -> Path:
    """Where ``path`` is written first; of another process, another one. The ending stays."""
    return path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path to write a file to, which takes the place of ``path`` at the end of the block.

    Where the block fails, ``path`` is left as it was.
    """
    partial = partial_path(path)
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``folder`` at the end of the block."""
    partial = partial_path(folder)
    old = folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():  # killed between the two renames below
        old.replace(folder)
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.rglob("*"):
            sync(path)
        sync(partial)
        if folder.exists():
            folder.replace(old)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def write_tensors(path: Path, weights: dict[str, Any]) -> None:
    """Write a safetensors file whole, readable to whom other new files are.

    The library gives its files to their owner alone: a service of another user could not load the
    model that an administrator saved.
    """
    import safetensors.torch

    with written_whole(path) as partial:
        partial.touch()
        usual = stat.S_IMODE(partial.stat().st_mode)
        safetensors.torch.save_file(weights, partial, metadata={"format": "pt"})
        partial.chmod(usual)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of these bytes whole."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file whole."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write JSON whole, with an end of line."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises ``OSError`` or ``ValueError``; callers say what to do."""
    return untrusted.read_json(path, untrusted.MAX_ANNOTATIONS)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writing(path: Path) -> None:
    """Have the system begin to write a file out, so that many are not waited for one by one."""
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Pages that are not on the disk yet are not dropped, but their writing begins (Linux).
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


# One writer a folder. A lock goes away with its process, however that ends.

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = logging.getLogger(__name__)


class LockHeldError(Exception):
    """Another process holds the lock; the text says which."""


@contextmanager
def hold_lock(path: Path, *, wait: bool = False, with_folder: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``; where another does, wait, or raise :class:`LockHeldError`.

    ``with_folder`` locks its folder as well: who deletes the file lets no second holder in.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC) if with_folder else None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            _lock(descriptor, path, wait)
            if _is_the_file(descriptor, path):
                break
            # It was deleted meanwhile: who comes next would lock another one.
            os.close(descriptor)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if folder is not None:
            _lock_folder(folder)
        os.ftruncate(descriptor, 0)
        content = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        os.pwrite(descriptor, content.encode(), 0)
        yield
    finally:
        os.close(descriptor)
        if folder is not None:
            os.close(folder)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; False where another holds it or none can be locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock(descriptor: int, path: Path, wait: bool) -> None:
    if fcntl is None:
        logger.info("no file locks on this system: use %s once at a time", path.parent)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise LockHeldError(_holder(descriptor)) from None
        logger.warning("%s is held by %s; waiting for it", path, _holder(descriptor))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        # Some network disks know no locks: work there was possible before there were any.
        logger.warning("%s cannot be locked (%s): use it once at a time", path, error.strerror)


def _lock_folder(descriptor: int) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LockHeldError("another eaglenet, whose lock file was deleted") from None
    except OSError:
        pass  # network disks do not lock folders; the file is locked


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
        return f"another eaglenet (process {content['pid']} on {content['host']})"
    except (ValueError, KeyError, TypeError):
        return "another eaglenet"
