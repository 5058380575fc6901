"""Preparation of folders of frames from image files and caption files.

The item of an image is its file name without leading zeros and extension, or the group of a regular
expression that matches its path. Items with several images are videos, whose frames are in the
order of the paths.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.progress import Progress, ProgressUpdate
from eaglenet.research.data.annotation_files import (
    captions_by_video,
    captions_of_entries,
    read_bytes,
    read_csv,
    read_json,
    read_text,
)
from eaglenet.research.data.frame_folder import FrameFolderWriter, FrameItem, shrink_to_jpeg

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
MAX_IMAGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class FramePreparation:
    """Options of ``eaglenet data frames``.

    Caption files are JSON, optionally gzipped: ``{item: [caption, ...]}``, or as in MSR-VTT
    ``{"sentences": [{"video_id", "caption"}, ...]}``. Files of ids have one id per line, or are CSV
    with a column ``video_id``.
    """

    images: Path
    captions: Mapping[str, Path]
    source: str
    size: int = 192
    item: str = ""
    halves: bool = False
    only: Path | None = None
    without: Sequence[Path] = field(default_factory=tuple)
    validation: float = 0.0
    test: bool = False

    def __post_init__(self) -> None:
        if not 16 <= self.size <= 1024:
            raise UsageError(f"--size {self.size}: expected 16 to 1024 pixels")
        if self.validation < 0:
            raise UsageError(f"--validation {self.validation}: expected a fraction or a number")
        if self.test and self.validation:
            raise UsageError("--test and --validation cannot be combined; use one of them")
        if self.item and re.compile(self.item).groups != 1:
            raise UsageError(
                f"--item {self.item!r}: the pattern needs one group, for the item's id"
            )


def prepare_frames(
    plan: FramePreparation, output: Path, progress: Progress | None = None
) -> Mapping[str, int]:
    """Write a folder of frames; return counts of items, frames and unreadable images."""
    captions = {kind: read_captions(path) for kind, path in plan.captions.items()}
    images = find_images(plan)
    captioned_ids = set().union(*captions.values())
    excluded_ids = set().union(*(read_ids(path) for path in plan.without), set())
    ids = set(images) & captioned_ids - excluded_ids
    if plan.only is not None:
        ids &= read_ids(plan.only)
    if not ids:
        raise DatasetError(
            f"{plan.images}: none of its {len(images)} items has a caption in "
            f"{', '.join(map(str, plan.captions.values()))}; their ids look like "
            f"{', '.join(sorted(images)[:3]) or '(no image found)'} and "
            f"{', '.join(sorted(captioned_ids)[:3])}: --item PATTERN extracts an id from a path"
        )
    validation = choose_validation(ids, plan)
    main_split = "test" if plan.test else "train"
    writer = FrameFolderWriter(output, plan.size)
    counts = {"items": 0, "frames": 0, "validation": len(validation), "unreadable": 0}
    order = sorted(ids, key=lambda name: (len(name), name))
    for number, name in enumerate(order):
        frames = list(_frames(images[name], plan, counts))
        if frames:
            item = FrameItem(
                id=f"{plan.source}-{name}",
                split="validation" if name in validation else main_split,
                source=plan.source,
                frames=len(frames),
                captions={kind: table.get(name, ()) for kind, table in captions.items()},
            )
            writer.add(item, frames)
            counts["items"] += 1
            counts["frames"] += len(frames)
        if progress is not None:
            progress(ProgressUpdate("preparing frames", number + 1, len(order)))
    writer.close()
    return counts


def find_images(plan: FramePreparation) -> dict[str, list[Path]]:
    """Find the images of each item, in the order of their paths."""
    if not plan.images.is_dir():
        raise DatasetError(f"{plan.images}: no such folder of images")
    pattern = re.compile(plan.item) if plan.item else None
    items: dict[str, list[Path]] = {}
    for path in sorted(plan.images.rglob("*"), key=_natural):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        name = path.stem.lstrip("0") or "0"
        if pattern is not None:
            match = pattern.search(path.relative_to(plan.images).as_posix())
            if match is None:
                continue
            name = match.group(1)
        items.setdefault(name, []).append(path)
    return items


def read_captions(path: Path) -> Mapping[str, Sequence[str]]:
    if path.suffix == ".gz":
        try:
            content = untrusted.parse_json(
                untrusted.gunzip(read_bytes(path), untrusted.MAX_ANNOTATIONS)
            )
        except (OSError, ValueError) as error:
            raise DatasetError(f"{path}: captions cannot be read ({error})") from error
    else:
        content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("sentences"), list):
        entries = enumerate(content["sentences"])
        return captions_of_entries(
            "frames", path, entries, video="video_id", caption="caption", title="sentence"
        )
    return captions_by_video("frames", path, content)


def read_ids(path: Path) -> set[str]:
    """Read ids, one per line, or the column ``video_id`` of a CSV."""
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if lines and "video_id" in lines[0].split(","):
        return {row["video_id"] for _, row in read_csv(path)}
    return set(lines)


def choose_validation(items: Iterable[str], plan: FramePreparation) -> set[str]:
    """Select the validation items by a hash of their ids."""
    names = sorted(
        items, key=lambda name: hashlib.sha256(f"{plan.source}{name}".encode()).hexdigest()
    )
    count = plan.validation if plan.validation >= 1 else plan.validation * len(names)
    return set(names[: round(count)])


def _frames(
    paths: Sequence[Path], plan: FramePreparation, counts: dict[str, int]
) -> Iterator[bytes]:
    for path in paths:
        try:
            data = untrusted.read_bytes(path, MAX_IMAGE_BYTES)
            halves = (0, 1) if plan.halves else (None,)
            yield from [shrink_to_jpeg(data, plan.size, half=half) for half in halves]
        except (OSError, ValueError):
            counts["unreadable"] += 1


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by value: frame 9 before frame 10."""
    parts = re.split(r"(\d+)", path.as_posix())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
