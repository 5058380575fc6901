"""People's own data: a CSV, a JSON-lines file, or a folder of videos with captions beside them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    finder_for,
    read_csv,
    read_json_lines,
    read_text,
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
    stable_order,
)
from eaglenet.research.data.sources import add_dataset
from eaglenet.video.containers import VIDEO_SUFFIXES

logger = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
VIDEO_KEYS = ("video", "path", "file", "video_id")
CAPTION_KEYS = ("caption", "captions", "text", "sentence")
# Text files that people keep beside videos and that are nobody's captions.
NOT_CAPTIONS = ("readme", "license", "licence", "notice", "changelog")
OWN = RetrievalProtocol(
    "own data", "every caption is a query; the gallery is every video of the split"
)


@dataclass(frozen=True)
class Entry:
    """One line of a captions file."""

    where: str
    video: str
    captions: tuple[Any, ...]
    window: tuple[float, float] | None = None
    split: str | None = None


def load(
    root: Path | str,
    split: str = "all",
    *,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of your own data; ``all`` is every video.

    ``root`` is a ``.csv`` (columns video, caption; optional start, end, split; several lines a
    video), a ``.jsonl`` (the same keys; ``captions`` may be a list), a folder that holds exactly
    one such file, or a folder of videos, each with a ``.txt`` of the same name, one caption a line
    (a ``.txt`` whose video is gone counts as a missing video).
    Where no line names a split, videos are shared out by ``fractions`` (train, val, test) with a
    hash of their name: the same on every machine.
    """
    root = Path(root)
    check_split_name("folder", split, (*SPLITS, "all"))
    file = captions_file(root)
    folder = file.parent if file else root
    if file is None:
        entries = list(sidecar_entries(root))
    elif file.suffix == ".csv":
        entries = list(csv_entries(file))
    else:
        entries = list(json_entries(file))
    find = finder or finder_for(folder, video_folders)
    videos, splits, left_out = merge(entries, folder, find)
    if split != "all":
        names = splits if splits else share_out(list(videos), fractions, seed)
        if videos and not splits and split not in names.values():
            raise DatasetError(
                f"{folder}: no line names a split, and of {len(videos)} videos shared out none is "
                f"left for {split}; write train, val or test in a column split, or add videos"
            )
        videos = {key: video for key, video in videos.items() if names.get(key) == split}
        # A video without captions is shared out to no split; it is counted with the largest one.
        left_out = [entry for entry in left_out if splits.get(entry.video_id, "train") == split]
    protocol = replace(OWN, name=f"{folder.name or 'own data'} {split}")
    return make_split("folder", split, protocol, list(videos.values()), left_out)


def captions_file(root: Path) -> Path | None:
    """The CSV or JSON-lines file meant by ``root``; ``None`` for a folder with sidecar texts."""
    if root.is_file():
        if root.suffix not in (".csv", ".jsonl"):
            raise DatasetError(f"{root}: expected a .csv or .jsonl file, or a folder")
        return root
    if not root.is_dir():
        raise DatasetError(f"{root} does not exist; give a .csv, a .jsonl or a folder of videos")
    files = sorted(path for path in root.iterdir() if path.suffix in (".csv", ".jsonl"))
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise DatasetError(f"{root} holds several captions files ({names}); give one of them")
    return files[0] if files else None


def csv_entries(path: Path) -> Iterator[Entry]:
    for line, row in read_csv(path):
        yield entry_of(row, f"{path}: line {line}")


def json_entries(path: Path) -> Iterator[Entry]:
    for line, row in read_json_lines(path):
        yield entry_of(row, f"{path}: line {line}")


def sidecar_entries(root: Path) -> Iterator[Entry]:
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES)
    if not paths:
        raise DatasetError(f"{root}: no video files and no .csv or .jsonl file found")
    sidecars = {path.with_suffix(".txt") for path in paths}
    if not any(sidecar.exists() for sidecar in sidecars):
        raise DatasetError(
            f"{root} holds {len(paths)} videos and no captions; write captions.csv there with the "
            "columns video,caption, or beside each video a .txt of the same name"
        )
    for path in paths:
        sidecar = path.with_suffix(".txt")
        captions = captions_of(sidecar) if sidecar.exists() else ()
        yield Entry(str(sidecar), str(path.relative_to(root)), captions)
    # Captions whose video is gone: listed, so that it counts as missing.
    for sidecar in sorted(root.rglob("*.txt")):
        if sidecar in sidecars or sidecar.stem.lower() in NOT_CAPTIONS:
            continue
        captions = captions_of(sidecar)
        if captions:
            yield Entry(str(sidecar), str(sidecar.relative_to(root).with_suffix("")), captions)


