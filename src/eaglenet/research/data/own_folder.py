"""The user's own data: a CSV or JSON-lines file, or a folder of videos with text files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.text import pluralize
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    finder_for,
    read_csv,
    read_json_lines,
    read_text,
    walk_files,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    VideoProblem,
    VideoRecord,
    check_id,
    check_split_name,
    clean_captions,
    make_split,
    report_empty_captions,
    stable_order,
)
from eaglenet.research.data.sources import add_dataset
from eaglenet.video.containers import VIDEO_SUFFIXES

SPLITS = ("train", "val", "test")
VIDEO_KEYS = ("video", "path", "file", "video_id")
CAPTION_KEYS = ("caption", "captions", "text", "sentence")
CAPTIONS_SUFFIXES = (".csv", ".jsonl")
NOT_CAPTIONS = ("readme", "license", "licence", "notice", "changelog")
"""Names of text files that are not captions."""


@dataclass(frozen=True)
class Entry:
    """Captions of a video, or of a window of it; ``where`` names the entry in errors."""

    where: str
    video: str
    captions: tuple[Any, ...]
    window: tuple[float, float] | None = None
    split: str | None = None


FRACTIONS = (0.8, 0.1, 0.1)
"""Fractions of train, val and test."""
MIN_VALIDATION = 10
"""Smallest number of files for validation, unless it is more than a fifth of all files."""


def load(
    root: Path | str,
    split: str = "all",
    *,
    fractions: Sequence[float] = FRACTIONS,
    seed: int = 0,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """Load a split of the user's own data; ``all`` selects all videos.

    root: a ``.csv`` (columns video, caption; optionally start, end, split; several lines per
        video); a ``.jsonl`` (the same keys; ``captions`` may be a list); a folder with one such
        file; or a folder of videos, each with a ``.txt`` of the same name and one caption per line
        (a ``.txt`` without a video counts as a missing video).
    split: train, val, test, all, or another name that lines of the file have, as in datasets of the
        hub.
    fractions: fractions of train, val and test. If no line has a split, videos are divided by a
        hash of their names. By default, val is larger in a small folder.
    """
    root = Path(root)
    file = captions_file(root)
    folder = file.parent if file else root
    if file is None:
        entries = list(sidecar_entries(root))
    else:
        is_csv = file.suffix.lower() == ".csv"
        rows = read_csv(file) if is_csv else read_json_lines(file)
        entries = [entry_of(row, f"{file}: line {line}") for line, row in rows]
        if not entries:
            raise DatasetError(
                f"{file} is empty; write one line per caption: VIDEO,CAPTION under the header "
                "video,caption"
            )
    if split not in {entry.split for entry in entries}:
        check_split_name("folder", split, (*SPLITS, "all"))
    find = finder or finder_for(folder, video_folders)
    videos, splits, left_out = merge(entries, folder, find, {*SPLITS, split})
    if split != "all":
        names = splits if splits else divide(list(videos.values()), fractions, seed)
        if videos and not splits and split not in names.values():
            # All windows of a file are in one split.
            count = len(set(map(file_name, videos.values())))
            raise DatasetError(
                f"no line of {str(file or folder)!r} has a split, and {pluralize(count, 'video')} "
                f"{'is' if count == 1 else 'are'} too few for {split}; write train, val or test in "
                "a column split, or add videos"
            )
        videos = {key: video for key, video in videos.items() if names.get(key) == split}
        # A video without captions and without a split is reported with train.
        left_out = [entry for entry in left_out if splits.get(entry.video_id, "train") == split]
    protocol = RetrievalProtocol(f"{folder.name or 'own data'} {split}")
    return make_split("folder", split, protocol, list(videos.values()), left_out)


def captions_file(root: Path) -> Path | None:
    """Return the CSV or JSON-lines file; None for a folder with a ``.txt`` per video."""
    if root.is_file():
        if root.suffix.lower() not in CAPTIONS_SUFFIXES:
            raise DatasetError(f"{root}: expected a .csv or .jsonl file, or a folder")
        return root
    if not root.is_dir():
        raise DatasetError(f"{root} does not exist; expected a .csv, .jsonl or folder of videos")
    files = sorted(
        path
        for path in root.iterdir()
        if path.suffix.lower() in CAPTIONS_SUFFIXES and not path.name.startswith(".")
    )
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise DatasetError(f"{root} has several captions files ({names}); name one of them")
    return files[0] if files else None


def sidecar_entries(root: Path) -> Iterator[Entry]:
    """Yield an entry for each video with its ``.txt``, and for each ``.txt`` without a video."""
    files = sorted(walk_files(root))
    paths = [path for path in files if path.suffix.lower() in VIDEO_SUFFIXES]
    if not paths:
        raise DatasetError(f"{root}: no video files and no .csv or .jsonl file found")
    sidecars = {path.with_suffix(".txt") for path in paths}
    if not any(sidecar.exists() for sidecar in sidecars):
        raise DatasetError(
            f"{root} has {len(paths)} videos and no captions; write captions.csv there with the "
            "columns video,caption, or beside each video a .txt of the same name"
        )
    for path in paths:
        sidecar = path.with_suffix(".txt")
        captions = captions_of(sidecar) if sidecar.exists() else ()
        yield Entry(str(sidecar), str(path.relative_to(root)), captions)
    # Captions without a video: their video counts as missing.
    for sidecar in files:
        if sidecar.suffix != ".txt" or sidecar in sidecars or sidecar.stem.lower() in NOT_CAPTIONS:
            continue
        captions = captions_of(sidecar)
        if captions:
            yield Entry(str(sidecar), str(sidecar.relative_to(root).with_suffix("")), captions)


def captions_of(sidecar: Path) -> tuple[str, ...]:
    return tuple(text for text in read_text(sidecar).split("\n") if text.strip())


def entry_of(row: dict[str, Any], where: str) -> Entry:
    video = next((row[key] for key in VIDEO_KEYS if row.get(key)), None)
    keys = [key for key in CAPTION_KEYS if row.get(key) is not None]
    has_video = video is not None and bool(str(video).strip())
    if video is None or not has_video or not keys:
        missing = ["video"] * (not has_video) + ["caption"] * (not keys)
        names = [
            f"{name} (or {', '.join(others[1:])})"
            for name, others in (("video", VIDEO_KEYS), ("caption", CAPTION_KEYS))
            if name in missing
        ]
        raise DatasetError(
            f"{where}: no {' and no '.join(missing)}; expected a column "
            f"{' and a column '.join(names)}, and there {'is' if len(row) == 1 else 'are'} "
            f"{', '.join(map(repr, row))[:100]}"
        )
    check_id(video, where)
    value = row[keys[0]]
    captions = tuple(value) if isinstance(value, list) else (value,)
    return Entry(where, video.strip(), captions, window_of(row, where), row.get("split") or None)


def window_of(row: dict[str, Any], where: str) -> tuple[float, float] | None:
    start, end = row.get("start"), row.get("end")
    if start in (None, "") and end in (None, ""):
        return None
    try:
        window = (float(start or 0.0), float(end))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise DatasetError(
            f"{where}: start {start!r} and end {end!r} must be seconds; an end is needed"
        ) from None
    if not 0 <= window[0] < window[1] < float("inf"):
        raise DatasetError(f"{where}: the window {window} must have 0 <= start < end")
    return window


def merge(
    entries: Sequence[Entry], folder: Path, finder: VideoFinder, known_splits: Collection[str]
) -> tuple[dict[str, VideoRecord], dict[str, str], list[VideoProblem]]:
    """Merge the entries of each video and window.

    Returns records by id, splits by id, and the videos left out.
    """
    videos: dict[str, VideoRecord] = {}
    splits: dict[str, str] = {}
    ids: dict[str, None] = {}
    num_empty = 0
    paths = locate_all({entry.video: None for entry in entries}, folder, finder)
    for entry in entries:
        span = entry.window
        key = entry.video if span is None else f"{entry.video}#{span[0]:g}-{span[1]:g}"
        ids[key] = None
        captions, empty = clean_captions(entry.captions, entry.where)
        num_empty += empty
        if entry.split is not None:
            if entry.split not in known_splits:
                raise DatasetError(
                    f"{entry.where}: split {entry.split!r} is unknown; use {', '.join(SPLITS)}"
                )
            if splits.setdefault(key, entry.split) != entry.split:
                raise DatasetError(
                    f"{entry.where}: {key!r} is in split {splits[key]!r} and {entry.split!r}"
                )
        if captions:
            record = videos.get(key) or VideoRecord(key, (), paths[entry.video], span)
            videos[key] = replace(record, captions=record.captions + captions)
    if splits and len(splits) < len(ids):
        video = next(key for key in ids if key not in splits)
        raise DatasetError(f"{video!r} has no split while others do; write a split in each line")
    report_empty_captions("folder", num_empty, folder)
    left_out = [VideoProblem(key, "no caption") for key in ids if key not in videos]
    return videos, splits, left_out


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # The name is too long, for example a caption in the wrong column.
        return False


def locate_all(names: Iterable[str], folder: Path, finder: VideoFinder) -> dict[str, Path | None]:
    """Find the file of each name, relative to ``folder`` or else by its file name anywhere.

    No file is used for two names: a missing ``b/clip.mp4`` must not become ``a/clip.mp4``.
    """
    files = {name: folder / name if is_file(folder / name) else None for name in names}
    used_paths = {path.resolve() for path in files.values() if path is not None}
    matches = {name: finder.find(Path(name).name) for name, path in files.items() if path is None}
    counts = Counter(matches.values())
    for name, path in matches.items():
        if path is not None and path.resolve() not in used_paths and counts[path] == 1:
            files[name] = path
    return files


def divide(videos: Sequence[VideoRecord], fractions: Sequence[float], seed: int) -> dict[str, str]:
    """Assign a split to each video by id; all windows of a file are in the same split."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise UsageError(f"fractions {tuple(fractions)} must be three numbers that sum to 1")
    file_of = {video.video_id: file_name(video) for video in videos}
    files = stable_order(set(file_of.values()), seed)
    num_test = round(fractions[2] * len(files))
    num_val = round(fractions[1] * len(files))
    if tuple(fractions) == FRACTIONS:
        # The best epoch cannot be chosen on too few files.
        num_val = max(num_val, min(MIN_VALIDATION, len(files) // 5))
    names = {}
    for index, file in enumerate(files):
        is_test, is_val = index < num_test, index < num_test + num_val
        names[file] = "test" if is_test else "val" if is_val else "train"
    return {video_id: names[file] for video_id, file in file_of.items()}


def file_name(video: VideoRecord) -> str:
    """Return the id of a video without its window; names of files may contain ``#`` themselves."""
    return video.video_id if video.window is None else video.video_id.rpartition("#")[0]


add_dataset(DatasetSpec("folder", "your own CSV, JSON lines or folder", load))
