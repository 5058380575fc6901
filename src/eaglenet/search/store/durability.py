"""What a power cut may not take: the tables on the disk, and the way back from a torn version.

Lance writes its files without syncing them. So after every change all new files and folders of the
tables are synced here, and then the versions they make up are marked::

    tables.json    {"clips.lance": 7, "files.lance": 9}

Only what is marked counts. A writer that begins removes every version after the mark: it was not
synced when its writer ended, may be empty or torn, and nothing of it was ever reported.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from eaglenet.core import untrusted
from eaglenet.core.errors import StoreError
from eaglenet.core.files import write_bytes
from eaglenet.core.platform import start_writeback, sync

logger = logging.getLogger(__name__)

MARK = "tables.json"
VERSIONS = "_versions"
HINT = "latest_version_hint.json"
ENDS = {".lance": b"LANC", ".manifest": b"LANC", ".arrow": b"ARROW1"}
"""The last bytes of a whole file, by its suffix."""
BEGUN = re.compile(r"\.tmp.+|.+#[0-9]+")
"""Names of files that Lance is still writing, ``.tmpAbCdEf`` or ``NAME.manifest#1``."""
LARGEST = 2**64 - 1
"""A version's file is called by its distance from here, so that the newest comes first."""


def versions(table: Path) -> dict[int, Path]:
    """The files that describe the versions of a table."""
    found: dict[int, Path] = {}
    for path in (table / VERSIONS).glob("*.manifest"):
        if path.stem.isdigit():
            number = int(path.stem)
            found[LARGEST - number if number > LARGEST // 2 else number] = path
    return found


class TableSync:
    """Brings the tables of one store to the disk, each file once."""

    def __init__(self, folder: Path, tables: Sequence[str]) -> None:
        self.folder = folder
        self.tables = tables
        self._synced: set[tuple[int, int]] = set()
        self._marked: dict[str, int] | None = None

    def __call__(self) -> None:
        """Sync what is new, then mark it as whole."""
        found = {
            name: max(versions(self.folder / name), default=0)
            for name in self.tables
            if (self.folder / name).is_dir()
        }
        if found == self._marked:
            return
        files: list[Path] = []
        folders: list[Path] = []
        for name in found:
            self._find_new(self.folder / name, files, folders)
        for path in files:
            start_writeback(path)
        for path in (*files, *folders):
            sync(path)
        if folders:
            sync(self.folder)
        write_bytes(self.folder / MARK, json.dumps(found).encode())
        self._marked = found

    def _find_new(self, folder: Path, files: list[Path], folders: list[Path]) -> bool:
        """Add what is not on the disk yet, each folder after all that is in it."""
        is_new = False
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                is_new |= self._find_new(Path(entry.path), files, folders)
                continue
            status = entry.stat(follow_symlinks=False)
            key = (status.st_ino, status.st_mtime_ns)
            if key not in self._synced:
                if not has_end(Path(entry.path)):
                    raise StoreError(
                        f"{entry.path} was not written to its end ({status.st_size} bytes): the "
                        "disk may be full. What was reported as done is safe; make room and run "
                        "the same command to continue"
                    )
                files.append(Path(entry.path))
                self._synced.add(key)
                is_new = True
        if is_new:
            folders.append(folder)
        return is_new


def has_end(path: Path) -> bool:
    """Whether a file of Lance was written to its end, as far as its kind shows it.

    Lance hands its writes to threads, and where the last write of a file fails, of a full disk for
    example, nobody asks: the version is committed, and cannot be read.
    """
    end = ENDS.get(path.suffix, b"")
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - len(end), 0))
        return file.read() == end


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def marked_version(folder: Path, table: str) -> int:
    """The version of a table that is on the disk for certain; 0 where there is none."""
    return (_read_mark(folder) or {}).get(table, 0)


def recover(
    folder: Path, tables: Sequence[str], derived: Sequence[str], *, is_searched: bool
) -> None:
    """Go back to the versions that were marked. Only for the holder of the store's lock.

    ``derived``: tables that can be made again; one without a whole version is removed.
    ``is_searched``: whether something was published, so that the tables cannot be new.
    """
    marked = _read_mark(folder)
    if marked is None and not is_searched:
        # Their writer ended before anything was on the disk for certain: nothing was reported.
        for name in (*tables, *derived):
            shutil.rmtree(folder / name, ignore_errors=True)
        return
    for name in (*tables, *derived):
        _remove_begun(folder / name)
        found = versions(folder / name)
        if marked is not None:
            torn = [number for number in found if number > marked.get(name, 0)]
        else:
            # Made before there were marks: an empty file is no version.
            torn = [number for number, path in found.items() if path.stat().st_size == 0]
        if not torn:
            _remove_unfinished(folder / name)
            continue
        if len(torn) == len(found) and name in derived:
            shutil.rmtree(folder / name)
            continue
        if len(torn) == len(found):
            raise StoreError(
                f"{folder / name} has no whole version; restore the folder, or index the videos "
                "into a new --store"
            )
        logger.warning(
            "%s: %d versions were not on the disk when their writer ended; continuing from the "
            "last whole one, what is missing is encoded again",
            folder / name,
            len(torn),
        )
        for number in torn:
            found[number].unlink()
        _remove_unfinished(folder / name)
        (folder / name / VERSIONS / HINT).unlink(missing_ok=True)
        sync(folder / name / VERSIONS)


def _remove_begun(table: Path) -> None:
    """Remove what Lance writes before it has a name: a writer was killed before the renaming."""
    for path in list(table.rglob("*")):
        if BEGUN.fullmatch(path.name) and path.is_file():
            path.unlink()


def _remove_unfinished(table: Path) -> None:
    """Remove files that were not written to their ends, where no version reads them.

    One that is read was whole when its version was marked, and is damaged: it stays, to be told.
    """
    files = [path for path in table.rglob("*") if path.is_file() and not has_end(path)]
    if not files:
        return
    found = versions(table)
    contents = [path.read_bytes() for path in found.values()]
    for path in set(files) - set(found.values()):
        if not any(_in_manifest(path) in content for content in contents):
            logger.info("%s was not written to its end and no version reads it; removed", path)
            path.unlink()


def _in_manifest(path: Path) -> bytes:
    """How Lance's description of a version names a file that it reads.

    By its name, but for deleted rows (``FRAGMENT-VERSION-ID.arrow``) by the number at the end, and
    for the files of an index by the identity that their folder is called by.
    """
    number = path.stem.rpartition("-")[2]
    if path.suffix == ".arrow" and number.isdigit():
        return _varint(int(number))
    try:
        return uuid.UUID(path.parent.name).bytes
    except ValueError:
        return path.name.encode()


def _varint(number: int) -> bytes:
    """A number as protocol buffers write it.

    >>> _varint(300).hex()
    'ac02'
    """
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _read_mark(folder: Path) -> dict[str, int] | None:
    try:
        values = untrusted.read_object(folder / MARK)
        return {str(name): int(number) for name, number in values.items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        # Versions that are empty are still left out, and every row has a checksum.
        logger.warning(
            "%s is damaged (%s); continuing from the newest versions", folder / MARK, error
        )
        return None