def captions_of(sidecar: Path) -> tuple[str, ...]:
    return tuple(text for text in read_text(sidecar).split("\n") if text.strip())


def entry_of(row: dict[str, Any], where: str) -> Entry:
    video = next((row[key] for key in VIDEO_KEYS if row.get(key)), None)
    if video is None or video == "" or (isinstance(video, str) and not video.strip()):
        raise DatasetError(f"{where}: no video given; expected one of {', '.join(VIDEO_KEYS)}")
    check_id(video, where)
    present = [key for key in CAPTION_KEYS if row.get(key) is not None]
    if not present:
        raise DatasetError(f"{where}: no caption given; expected one of {', '.join(CAPTION_KEYS)}")
    value = row[present[0]]
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
    entries: Sequence[Entry], folder: Path, finder: VideoFinder
) -> tuple[dict[str, VideoRecord], dict[str, str], list[VideoProblem]]:
    """Lines of one video (and one window of it) joined; splits by id; videos without captions."""
    videos: dict[str, VideoRecord] = {}
    splits: dict[str, str] = {}
    listed: dict[str, None] = {}
    num_empty = 0
    paths = locate_all({entry.video: None for entry in entries}, folder, finder)
    for entry in entries:
        span = entry.window
        key = entry.video if span is None else f"{entry.video}#{span[0]:g}-{span[1]:g}"
        listed[key] = None
        captions, empty = clean_captions(entry.captions, entry.where)
        num_empty += empty
        if entry.split is not None:
            if entry.split not in SPLITS:
                raise DatasetError(
                    f"{entry.where}: split {entry.split!r} is unknown; use {', '.join(SPLITS)}"
                )
            if splits.setdefault(key, entry.split) != entry.split:
                raise DatasetError(
                    f"{entry.where}: {key!r} is in split {splits[key]!r} and {entry.split!r}"
                )
        if captions:
            known = videos.get(key)
            if known is None:
                known = VideoRecord(key, (), paths[entry.video], span)
            videos[key] = replace(known, captions=known.captions + captions)
    if splits and len(splits) < len(listed):
        absent = next(key for key in listed if key not in splits)
        raise DatasetError(f"{absent!r} names no split while other lines do; name one in each line")
    if num_empty:
        logger.warning("skipped %d empty captions under %s", num_empty, folder)
    left_out = [VideoProblem(key, "no caption") for key in listed if key not in videos]
    return videos, splits, left_out


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A caption in the column of videos: too long for any file name.
        return False


def locate_all(names: Iterable[str], folder: Path, finder: VideoFinder) -> dict[str, Path | None]:
    """File of each name: as a path from the captions file or the root of the disk, else by its
    last part anywhere.

    A file that another name means is not taken: `b/clip.mp4` that is missing must not become
    `a/clip.mp4`.
    """
    found = {name: folder / name if is_file(folder / name) else None for name in names}
    taken = {path.resolve() for path in found.values() if path is not None}
    elsewhere = {name: finder.find(Path(name).name) for name, path in found.items() if path is None}
    meant = Counter(elsewhere.values())
    for name, path in elsewhere.items():
        if path is not None and path.resolve() not in taken and meant[path] == 1:
            found[name] = path
    return found


def share_out(video_ids: Sequence[str], fractions: Sequence[float], seed: int) -> dict[str, str]:
    """Split of each video: by file, so that two windows of one file never part."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise UsageError(f"fractions {tuple(fractions)} must be three numbers that sum to 1")
    files = stable_order({video_id.partition("#")[0] for video_id in video_ids}, seed)
    num_test = round(fractions[2] * len(files))
    num_val = round(fractions[1] * len(files))
    names = {}
    for place, file in enumerate(files):
        is_test, is_val = place < num_test, place < num_test + num_val
        names[file] = "test" if is_test else "val" if is_val else "train"
    return {video_id: names[video_id.partition("#")[0]] for video_id in video_ids}


add_dataset(
    DatasetSpec(
        "folder",
        "your own CSV, JSON lines or folder",
        load,
        options={"fractions": "train, val, test shares where no split is named"},
    )
)
