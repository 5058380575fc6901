"""Find the files to index, detect changes, and read tables of tags."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of
from eaglenet.indexing.ignore import Exclusions
from eaglenet.transcripts.subtitles import SUFFIXES as SUBTITLE_SUFFIXES
from eaglenet.video.containers import INDEXED_SUFFIXES, looks_like_video
from eaglenet.video.input_file import file_status, open_input_file

CHANGED = "changed while it was being indexed; index it again"
LEADS_OUT = "a link that leads out of the indexed folders; follow it with --follow-links"
LINKED_FOLDER = (
    "a link to a folder outside of the indexed ones; follow it with --follow-links, or index the "
    "folder itself"
)
NOT_UTF8 = "the file name is not valid UTF-8; rename it"
FileVersion = tuple[int, int, int, int]


@dataclass(frozen=True)
class CandidateFile:
    """A file that may be a video or image; ``problem`` says why it cannot be opened."""

    path: str
    size: int
    modified_ns: int
    problem: str = ""
    is_sure: bool = True
    """False if only its first bytes look like a video; it is not reported if it is none."""
    folders: tuple[str, ...] = field(default=(), compare=False)
    """Real paths of folders, one of which must contain the file when it is opened; empty: any."""


def version_of(path: str) -> FileVersion:
    """Return inode, size and times, which change when a file is replaced or written to."""
    status = file_status(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def find_videos(
    paths: Sequence[Path],
    *,
    skip_folder: Path,
    exclude: Sequence[str] = (),
    follow_links: bool = False,
    on_other: Callable[[str], None] | None = None,
    on_hidden: Callable[[str], None] = lambda path: None,
) -> Iterator[CandidateFile]:
    """Yield videos and images under ``paths``, each once, in a stable order.

    A file counts if its suffix is a video's or image's, so that broken files are reported, or if
    its first bytes look like a video's. Files named in ``paths`` always count. Nothing is decoded.

    ``exclude`` adds patterns to those of ignore files (:mod:`eaglenet.indexing.ignore`).
    ``follow_links`` accepts links to files outside of ``paths``, and links to folders.
    ``on_other`` is called with the path of each file that does not count, except subtitles;
    ``on_hidden`` with that of each hidden video, image and folder.
    """
    folders = real_folders(paths)
    names_seen: set[str] = set()
    for root in paths:
        if not root.exists():
            raise UsageError(f"{root}: no such file or folder")
        is_named = root.is_file()
        unreadable: list[OSError] = []
        links: list[str] = []
        exclusions = Exclusions(root, exclude)
        tree = _walk(root, skip_folder, unreadable, links, exclusions, follow_links, on_hidden)
        for path in [root] if is_named else tree:
            name = os.path.abspath(path)
            if name in names_seen:
                continue
            names_seen.add(name)
            must_report = is_named or path.suffix.lower() in INDEXED_SUFFIXES
            try:
                if not (is_named or follow_links) and path.is_symlink():
                    problem = _link_problem(name, folders)
                    if problem:
                        if must_report:
                            yield CandidateFile(name, 0, 0, problem)
                        continue
                # In Python 3.14, Path.is_file() takes files that cannot be inspected for missing.
                status = path.stat()
                # Fifos and devices would block or never end.
                if not stat.S_ISREG(status.st_mode):
                    continue
                if not must_report and not looks_like_video(path):
                    if on_other is not None and path.suffix.lower() not in SUBTITLE_SUFFIXES:
                        on_other(name)
                else:
                    problem = "" if untrusted.is_utf8(name) else NOT_UTF8
                    yield CandidateFile(
                        name,
                        status.st_size,
                        status.st_mtime_ns,
                        problem,
                        is_sure=must_report,
                        folders=() if is_named or follow_links else tuple(folders),
                    )
            except (FileNotFoundError, NotADirectoryError):
                with suppress(OSError):  # Anything but a link was removed since it was listed.
                    target = os.readlink(name)
                    if must_report:
                        yield CandidateFile(name, 0, 0, f"a broken link to {target}")
            except OSError as error:
                if must_report:
                    yield CandidateFile(name, 0, 0, error.strerror or str(error))
        for failure in unreadable:
            reason = f"cannot read the folder ({failure.strerror}); its files are not indexed"
            yield CandidateFile(os.path.abspath(failure.filename), 0, 0, reason)
        for name in map(os.path.abspath, links):
            try:
                is_root = os.path.realpath(name) in folders
                if name in names_seen or is_root or not leads_out(name, folders):
                    continue
            except OSError:  # It has been removed meanwhile.
                continue
            names_seen.add(name)
            yield CandidateFile(name, 0, 0, LINKED_FOLDER)
        for name, reason in exclusions.problems.items():
            yield CandidateFile(name, 0, 0, reason)


def _walk(
    root: Path,
    skip_folder: Path,
    unreadable: list[OSError],
    links: list[str],
    exclusions: Exclusions,
    follow_links: bool,
    on_hidden: Callable[[str], None],
) -> Iterator[Path]:
    """Yield the files of a tree in order, without hidden and excluded ones.

    Appends to ``links`` the links to folders that are not followed.
    """
    skipped_path = os.path.realpath(skip_folder)
    visited_paths = {os.path.realpath(root)}
    for folder, folders, names in os.walk(
        root, onerror=unreadable.append, followlinks=follow_links
    ):
        for name in (*folders, *names):
            if name.startswith(".") and (
                name in folders or Path(name).suffix.lower() in INDEXED_SUFFIXES
            ):
                on_hidden(os.path.join(folder, name))
        # Folders before links to them: a folder keeps its own name.
        paths = sorted(
            (os.path.join(folder, name) for name in folders if not name.startswith(".")),
            key=lambda path: (os.path.islink(path), path),
        )
        folders.clear()
        for path in paths:
            try:
                real = os.path.realpath(path)
            except OSError:
                continue  # A link that was removed after it was listed.
            if real in visited_paths or real == skipped_path:
                continue
            if not exclusions.skips(path, is_folder=True):
                if os.path.islink(path) and not follow_links:
                    links.append(path)
                    continue
                visited_paths.add(real)
                folders.append(os.path.basename(path))
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not name.startswith(".") and not exclusions.skips(path):
                yield Path(path)


def real_folders(paths: Sequence[str | Path]) -> list[str]:
    """Return the real paths of folders, and of the folders that contain the given files."""
    return [
        os.path.realpath(path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path)))
        for path in paths
    ]


def leads_out(path: str, folders: Sequence[str]) -> bool:
    """Return whether a path leads out of all these folders (:func:`real_folders`)."""
    real = os.path.realpath(path)
    return not any(real.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _link_problem(name: str, folders: Sequence[str]) -> str:
    """Return the problem of a link; empty if it leads to a file inside the folders."""
    if leads_out(name, folders):
        return LEADS_OUT
    return f"a broken link to {os.readlink(name)}" if is_missing_file(name) else ""


def is_missing_file(path: str) -> bool:
    """Return whether there is no such file; an unreadable one is not missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def count_suffixes(paths: Iterable[str]) -> dict[str, int]:
    """Count files by extension in lower case, the most frequent first.

    >>> count_suffixes(["a/memo.m4a", "b.M4A", "notes"])
    {'.m4a': 2, '': 1}
    """
    return dict(Counter(Path(path).suffix.lower() for path in paths).most_common())


