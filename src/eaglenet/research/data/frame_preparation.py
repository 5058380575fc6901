"""Folders of frames made from pictures on disk and files of captions.

Pictures may lie anywhere below a folder. What a picture belongs to (its item) is the name of the
file without leading zeros and ending, or the first group of a pattern that its path matches; items
with several pictures are videos, their frames in the order of the paths.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.progress import Progress, ProgressUpdate
from eaglenet.research.data.frame_folder import FrameFolderWriter, FrameItem, shrink_to_jpeg

PICTURES = {".jpg", ".jpeg", ".png", ".webp"}
MAX_PICTURE = 64 * 2**20


@dataclass(frozen=True)
class FramePreparation:
    """What to take and how.

    captions: kind (people, machine or labels) -> file. Read are JSON ``{item: [sentence, ...]}``,
        gzipped or not, and MSR-VTT's ``{"sentences": [{"video_id", "caption"}, ...]}``.
    item: a pattern with one group that finds an item's id in the path of a picture.
    halves: every picture shows two frames side by side.
    only, without: files with ids to take or to leave out (a test split), one a line or a CSV with
        a column ``video_id``.
    validation: share of the items, or from 1 up their number, that become the validation split.
    test: all items are the test split of a folder of its own.
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
            raise UsageError(f"--size {self.size}: give 16 to 1024 pixels")
        if self.validation < 0:
            raise UsageError(f"--validation {self.validation}: give a share or a number of items")
        if self.test and self.validation:
            raise UsageError("--test and --validation: a folder of test items has no other split")
        if self.item and re.compile(self.item).groups != 1:
            raise UsageError(f"--item {self.item!r}: the pattern needs one group, the item's id")


def prepare_frames(
    plan: FramePreparation, output: Path, progress: Progress | None = None
) -> Mapping[str, int]:
    """Write a folder of frames; gives what was counted."""
    captions = {kind: read_captions(path) for kind, path in plan.captions.items()}
    pictures = find_pictures(plan)
    known = set().union(*captions.values())
    left_out = set().union(*(read_ids(path) for path in plan.without), set())
    wanted = set(pictures) & known - left_out
    if plan.only is not None:
        wanted &= read_ids(plan.only)
    if not wanted:
        raise DatasetError(
            f"{plan.images}: none of its {len(pictures)} items has a caption in "
            f"{', '.join(map(str, plan.captions.values()))}; their ids look like "
            f"{', '.join(sorted(pictures)[:3]) or '(no picture found)'} and "
            f"{', '.join(sorted(known)[:3])}: --item PATTERN finds an id in a path"
        )
    validation = choose_validation(wanted, plan)
    others = "test" if plan.test else "train"
    writer = FrameFolderWriter(output, plan.size)
    counts = {"items": 0, "frames": 0, "validation": len(validation), "unreadable": 0}
    order = sorted(wanted, key=lambda name: (len(name), name))
    for number, name in enumerate(order):
        frames = list(_frames(pictures[name], plan, counts))
        if frames:
            item = FrameItem(
                id=f"{plan.source}-{name}",
                split="validation" if name in validation else others,
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


def find_pictures(plan: FramePreparation) -> dict[str, list[Path]]:
    """Pictures of each item, in the order of their paths."""
    if not plan.images.is_dir():
        raise DatasetError(f"{plan.images}: no such folder of pictures")
    pattern = re.compile(plan.item) if plan.item else None
    found: dict[str, list[Path]] = {}
    for path in sorted(plan.images.rglob("*"), key=_natural):
        if path.suffix.lower() not in PICTURES:
            continue
        name = path.stem.lstrip("0") or "0"
        if pattern is not None:
            match = pattern.search(path.relative_to(plan.images).as_posix())
            if match is None:
                continue
            name = match.group(1)
        found.setdefault(name, []).append(path)
    return found


def read_captions(path: Path) -> dict[str, tuple[str, ...]]:
    """Item -> sentences."""
    try:
        data = untrusted.read_bytes(path, untrusted.MAX_ANNOTATIONS)
        if path.suffix == ".gz":
            data = untrusted.gunzip(data, untrusted.MAX_ANNOTATIONS)
        plain = untrusted.parse_json(data)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: captions cannot be read ({error})") from error
    if isinstance(plain, dict) and isinstance(plain.get("sentences"), list):
        table: dict[str, list[str]] = {}
        for entry in plain["sentences"]:
            table.setdefault(str(entry["video_id"]), []).append(str(entry["caption"]))
        return {name: tuple(sentences) for name, sentences in table.items()}
    if not isinstance(plain, dict):
        raise DatasetError(f"{path}: expected an object of items with lists of sentences")
    for name, sentences in plain.items():
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise DatasetError(f"{path}: {name!r:.60} should have a list of sentences")
    return {name: tuple(sentences) for name, sentences in plain.items()}


def read_ids(path: Path) -> set[str]:
    """Ids of a list, or of the column ``video_id`` of a CSV."""
    try:
        text = untrusted.read_bytes(path, untrusted.MAX_ANNOTATIONS).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: ids cannot be read ({error})") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and "video_id" in lines[0].split(","):
        return {row["video_id"] for row in csv.DictReader(lines)}
    return {line.strip() for line in lines}


def choose_validation(items: Iterable[str], plan: FramePreparation) -> set[str]:
    """The same items whoever prepares them: those whose hash comes first."""
    names = sorted(
        items, key=lambda name: hashlib.sha256(f"{plan.source}{name}".encode()).hexdigest()
    )
    share = plan.validation
    return set(names[: round(share if share >= 1 else share * len(names))])


def _frames(
    paths: Sequence[Path], plan: FramePreparation, counts: dict[str, int]
) -> Iterator[bytes]:
    for path in paths:
        try:
            data = untrusted.read_bytes(path, MAX_PICTURE)
            parts = (0, 1) if plan.halves else (None,)
            yield from [shrink_to_jpeg(data, plan.size, half=part) for part in parts]
        except (OSError, ValueError):
            counts["unreadable"] += 1


def _natural(path: Path) -> list[tuple[int, str]]:
    """Numbers in names by their value: frame 9 before frame 10."""
    parts = re.split(r"(\d+)", path.as_posix())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
