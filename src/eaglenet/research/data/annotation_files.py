"""Readers of untrusted annotation files; errors name the file and the line or entry.

Files with moments (texts with the spans of a video that show them) are those of DiDeMo,
QVHighlights, Charades-STA and ActivityNet Captions.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError, cause_of
from eaglenet.research.data.records import check_id, clean_captions, report_empty_captions
from eaglenet.video.containers import VIDEO_SUFFIXES

# DiDeMo has files that end in .null, TGIF has .gif.
LISTED_SUFFIXES = VIDEO_SUFFIXES | {".null", ".gif"}


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
    """Read a UTF-8 file without its byte-order mark; errors name the position of other bytes."""
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
    """Read (line number, object) of every line that is not blank."""
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
    """Read (line number, row) of a CSV with a header, which must name ``columns``."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    rows = []
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        absent = [name for name in columns if name not in header]
        if absent:
            # A quoted name may have line breaks, and a broken file one of a thousand letters.
            names = ", ".join(" ".join(name.split())[:60] for name in header[:20])
            raise DatasetError(f"{path}: column {absent[0]!r} is missing; the header has {names}")
        for row in reader:
            if None in row or any(value is None for value in row.values()):
                raise DatasetError(
                    f"{path}: line {reader.line_num} does not have the {len(header)} columns of "
                    "the header; quote captions that hold commas"
                )
            rows.append((reader.line_num, row))
    except csv.Error as error:
        raise DatasetError(f"{path}: broken CSV at line {reader.line_num}: {error}") from error
    return rows


def read_columns(path: Path, names: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read (line number, row) of a file without a header, with columns separated by tabs."""
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
    """Read one entry per line, without blank lines; refuses an entry that is listed twice."""
    entries = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    refuse_duplicates(entries, path)
    if not entries:
        raise DatasetError(f"{path}: the list is empty")
    return entries


def refuse_duplicates(entries: Sequence[str], path: Path) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry in seen:
            raise DatasetError(
                f"{path}: {entry!r} is listed more than once; remove the other lines"
            )
        seen.add(entry)


def find_file(root: Path, names: Sequence[str], folders: Sequence[str] = ()) -> Path:
    """Path of the first of ``names`` in ``root`` or its ``folders``; errors list the folders."""
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder; give the one that holds the annotation files")
    candidates = [root, *(root / folder for folder in ("annotations", "data", *folders))]
    candidates += [root / "annotations" / folder for folder in folders]
    for candidate in candidates:
        for name in names:
            if (candidate / name).is_file():
                return candidate / name
    inside = ", ".join(("annotations", "data", *folders))
    raise DatasetError(f"{' or '.join(names)} not found; looked in {root} and its folders {inside}")


class VideoFinder:
    """Index of video files by id, with any extension. The folders are walked once.

    Links to folders are followed, loops are not. Where several files match an id, the earlier
    folder wins, then the first path in sorted order; :meth:`ambiguous` lists such ids.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.by_stem: dict[str, list[Path]] = {}
        seen: set[str] = set()
        for folder in folders:
            if not folder.is_dir():
                raise DatasetError(f"{folder} is not a folder; give one that holds video files")
            # A GIF is often the preview of a video of the same name.
            paths = self._walk(folder, seen)
            for path in sorted(paths, key=lambda file: (file.suffix.lower() == ".gif", file)):
                self.by_stem.setdefault(stem_of(path.name), []).append(path)

    @staticmethod
    def _walk(folder: Path, seen: set[str]) -> Iterable[Path]:
        for inside, subfolders, names in os.walk(folder, followlinks=True):
            real = os.path.realpath(inside)
            if real in seen:
                subfolders.clear()
                continue
            seen.add(real)
            for name in names:
                if is_video_name(name):
                    yield Path(inside, name)

    def candidates(self, video_id: str) -> list[Path]:
        """Files that match an id, those whose whole name is the id first."""
        paths = self.by_stem.get(video_id) or self.by_stem.get(stem_of(video_id)) or []
        exact = [path for path in paths if path.name == video_id]
        return exact + [path for path in paths if path.name != video_id]

    def find(self, video_id: str) -> Path | None:
        paths = self.candidates(video_id)
        return paths[0] if paths else None

    def ambiguous(self, video_ids: Iterable[str]) -> dict[str, list[Path]]:
        """Ids that several files match, with the files; the first one is used."""
        files = {video_id: self.candidates(video_id) for video_id in video_ids}
        return {video_id: paths for video_id, paths in files.items() if len(paths) > 1}


def stem_of(name: str) -> str:
    """``name`` without a video extension; a trailing dot counts as one (DiDeMo has such names)."""
    stem, dot, suffix = name.rpartition(".")
    is_extension = dot and stem and (not suffix or f".{suffix.lower()}" in LISTED_SUFFIXES)
    return stem if is_extension else name


def is_video_name(name: str) -> bool:
    """Tell whether a file name has a video extension or none; hidden files are not videos."""
    if name.startswith("."):
        return False
    _, dot, suffix = name.rpartition(".")
    return not dot or not suffix or f".{suffix.lower()}" in LISTED_SUFFIXES


def finder_for(root: Path, video_folders: Sequence[Path | str] | Path | str = ()) -> VideoFinder:
    """Finder in ``video_folders`` first, then in everything below ``root``."""
    # A single path is a sequence of characters too, the first of which is the root of the disk.
    folders = [video_folders] if isinstance(video_folders, Path | str) else video_folders
    return VideoFinder([*(Path(folder).expanduser() for folder in folders), root])


def captions_of_entries(
    dataset: str,
    path: Path,
    entries: Iterable[tuple[int, Any]],
    *,
    video: str,
    caption: str,
    title: str,
) -> dict[str, list[str]]:
    """Captions by video, in file order, from numbered entries with one caption each.

    ``video`` and ``caption`` are the keys of an entry, ``title`` is its name in errors. Empty
    captions are counted and left out.
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
    """Check {video_id: captions}; a caption is text or a list of words."""
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected an object of video id -> captions")
    captions = {}
    num_empty = 0
    for video_id, texts in content.items():
        where = f"{path}: video {video_id!r}"
        if not isinstance(video_id, str) or not isinstance(texts, list | tuple):
            raise DatasetError(f"{where} needs a text id with a list of captions")
        joined = (" ".join(text) if _is_word_list(text) else text for text in texts)
        captions[video_id], empty = clean_captions(joined, where)
        num_empty += empty
    report_empty_captions(dataset, num_empty, path)
    return captions


def _is_word_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


Span = tuple[float, float]
"""First and last second."""
DIDEMO_SECONDS = 5.0
"""Length of a segment of DiDeMo; its times are numbers of segments, the last one included."""
DIDEMO_ANNOTATORS = 3
"""Annotators whose best IoUs are averaged, as DiDeMo's own evaluation does."""


@dataclass(frozen=True)
class MomentText:
    """A text and the spans of one video that show it.

    num_annotators: how many of the best-matching spans are averaged to one IoU. 1: any span will
        do, as where several moments show the text. More: each span is one person's opinion.
    """

    video_id: str
    text: str
    spans: tuple[Span, ...]
    num_annotators: int = 1

    def __post_init__(self) -> None:
        if not self.spans:
            raise ValueError(f"no span for {self.text!r:.60}")
        for start, end in self.spans:
            if not 0 <= start <= end < float("inf"):
                raise ValueError(f"the span {start:g} to {end:g} s of {self.text!r:.60}")


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Name ``place`` in what goes wrong with one entry of a file."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{place} has no {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: {error}") from error


