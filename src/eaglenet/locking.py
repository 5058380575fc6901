"""One writer a folder. A lock goes away with its process, however that ends."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

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
