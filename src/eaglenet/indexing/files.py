"""Which files to index, whether they changed, and the tags people give them."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of
from eaglenet.video.containers import INDEXED_SUFFIXES

# Files that people leave out: patterns of the command line, and ``.eaglenetignore`` in folders.

IGNORE_FILE = ".eaglenetignore"


class Exclusions:
    """What is left out below one folder; ``patterns`` count from that folder and come first."""

    def __init__(self, root: Path, patterns: Sequence[str] = ()) -> None:
        self.root = os.path.abspath(root)
        self.patterns = _read(patterns, "--exclude") if patterns else None
        self._specs: dict[str, Any] = {}

    def __call__(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether a file or folder is left out; its folder is known not to be."""
        path = os.path.abspath(path)
        if self.patterns is not None and self._says(self.patterns, self.root, path, is_folder):
            return True
        folder = os.path.dirname(path)
        while folder.startswith(self.root):
            spec = self._spec(folder)
            decided = None if spec is None else self._says(spec, folder, path, is_folder)
            if decided is not None:
                return decided
            if folder == self.root:
                break
            folder = os.path.dirname(folder)
        return False

    def covers(self, path: str) -> bool:
        """Whether a file below the root is left out, itself or with a folder it is in."""
        inside = os.path.relpath(path, self.root)
        if inside.startswith(".."):
            return False
        parts = inside.split(os.sep)
        folders = [os.path.join(self.root, *parts[:depth]) for depth in range(1, len(parts))]
        return any(self(folder, is_folder=True) for folder in folders) or self(path)

    def _says(self, spec: Any, base: str, path: str, is_folder: bool) -> bool | None:
        name = os.path.relpath(path, base).replace(os.sep, "/")
        decided: bool | None = spec.check_file(f"{name}/" if is_folder else name).include
        return decided

    def _spec(self, folder: str) -> Any:
        """The patterns of the file in a folder; None where there is none."""
        if folder not in self._specs:
            file = Path(folder, IGNORE_FILE)
            try:
                lines = untrusted.read_text(file).splitlines()
            except FileNotFoundError:
                self._specs[folder] = None
            except (OSError, ValueError) as error:
                raise UsageError(f"{file}: cannot be read ({error}); fix or remove it") from error
            else:
                self._specs[folder] = _read(lines, str(file))
        return self._specs[folder]


def _read(lines: Sequence[str], where: str) -> Any:
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        raise UsageError(
            "leaving out files needs pathspec; install it with: pip install 'eaglenet[search]'"
        ) from error
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UsageError(f"{where}: {error}; write patterns as in .gitignore") from error


@dataclass(frozen=True)
class CandidateFile:
    """A file that should be a video or photograph; ``problem``: why it cannot even be tried."""

    path: str
    size: int
    modified_ns: int
    problem: str = ""
    is_sure: bool = True
    """Whether its name says that it is a video; else only its first bytes look like one."""


FileVersion = tuple[int, int, int, int]
CHANGED = "changed while it was being indexed; index it again"


def version_of(path: str) -> FileVersion:
    """Inode, size and times: another one where a file was exchanged or written to."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def find_videos(
    paths: Sequence[Path],
    looks_like_video: Callable[[Path], bool],
    *,
    leave_out: Path,
    exclude: Sequence[str] = (),
) -> Iterator[CandidateFile]:
    """Videos and photographs under ``paths``, each once, in a stable order.

    ``exclude``: patterns of files and folders that do not count, beside those of
    ``.eaglenetignore`` files; see :mod:`eaglenet.indexing.files`.

    A file counts if its first bytes may be a video's or its name says it should be one, or a
    photograph; the latter so that broken files are reported rather than passed over. Named files
    always count. Nothing is decoded here: that is for processes with limits.
    """
    seen: set[str] = set()
    for root in paths:
        if not root.exists():
            raise UsageError(f"{root}: no such file or folder")
        refused: list[OSError] = []
        excluded = Exclusions(root, exclude)
        for path in [root] if root.is_file() else _walk(root, leave_out, refused, excluded):
            name = os.path.abspath(path)
            if name in seen:
                continue
            seen.add(name)
            wanted = root.is_file() or path.suffix.lower() in INDEXED_SUFFIXES
            try:
                # Fifos and devices would block or never end.
                if path.is_file() and (wanted or looks_like_video(path)):
                    status = path.stat()
                    problem = _problem(name)
                    yield CandidateFile(
                        name, status.st_size, status.st_mtime_ns, problem, is_sure=wanted
                    )
                elif wanted and path.is_symlink() and is_missing_file(name):
                    yield CandidateFile(
                        name, 0, 0, f"a link to {os.readlink(name)}, which is not there"
                    )
            except OSError as error:
                if wanted:
                    yield CandidateFile(name, 0, 0, error.strerror or str(error))
        for refusal in refused:
            reason = f"the folder cannot be read ({refusal.strerror}); what is in it is not indexed"
            yield CandidateFile(os.path.abspath(refusal.filename), 0, 0, reason)


def is_missing_file(path: str) -> bool:
    """Whether there is no such file; one that may not be looked at is not gone."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _walk(
    root: Path, leave_out: Path, refused: list[OSError], excluded: Exclusions
) -> Iterator[Path]:
    unwanted = os.path.realpath(leave_out)
    for folder, folders, names in os.walk(root, onerror=refused.append):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and os.path.realpath(os.path.join(folder, name)) != unwanted
            and not excluded(os.path.join(folder, name), is_folder=True)
        )
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and not excluded(str(path)):
                yield path


def _problem(name: str) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "the file's name is not valid UTF-8; rename it"
    return ""


def content_hash(path: str | Path) -> str:
    """Hash of every byte. Reading a file once more costs little beside decoding it."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_tags(path: Path) -> dict[str, tuple[str, ...]]:
    """Tags of files from a CSV with the columns ``path`` and ``tags`` (separated by ``;``).

    Relative paths are taken from the CSV's folder; a bare name that is no file there stands for
    every file of that name.
    """
    try:
        text = untrusted.read_text(path, untrusted.MAX_ANNOTATIONS)
        reader = csv.DictReader(io.StringIO(text, newline=""))
        header = list(reader.fieldnames or ())
        if not {"path", "tags"} <= set(header):
            found = ", ".join(f"{name!r:.60}" for name in header[:10]) or "nothing"
            raise UsageError(
                f"{path}: expected the columns path and tags in the first line, found {found}"
            )
        tags: dict[str, tuple[str, ...]] = {}
        for row in reader:
            name = (row["path"] or "").strip()
            target = path.parent / name
            key = os.path.abspath(target) if "/" in name or target.exists() else name
            given = (tag.strip() for tag in (row["tags"] or "").split(";"))
            tags[key] = tuple(dict.fromkeys(tag for tag in given if tag))
        return tags
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read as a CSV file: {cause_of(error)}") from error


def tags_of(path: str, tags: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """None where the CSV does not speak of the file."""
    return tags.get(path, tags.get(os.path.basename(path)))


def unused_tags(paths: Sequence[str], tags: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Names in the CSV that stand for none of these files: misspelt, or not in these folders."""
    known = {*paths, *map(os.path.basename, paths)}
    return tuple(name for name in tags if name not in known)
