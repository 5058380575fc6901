"""Readers of untrusted annotation files; errors name the file and the line or entry.

Files with moments (texts with the spans of a video that show them) are those of DiDeMo,
QVHighlights, Charades-STA and ActivityNet Captions.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError, cause_of
from eaglenet.core.files import expand_home
from eaglenet.research.data.records import check_id, clean_captions, report_empty_captions
from eaglenet.video.containers import VIDEO_SUFFIXES

logger = logging.getLogger(__name__)

LISTED_SUFFIXES = VIDEO_SUFFIXES | {".null", ".gif"}
"""Extensions in lists of videos; DiDeMo has .null, TGIF has .gif."""

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""Separators of columns in CSV files, in the order in which they are looked for in the header."""


def read_bytes(path: Path) -> bytes:
    try:
        return untrusted.read_bytes(path, untrusted.MAX_ANNOTATIONS)
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist") from None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file without its byte-order mark; an error names the first invalid byte."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DatasetError(
            f"{path}: byte 0x{error.object[error.start]:02x} at position {error.start} "
            f"(line {line}) is not UTF-8; re-save the file as UTF-8"
        ) from error


def read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return untrusted.parse_json(text)
    except json.JSONDecodeError as error:
        raise DatasetError(
            f"{path}: broken JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except ValueError as error:
        raise DatasetError(f"{path}: broken JSON: {error}") from error


def read_json_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Read JSON lines as pairs of line number and object, skipping blank lines."""
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = untrusted.parse_json(line)
        except ValueError as error:
            raise DatasetError(f"{path}: broken JSON in line {number}: {error}") from error
        if not isinstance(row, dict):
            raise DatasetError(f"{path}: line {number} is not a JSON object")
        rows.append((number, row))
    return rows


def read_csv(path: Path, columns: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """Read a CSV as pairs of line number and row; its header must have ``columns``.

    Columns are separated by the first of comma, semicolon and tab that the header contains:
    spreadsheets write semicolons where the comma is the decimal mark. Names of columns are read
    without regard to case and returned in lower case.
    """
    text = read_text(path)
    header_line = text.lstrip().partition("\n")[0]
    delimiter = next((mark for mark in SEPARATORS if mark in header_line), ",")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    rows = []
    try:
        header = [name.strip().casefold() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        for name, count in Counter(filter(None, header)).items():
            if count > 1:  # Only the last of them would be read.
                raise DatasetError(
                    f"{path}: the header has {' '.join(name.split())[:60]!r} {count} times; write "
                    "one line per caption"
                )
        missing_columns = [name for name in columns if name not in header]
        if missing_columns:
            # Names in a broken file may be long or have line breaks.
            names = ", ".join(" ".join(name.split())[:60] for name in header[:20])
            are_missing = "column {} is" if len(missing_columns) == 1 else "columns {} are"
            are_missing = are_missing.format(", ".join(map(repr, missing_columns)))
            raise DatasetError(f"{path}: {are_missing} missing; the header has {names}")
        for row in reader:
            if None in row or any(value is None for value in row.values()):
                raise DatasetError(
                    f"{path}: line {reader.line_num} does not have the {len(header)} columns of "
                    f"the header; quote captions that contain {SEPARATORS[delimiter]}"
                )
            rows.append((reader.line_num, row))
    except csv.Error as error:
        raise DatasetError(f"{path}: broken CSV at line {reader.line_num}: {error}") from error
    return rows


def read_columns(path: Path, names: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read tab-separated columns without a header as pairs of line number and row."""
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        cells = line.rstrip("\r").split("\t")
        if cells == [""]:
            continue
        if len(cells) != len(names):
            raise DatasetError(
                f"{path}: line {number} has {len(cells)} columns, expected {len(names)} separated "
                f"by tabs: {', '.join(names)}"
            )
        rows.append((number, dict(zip(names, cells, strict=True))))
    return rows


def read_list(path: Path) -> list[str]:
    """Read one entry per line, skipping blank lines; raise if an entry is listed twice."""
    entries = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    refuse_duplicates(entries, path)
    if not entries:
        raise DatasetError(f"{path}: the list is empty")
    return entries


def refuse_duplicates(entries: Sequence[str], path: Path) -> None:
    unique_entries: set[str] = set()
    for entry in entries:
        if entry in unique_entries:
            raise DatasetError(
                f"{path}: {entry!r} is listed more than once; remove the other lines"
            )
        unique_entries.add(entry)


def find_file(root: Path, names: Sequence[str], folders: Sequence[str] = ()) -> Path:
    """Return the first existing file of ``names``.

    Searches ``root``, its subfolders ``annotations``, ``data`` and ``folders``, and then
    ``annotations/FOLDER``.
    """
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder; expected the folder of the annotation files")
    candidates = [root, *(root / folder for folder in ("annotations", "data", *folders))]
    candidates += [root / "annotations" / folder for folder in folders]
    for candidate in candidates:
        for name in names:
            if (candidate / name).is_file():
                return candidate / name
    subfolders = ", ".join(("annotations", "data", *folders))
    raise DatasetError(
        f"{' or '.join(names)} not found; looked in {root} and its folders {subfolders}"
    )


def walk_files(folder: Path, visited_folders: set[str] | None = None) -> Iterator[Path]:
    """Yield the files in and below a folder; hidden files, such as ``._a.mp4`` of macOS, are not.

    Links to folders are followed, except to ``visited_folders``, to which all folders are added.
    """
    visited_folders = set() if visited_folders is None else visited_folders
    for current, subfolders, names in os.walk(folder, followlinks=True):
        real_path = os.path.realpath(current)
        if real_path in visited_folders:
            subfolders.clear()
            continue
        visited_folders.add(real_path)
        for name in names:
            if not name.startswith("."):
                yield Path(current, name)


class VideoFinder:
    """Index of the video files in folders by id, with any extension.

    Links to folders are followed, except for loops. If several files match an id, the earlier
    folder has precedence, then the first path in sorted order; :meth:`ambiguous` lists such ids.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.by_stem: dict[str, list[Path]] = {}
        visited_folders: set[str] = set()
        for folder in folders:
            if not folder.is_dir():
                raise DatasetError(f"{folder} is not a folder; expected a folder of video files")
            # GIFs last: they are often previews of a video of the same name.
            paths = [
                path for path in walk_files(folder, visited_folders) if is_video_name(path.name)
            ]
            for path in sorted(paths, key=lambda file: (file.suffix.lower() == ".gif", file)):
                self.by_stem.setdefault(stem_of(path.name), []).append(path)

    def candidates(self, video_id: str) -> list[Path]:
        """Return the files that match an id, first those whose whole name is the id."""
        paths = self.by_stem.get(video_id) or self.by_stem.get(stem_of(video_id)) or []
        return sorted(paths, key=lambda path: path.name != video_id)

    def find(self, video_id: str) -> Path | None:
        paths = self.candidates(video_id)
        return paths[0] if paths else None

    def ambiguous(self, video_ids: Iterable[str]) -> dict[str, list[Path]]:
        """Return the ids that several files match, with these files; the first one is used."""
        files = {video_id: self.candidates(video_id) for video_id in video_ids}
        return {video_id: paths for video_id, paths in files.items() if len(paths) > 1}


def stem_of(name: str) -> str:
    """Remove a video extension, or a trailing dot, as in DiDeMo, from a file name."""
    stem, dot, suffix = name.rpartition(".")
    is_extension = dot and stem and (not suffix or f".{suffix.lower()}" in LISTED_SUFFIXES)
    return stem if is_extension else name


def is_video_name(name: str) -> bool:
    """Return whether a file has a video extension or none."""
    _, dot, suffix = name.rpartition(".")
    return not dot or not suffix or f".{suffix.lower()}" in LISTED_SUFFIXES


def finder_for(root: Path, video_folders: Sequence[Path | str] | Path | str = ()) -> VideoFinder:
    """Make a finder for ``video_folders``, then for everything below ``root``."""
    # A single path given as text would be a sequence of characters.
    folders = [video_folders] if isinstance(video_folders, Path | str) else video_folders
    return VideoFinder([*(expand_home(folder) for folder in folders), root])


def captions_of_entries(
    dataset: str,
    path: Path,
    entries: Iterable[tuple[int, Any]],
    *,
    video: str,
    caption: str,
    title: str,
) -> dict[str, list[str]]:
    """Group captions by video, in file order, from numbered entries with one caption each.

    ``video`` and ``caption`` are the keys of an entry; ``title`` is its name in errors. Empty
    captions are skipped, with a warning.
    """
    captions: dict[str, list[str]] = {}
    num_empty = 0
    for number, entry in entries:
        where = f"{path}: {title} {number}"
        try:
            video_id, text = entry[video], entry[caption]
        except (TypeError, KeyError):
            raise DatasetError(f"{where} needs the keys {video!r} and {caption!r}") from None
        check_id(video_id, where)
        texts, empty = clean_captions([text], where)
        if texts:
            captions.setdefault(video_id, []).extend(texts)
        num_empty += empty
    report_empty_captions(dataset, num_empty, path)
    return captions


def captions_by_video(dataset: str, path: Path, content: Any) -> dict[str, tuple[str, ...]]:
    """Check captions by video id; a caption is text or a list of words."""
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected an object with captions by video id")
    captions = {}
    num_empty = 0
    for video_id, texts in content.items():
        where = f"{path}: video {video_id!r}"
        if not isinstance(video_id, str) or not isinstance(texts, list | tuple):
            raise DatasetError(f"{where} needs a text id with a list of captions")
        plain_texts = (" ".join(text) if _is_word_list(text) else text for text in texts)
        captions[video_id], empty = clean_captions(plain_texts, where)
        num_empty += empty
    report_empty_captions(dataset, num_empty, path)
    return captions


def _is_word_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


Span = tuple[float, float]
"""Start and end in seconds."""
DIDEMO_SECONDS = 5.0
"""Length of a DiDeMo segment; a time is the indices of the first and the last segment."""
DIDEMO_ANNOTATORS = 3
"""Annotators whose best IoUs are averaged, as in DiDeMo's evaluation."""


@dataclass(frozen=True)
class MomentText:
    """A text, without surrounding whitespace, and the spans of one video that show it.

    num_annotators: number of best-matching spans whose IoUs are averaged: 1 if each span shows the
        text, more if each span is the opinion of one annotator.
    """

    video_id: str
    text: str
    spans: tuple[Span, ...]
    num_annotators: int = 1

    def __post_init__(self) -> None:
        values: dict[str, object] = {"video": self.video_id, "text": self.text}
        for name, value in values.items():
            if not isinstance(value, str):
                kind = type(value).__name__
                raise ValueError(f"the {name} is {kind}, expected text: {value!r:.60}")
            if not untrusted.is_utf8(value):
                raise ValueError(f"the {name} {value!r:.60} has a lone surrogate")
        object.__setattr__(self, "text", self.text.strip())
        if not self.spans:
            raise ValueError(f"no span for {self.text!r:.60}")
        for start, end in self.spans:
            if not 0 <= start <= end < float("inf"):
                raise ValueError(f"invalid span {start:g} to {end:g} s of {self.text!r:.60}")


@contextmanager
def _name_entry(entry: str) -> Iterator[None]:
    """Add the name of an entry to errors raised in the block."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{entry} has no {error}") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{entry}: {error}") from error


def read_didemo(content: str) -> list[MomentText]:
    """Read ``[{"video", "description", "times": [[first, last], ...]}, ...]``, in segments of 5 s.

    The last segment of shorter videos counts as 5 s too, as in DiDeMo's evaluation.
    """
    texts = []
    for number, row in enumerate(untrusted.parse_json(content)):
        with _name_entry(f"entry {number}"):
            times = [
                (DIDEMO_SECONDS * int(first), DIDEMO_SECONDS * (int(last) + 1))
                for first, last in row["times"]
            ]
            video, text = Path(row["video"]).stem, row["description"]
            texts.append(MomentText(video, text, tuple(times), DIDEMO_ANNOTATORS))
    return texts


def read_qvhighlights(content: str) -> list[MomentText]:
    """Read JSON lines with ``vid``, ``query`` and ``relevant_windows`` in seconds."""
    texts = []
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            with _name_entry(f"line {number}"):
                row = untrusted.parse_json(line)
                if "relevant_windows" not in row:
                    raise ValueError(
                        "no 'relevant_windows'; those of the test split are in the file "
                        "highlight_test_with_gt.jsonl of its authors"
                    )
                spans = tuple((float(start), float(end)) for start, end in row["relevant_windows"])
                texts.append(MomentText(row["vid"], row["query"], spans))
    return texts


def read_charades_sta(content: str) -> list[MomentText]:
    """Read lines ``VIDEO START END##text``, in seconds."""
    texts = []
    reversed_at: list[str] = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"\s*(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)", line)
        if match is None:
            raise ValueError(f"line {number} is not 'VIDEO START END##text'")
        video, start, end, text = match.groups()
        with _name_entry(f"line {number}"):
            # A few published spans are reversed.
            first, last = float(start), float(end)
            reversed_at += [f"line {number}"] * (last < first)
            span = (last, first) if last < first else (first, last)
            texts.append(MomentText(video, text, (span,)))
    _report_reversed(reversed_at)
    return texts