def content_hash(path: str | Path) -> str:
    """Return the hash of a whole file; reading it costs little compared with decoding it."""
    with open_input_file(path) as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_tags(path: Path) -> dict[str, tuple[str, ...]]:
    """Read a CSV file with the columns ``path`` and ``tags`` (separated by ``;``).

    Paths are relative to the CSV's folder. A bare name that is not a file there stands for every
    file of that name.
    """
    try:
        text = untrusted.read_text(path, untrusted.MAX_ANNOTATIONS)
        reader = csv.DictReader(io.StringIO(text, newline=""))
        header = list(reader.fieldnames or ())
        if not {"path", "tags"} <= set(header):
            names = ", ".join(f"{name!r:.60}" for name in header[:10]) or "nothing"
            raise UsageError(
                f"{path}: expected the columns path and tags in the first line, got {names}"
            )
        tags: dict[str, tuple[str, ...]] = {}
        for row in reader:
            name = (row["path"] or "").strip()
            target = path.parent / name
            key = os.path.abspath(target) if "/" in name or target.exists() else name
            names_of_tags = (tag.strip() for tag in (row["tags"] or "").split(";"))
            tags[key] = tuple(dict.fromkeys(tag for tag in names_of_tags if tag))
        return tags
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: cannot read it as a CSV file: {cause_of(error)}") from error


def tags_of(path: str, tags: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the tags of a file; None if the CSV does not list it."""
    return tags.get(path, tags.get(os.path.basename(path)))


def unused_tags(paths: Sequence[str], tags: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names in the CSV that match none of these files."""
    names = {*paths, *map(os.path.basename, paths)}
    return tuple(name for name in tags if name not in names)
