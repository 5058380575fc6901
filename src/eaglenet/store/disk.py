"""Disks: error messages by error code, private file modes, network file systems."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from eaglenet.core.errors import StoreError, StoreLockedError, shell_quote
from eaglenet.core.files import LockHeldError, hold_lock, nearest_existing, require_writable
from eaglenet.core.platform import sync

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
FULL_DISK_BYTES = 65_536
"""Free bytes below which an I/O error of SQLite means a full disk."""
IO_ERRORS = (
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
)  # fmt: skip
TEXT_PROBE = "CREATE VIRTUAL TABLE probe USING fts5(text, tokenize='trigram')"
PERMISSION_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
FOLDER_MODE, FILE_MODE = 0o700, 0o600
NETWORK_TYPES = (
    "nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "gpfs", "beegfs", "ocfs2",
    "gfs2", "fuse.", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "davfs", "ncpfs", "webdav", "afp",
    "drvfs",
)  # fmt: skip
"""Prefixes of file system types on which several machines, or a virtual machine and its host, may
use one file: the shared memory of SQLite's WAL does not work there."""
DRIVE_REMOTE = 4
"""``GetDriveTypeW`` on Windows."""
LOCK = "writer.lock"
DATABASE = "store.db"


def has_database(folder: Path) -> bool:
    """Return whether a folder has the database of a store; False for what cannot be a path."""
    return os.path.exists(folder / DATABASE)


def file_exists(path: Path) -> bool:
    """Return whether a path exists; raise ``OSError`` if it cannot be inspected.

    In Python 3.14, ``Path.exists()`` takes it for missing, and an empty store would replace one on
    a disk that fails for a moment.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


class DamageError(StoreError):
    """Part of a store is damaged. The message names it and the repair command."""


def damage(part: str, location: object) -> DamageError:
    return DamageError(
        f"{_one_line(part)} of {location} is damaged: it is not as it was written. Repair the "
        f"store with: eaglenet store repair --store {shell_quote(location)}"
    )


def table_damage(table: str, location: object) -> DamageError:
    return damage(f"table {table} in {DATABASE}", location)


@contextmanager
def store_errors(location: object) -> Iterator[None]:
    """Turn errors of the operating system and of SQLite into one-line errors about the store."""
    try:
        yield
    except OSError as error:
        raise _disk_error(location, error.errno, error.strerror or str(error)) from error
    except sqlite3.DatabaseError as error:
        raise _sqlite_error(location, error) from error
    except UnicodeDecodeError as error:
        raise damage(f"text in {DATABASE}", location) from error


def _disk_error(location: object, number: int | None, text: str) -> StoreError:
    if number in FULL_DISK_ERRORS:
        return StoreError(
            f"the disk of {location} is full. Everything reported as done is safe and can be "
            "searched. Free some space and run the same command to continue"
        )
    if number in PERMISSION_ERRORS:
        is_store = (Path(str(location)) / DATABASE).exists()
        return StoreError(
            f"{location} cannot be written to ({text}){'; searching it still works' * is_store}. "
            "Make it writable or use another folder"
        )
    return StoreError(f"{location}: {_one_line(text)}")


def _sqlite_error(location: object, error: sqlite3.DatabaseError) -> StoreError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    text = _one_line(str(error))
    if code == sqlite3.SQLITE_FULL:
        return _disk_error(location, errno.ENOSPC, text)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) and not _is_writable(location):
        return _disk_error(location, errno.EACCES, text)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damage(f"{DATABASE} ({text})", location)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLockedError(
            f"{location} is locked by another program; try again when it is done"
        )
    if code in IO_ERRORS:
        if _free_bytes(location) < FULL_DISK_BYTES:  # SQLite does not say why it cannot write.
            return _disk_error(location, errno.ENOSPC, text)
        return StoreError(
            f"{location}: the disk failed ({text}). Run the same command again; if that fails too, "
            f"repair the store with: eaglenet store repair --store {shell_quote(location)}"
        )
    if not _has_full_text_search():
        return StoreError(
            f"the SQLite {sqlite3.sqlite_version} of this Python has no full-text search by "
            "trigrams; install a Python with SQLite 3.34 or newer, like those of uv or conda"
        )
    # Damaged bytes of the schema or of a row cause other errors: no such table, bad values.
    return damage(f"{DATABASE} ({text})", location)


def _has_full_text_search() -> bool:
    """Report whether SQLite supports the indexes of transcripts; that of RHEL 8 does not."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute(TEXT_PROBE)
        except sqlite3.OperationalError:
            return False
    return True


def _is_writable(location: object) -> bool:
    paths = (Path(str(location)), Path(str(location)) / DATABASE)
    return all(os.access(path, os.W_OK) for path in paths if path.exists())


def _free_bytes(location: object) -> int:
    try:
        return shutil.disk_usage(str(location)).free
    except OSError:
        return FULL_DISK_BYTES


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def make_folder(folder: Path) -> None:
    """Create a private folder with its parents, and sync their names to the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        sync(path.parent)


def require_creatable(folder: Path) -> None:
    """Raise an error if a folder neither exists nor can be created, or cannot be written to."""
    with store_errors(folder):
        existing = nearest_existing(folder.absolute())
        try:
            require_writable(existing)
        except OSError as error:
            if error.errno in (*FULL_DISK_ERRORS, *PERMISSION_ERRORS):
                raise
            raise StoreError(
                f"{folder} cannot be created: nothing can be created in {existing} "
                f"({error.strerror}); use another folder"
            ) from None


def create_file(path: Path) -> None:
    """Create an empty private file; SQLite gives its own files the same mode."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))


def is_network_disk(path: Path) -> bool:
    """Return whether a path is on a file system that other machines may use at the same time."""
    if os.name == "nt":
        import ctypes

        drive = Path(os.path.abspath(path)).anchor
        kernel = ctypes.windll.kernel32  # type: ignore[attr-defined]
        return drive.startswith("\\\\") or kernel.GetDriveTypeW(drive) == DRIVE_REMOTE
    kind = file_system_type(path)
    # fuseblk is a local disk (NTFS, exFAT).
    return kind.startswith(NETWORK_TYPES)


def file_system_type(path: Path) -> str:
    """Return the type of the file system of a path, like ``ext4`` or ``nfs4``; empty if unknown."""
    real_path = os.path.realpath(path)
    best, best_kind = "", ""
    for mount, kind in _mounts():
        is_inside = real_path == mount or real_path.startswith(mount.rstrip("/") + "/")
        if is_inside and len(mount) >= len(best):
            best, best_kind = mount, kind
    return best_kind


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield mount points and their file system types."""
    if sys.platform == "darwin":
        import subprocess

        output = subprocess.run(["/sbin/mount"], capture_output=True, text=True).stdout
        for line in output.splitlines():
            match = re.fullmatch(r".* on (/.*) \((\w+)[,)].*", line)
            if match:
                yield match[1], match[2]
        return
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        yield mount, after.split(" ")[0]


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Lock out other writers, or raise an error that names the current writer."""
    with ExitStack() as locks:
        try:
            with store_errors(folder):
                make_folder(folder)
                if not (folder / LOCK).exists():
                    with suppress(FileExistsError):
                        create_file(folder / LOCK)
                locks.enter_context(hold_lock(folder / LOCK, with_folder=True))
        except LockHeldError as holder:
            raise StoreLockedError(
                f"{folder} is being written to by {holder}; wait for it to finish. Searching works "
                "meanwhile"
            ) from None
        yield