def read_activitynet(content: str) -> list[MomentText]:
    """Read ``{"v_ID": {"timestamps": [[start, end], ...], "sentences": [...]}}``, in seconds."""
    texts = []
    reversed_at: list[str] = []
    for video, entry in untrusted.parse_json(content).items():
        with _name_entry(f"video {video!r}"):
            for times, text in zip(entry["timestamps"], entry["sentences"], strict=True):
                first, last = map(float, times)
                reversed_at += [f"video {video!r}"] * (last < first)  # As some published ones are.
                span = (last, first) if last < first else (first, last)
                texts.append(MomentText(video, text, (span,)))
    _report_reversed(reversed_at)
    return texts


def _report_reversed(entries: Sequence[str]) -> None:
    """Log the number of spans that end before they start; published files have a few."""
    if entries:
        logger.warning(
            "%s before the start, read the other way round: %s%s",
            "1 span ends" if len(entries) == 1 else f"{len(entries)} spans end",
            ", ".join(entries[:5]),
            ", ..." if len(entries) > 5 else "",
        )


READERS: Mapping[str, Callable[[str], list[MomentText]]] = {
    "didemo": read_didemo,
    "qvhighlights": read_qvhighlights,
    "charades-sta": read_charades_sta,
    "activitynet": read_activitynet,
}


def detect_format(content: str) -> str:
    """Detect the format of an annotation file; return its key in :data:`READERS`.

    >>> detect_format("AO8RW 0.0 6.9##a person puts a book on a shelf.")
    'charades-sta'
    """
    start = content.lstrip()[:1]
    if start == "[":
        return "didemo"
    if start == "{":
        first_line = content.lstrip().split("\n", 1)[0]
        return "qvhighlights" if '"vid"' in first_line else "activitynet"
    if "##" in content.split("\n", 1)[0]:
        return "charades-sta"
    raise ValueError("unknown format")


def read_moments(path: Path, name: str | None = None) -> list[MomentText]:
    """Read an annotation file in the format ``name``; if None, the format is detected."""
    if name is not None and name not in READERS:
        raise UsageError(f"unknown format {name!r}; known: {', '.join(READERS)}")
    try:
        content = untrusted.read_text(expand_home(path), untrusted.MAX_ANNOTATIONS)
        texts = READERS[name or detect_format(content)](content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DatasetError(
            f"{path}: cannot be read as annotated moments ({cause_of(error)}); expected the "
            f"published file of one of: {', '.join(READERS)}"
        ) from error
    if not texts:
        raise DatasetError(f"{path}: no annotated moments")
    return texts