def read_didemo(content: str) -> list[MomentText]:
    """``[{"video", "description", "times": [[first, last], ...]}, ...]``, in segments of 5 s.

    The last segment of a video shorter than 30 s is taken to be whole, as DiDeMo's evaluation does.
    """
    texts = []
    for number, row in enumerate(untrusted.parse_json(content)):
        with _naming(f"entry {number}"):
            times = [
                (DIDEMO_SECONDS * int(first), DIDEMO_SECONDS * (int(last) + 1))
                for first, last in row["times"]
            ]
            video, text = Path(row["video"]).stem, row["description"]
            texts.append(MomentText(video, text, tuple(times), DIDEMO_ANNOTATORS))
    return texts


def read_qvhighlights(content: str) -> list[MomentText]:
    """One JSON object per line with ``vid``, ``query`` and ``relevant_windows``, in seconds.

    The file of the test split has no windows: its moments are scored by the authors' server.
    """
    texts = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            with _naming(f"line {number}"):
                row = untrusted.parse_json(line)
                spans = tuple((float(start), float(end)) for start, end in row["relevant_windows"])
                texts.append(MomentText(row["vid"], row["query"], spans))
    return texts


def read_charades_sta(content: str) -> list[MomentText]:
    """One ``VIDEO START END##text`` per line, in seconds."""
    texts = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"\s*(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)", line)
        if match is None:
            raise ValueError(f"line {number} is not 'VIDEO START END##text'")
        video, start, end, text = match.groups()
        with _naming(f"line {number}"):
            # A few published lines end before they start.
            low, high = sorted((float(start), float(end)))
            texts.append(MomentText(video, text.strip(), ((low, high),)))
    return texts


def read_activitynet(content: str) -> list[MomentText]:
    """``{"v_ID": {"timestamps": [[start, end], ...], "sentences": [...]}}``, in seconds."""
    texts = []
    for video, entry in untrusted.parse_json(content).items():
        with _naming(f"video {video!r}"):
            for span, text in zip(entry["timestamps"], entry["sentences"], strict=True):
                low, high = sorted(map(float, span))  # Some published spans are reversed.
                texts.append(MomentText(video, str(text).strip(), ((low, high),)))
    return texts


READERS: Mapping[str, Callable[[str], list[MomentText]]] = {
    "didemo": read_didemo,
    "qvhighlights": read_qvhighlights,
    "charades-sta": read_charades_sta,
    "activitynet": read_activitynet,
}


def detect_format(content: str) -> str:
    """Name of the format of an annotation file.

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
    raise ValueError("it is none of " + ", ".join(READERS))


def read_moments(path: Path, name: str | None = None) -> list[MomentText]:
    """Read an annotation file; the format is recognised if ``name`` is None."""
    if name is not None and name not in READERS:
        raise UsageError(f"unknown format {name!r}; known: {', '.join(READERS)}")
    try:
        content = untrusted.read_text(path.expanduser(), untrusted.MAX_ANNOTATIONS)
        texts = READERS[name or detect_format(content)](content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DatasetError(
            f"{path}: cannot be read as annotated moments ({cause_of(error)}); expected the "
            f"published file of one of: {', '.join(READERS)}"
        ) from error
    if not texts:
        raise DatasetError(f"{path}: has no annotated moment")
    return texts
