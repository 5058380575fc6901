"""Folders of frames with captions: small JPEGs of images or videos, packed for fast training.

A folder has ``index.jsonl`` with one item per line, and ``frames-0000.tar``, ``frames-0001.tar``,
... with one JPEG per frame, named ``ID/000.jpg``, in the order of the index. An item is a video
with its frames in order, or an image, which has one frame. Example of a line::

    {"id": "video7", "split": "train", "source": "msrvtt", "frames": 3,
     "captions": {"people": ["a man is singing", ...], "machine": [...], "labels": [...]}}

People wrote the captions of ``people``, and a captioner those of ``machine``; ``labels`` are names
of objects.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.progress import Progress, ProgressUpdate
from eaglenet.core.types import Clips
from eaglenet.research.data.annotation_files import (
    captions_by_video,
    captions_of_entries,
    read_bytes,
    read_csv,
    read_json,
    read_text,
)
from eaglenet.research.data.checks import CheckReport, report_split
from eaglenet.research.data.records import (
    RetrievalProtocol,
    Split,
    VideoProblem,
    VideoRecord,
    check_split_name,
    make_split,
)
from eaglenet.research.data.sources import (
    DataChoice,
    OpenContext,
    Source,
    SplitSummary,
    clip_source,
    summarise_split,
)
from eaglenet.video.images import encode_jpeg

INDEX_FILE = "index.jsonl"
SHARD_BYTES = 50_000_000
JPEG_QUALITY = 88
CAPTION_KINDS = ("people", "machine", "labels")


@dataclass(frozen=True)
class FrameItem:
    """An image or a video of a frame folder without its pixels; ``frames`` is their number."""

    id: str
    split: str
    source: str
    frames: int
    captions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_line(self) -> str:
        captions = {kind: list(texts) for kind, texts in self.captions.items() if texts}
        return json.dumps({**vars(self), "captions": captions}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str, where: str) -> FrameItem:
        """Parse and check a line of an index; ``where`` is its name in errors."""
        try:
            plain = untrusted.parse_json(line)
        except ValueError as error:
            raise DatasetError(f"{where}: not JSON ({error}); prepare the folder again") from error
        if not isinstance(plain, dict):
            raise DatasetError(f"{where}: expected an object, got {type(plain).__name__}")
        for name, kind in (("id", str), ("split", str), ("source", str), ("frames", int)):
            if not isinstance(plain.get(name), kind):
                raise DatasetError(
                    f"{where}: {name} should be {kind.__name__}, is {plain.get(name)!r}"
                )
        if plain["frames"] < 1:
            raise DatasetError(f"{where}: an item needs at least one frame, has {plain['frames']}")
        captions = plain.get("captions", {})
        if not isinstance(captions, dict) or set(captions) - set(CAPTION_KINDS):
            raise DatasetError(
                f"{where}: captions should be lists under {', '.join(CAPTION_KINDS)}"
            )
        for kind, texts in captions.items():
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise DatasetError(f"{where}: captions of {kind} should be a list of texts")
        return cls(plain["id"], plain["split"], plain["source"], plain["frames"], captions)


class FrameFolderWriter:
    """Writer of a folder of frames; the index is written last, so an unfinished folder has none."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("frames-*.tar")):
            raise DatasetError(f"{folder} already has frames; choose an empty folder")
        self.folder, self.size = folder, size
        self._lines: list[str] = []
        self._ids: set[str] = set()
        self._shard: tarfile.TarFile | None = None
        self._bytes = 0
        self._number = 0

    def add(self, item: FrameItem, frames: Sequence[bytes]) -> None:
        """Add an item; ``frames`` are JPEGs of the size of the folder."""
        if len(frames) != item.frames:
            raise DatasetError(f"{item.id}: expected {item.frames} frames, got {len(frames)}")
        if item.id in self._ids:
            raise DatasetError(f"{item.id} appears twice; ids must be unique")
        self._ids.add(item.id)
        if self._shard is None or self._bytes > SHARD_BYTES:
            self._next_shard()
        assert self._shard is not None
        for number, data in enumerate(frames):
            member = tarfile.TarInfo(f"{item.id}/{number:03d}.jpg")
            member.size = len(data)
            self._shard.addfile(member, io.BytesIO(data))
            self._bytes += len(data)
        self._lines.append(item.to_line())

    def close(self) -> None:
        if self._shard is not None:
            self._shard.close()
        (self.folder / INDEX_FILE).write_text("\n".join(self._lines) + "\n", "utf-8")

    def _next_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
        path = self.folder / f"frames-{self._number:04d}.tar"
        self._shard = tarfile.open(path, "w")  # noqa: SIM115 (closed with the folder)
        self._number, self._bytes = self._number + 1, 0


@dataclass(frozen=True)
class FrameFolder:
    folder: Path
    items: tuple[FrameItem, ...]

    @classmethod
    def open(cls, folder: Path) -> FrameFolder:
        path = folder / INDEX_FILE
        if not path.is_file():
            raise DatasetError(
                f"{folder} has no {INDEX_FILE}: it is not a folder of frames, or its preparation "
                "did not finish; prepare it with `eaglenet data frames`"
            )
        items = []
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                items.append(FrameItem.from_line(line, f"{path}, line {number}"))
        name, count = Counter(item.id for item in items).most_common(1)[0] if items else ("", 0)
        if count > 1:
            raise DatasetError(f"{path}: {name} appears {count} times")
        return cls(folder, tuple(items))

    @property
    def splits(self) -> Mapping[str, int]:
        return Counter(item.split for item in self.items)

    def read_jpegs(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the JPEG of every frame, in order."""
        for shard in sorted(self.folder.glob("frames-*.tar")):
            try:
                with tarfile.open(shard) as tar:
                    for member in tar:
                        file = tar.extractfile(member)
                        if file is not None:
                            yield member.name, file.read()
            except (tarfile.TarError, EOFError) as error:
                raise DatasetError(
                    f"{shard}: damaged ({error}); prepare the folder again"
                ) from error

    def read_frames(
        self, items: Iterable[FrameItem], size: int, *, threads: int = 8
    ) -> tuple[UInt8[Tensor, "frames 3 size size"], Int[Tensor, "starts"]]:
        """Read the frames of ``items`` in the order of the folder.

        The second tensor has the first row of each item, and the number of rows at the end.
        """
        ids = {item.id for item in items}
        ordered_items = [item for item in self.items if item.id in ids]
        starts = np.cumsum([0] + [item.frames for item in ordered_items])
        frames = np.empty((int(starts[-1]), size, size, 3), np.uint8)
        pairs = zip(ordered_items, starts, strict=False)
        first_rows = {item.id: int(start) for item, start in pairs}
        is_read = np.zeros(len(frames), np.bool_)
        count = 0

        def decode_to_row(row: int, name: str, data: bytes) -> None:
            try:
                frames[row] = decode_jpeg(data, size)
            except (OSError, ValueError) as error:
                raise DatasetError(
                    f"{self.folder}: {name} cannot be decoded ({error}); copy the folder again"
                ) from error
            is_read[row] = True

        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda job: decode_to_row(*job), self._rows(first_rows)):
                count += 1
        if count != len(frames):
            raise DatasetError(
                f"{self.folder}: the index lists {len(frames)} frames, the shards have {count}; "
                "a shard is missing: copy the folder again"
            )
        if not is_read.all():
            item = ordered_items[int(np.searchsorted(starts, is_read.argmin(), side="right")) - 1]
            raise DatasetError(
                f"{self.folder}: a frame of {item.id} is missing, and another is there twice; "
                "copy the folder again"
            )
        # A view: channels stay last in memory.
        pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
        return pixels, torch.from_numpy(starts)

    def _rows(self, first_rows: Mapping[str, int]) -> Iterator[tuple[int, str, bytes]]:
        num_frames = {item.id: item.frames for item in self.items}
        for name, data in self.read_jpegs():
            item, number = split_name(name)
            if item not in first_rows:
                continue
            if not 0 <= number < num_frames[item]:  # It would replace a frame of another item.
                raise DatasetError(
                    f"{self.folder}: {name} is not one of the {num_frames[item]} frames that the "
                    "index lists; copy the folder again"
                )
            yield first_rows[item] + number, name, data


def split_name(name: str) -> tuple[str, int]:
    """Return the item and the number of a frame, given its name in a shard; -1 for other names."""
    item, _, file = name.rpartition("/")
    number = file.removesuffix(".jpg")
    return item, int(number) if re.fullmatch(r"[0-9]{1,9}", number) else -1


def decode_jpeg(data: bytes, size: int) -> Any:
    """Decode a JPEG to uint8 [size, size, 3]; raise ``OSError`` or ``ValueError`` if broken."""
    from PIL import Image

    rgb = _decode_image(data, ("JPEG",))
    if rgb.size != (size, size):
        rgb = rgb.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(rgb)


def _decode_image(data: bytes, formats: tuple[str, ...]) -> Any:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            return image.convert("RGB")
    # Of broken PNG files, Pillow raises SyntaxError.
    except (SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error


def shrink_to_jpeg(data: bytes, size: int, *, half: int | None = None) -> bytes:
    """Stretch an image, or its left (0) or right (1) half, to ``size`` x ``size`` as JPEG."""
    from PIL import Image

    rgb = _decode_image(data, ("JPEG", "PNG", "WEBP"))
    middle = rgb.width // 2
    box = None
    if half is not None:
        box = (0, 0, middle, rgb.height) if half == 0 else (middle, 0, *rgb.size)
    rgb = rgb.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
    return encode_jpeg(rgb, quality=JPEG_QUALITY)


FRAMES = "frames"
SPLITS: Mapping[str, str] = {"train": "train", "val": "validation", "test": "test"}
"""Name of each split in the index."""
OPTIONS = {"captions", "test_root", "towers"}


def load_items(data: DataChoice, split: str) -> tuple[FrameFolder, Split, list[FrameItem]]:
    """Load a split; return the folder, the records, and the items in the same order."""
    check_split_name(FRAMES, split, tuple(SPLITS))
    data.refuse_options(OPTIONS)
    kind = str(data.options.get("captions", CAPTION_KINDS[0]))
    if kind not in CAPTION_KINDS:
        raise UsageError(f"data.options.captions={kind}: use one of {', '.join(CAPTION_KINDS)}")
    test_root = str(data.options.get("test_root") or "") if split == "test" else ""
    folder = FrameFolder.open(data.folder(test_root or None))
    records, items = split_records(folder, split, kind)
    return folder, records, items


def split_records(folder: FrameFolder, split: str, kind: str) -> tuple[Split, list[FrameItem]]:
    """Return the records and items of a split that have captions of ``kind``."""
    items = [item for item in folder.items if item.split == SPLITS[split]]
    if not items:
        contents = ", ".join(f"{name} ({count})" for name, count in sorted(folder.splits.items()))
        raise DatasetError(
            f"{folder.folder}: no item of split {SPLITS[split]!r}; it has {contents}. Name the "
            "folder of the test split with --set data.options.test_root=FOLDER"
        )
    captioned_items = [item for item in items if _captions(item, kind)]
    reason = f"no caption of {kind}"
    left_out = [VideoProblem(item.id, reason) for item in items if not _captions(item, kind)]
    protocol = RetrievalProtocol(f"frames of {folder.folder.name}, {split}")
    videos = [VideoRecord(item.id, _captions(item, kind)) for item in captioned_items]
    return make_split(FRAMES, split, protocol, videos, left_out), captioned_items


def _captions(item: FrameItem, kind: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in item.captions.get(kind, ()) if text.strip())


def sample_frames(count: int, limit: int) -> Int[Tensor, "frames"]:
    """Return the indices of all frames, or of the middles of ``limit`` equal parts if fewer."""
    if count <= limit:
        return torch.arange(count)
    return (2 * torch.arange(limit) + 1) * count // (2 * limit)


class FrameClips:
    """Frames of a split in memory.

    Items with fewer than ``num_frames`` frames are padded with masked frames, whatever
    ``FrameSpec.short`` is: repeated frames would get a larger weight.
    """

    def __init__(
        self,
        frames: UInt8[Tensor, "rows 3 size size"],
        counts: Sequence[int],
        num_frames: int,
    ) -> None:
        self.frames = frames
        self.rows = torch.zeros(len(counts), num_frames, dtype=torch.int64)
        self.mask = torch.zeros(len(counts), num_frames, dtype=torch.bool)
        start = 0
        for item, count in enumerate(counts):
            indices = sample_frames(count, num_frames)
            self.rows[item, : len(indices)] = start + indices
            self.mask[item, : len(indices)] = True
            start += count

    def clips(self, items: Tensor) -> Clips:
        """Return the clips of items; times are frame numbers, because real times are unknown."""
        items = items.cpu()
        mask = self.mask[items]
        frames = self.frames[self.rows[items].flatten()].unflatten(0, mask.shape)
        frames = frames.masked_fill(~mask[..., None, None, None], 0)
        seconds = torch.arange(mask.shape[1], dtype=torch.float32).expand(mask.shape)
        return Clips(frames, mask, seconds.contiguous())


def open_clips(data: DataChoice, split: str, context: OpenContext) -> Source:
    """Open a split; its frames are read into memory at the size of ``data.frames``."""
    folder, records, items = load_items(data, split)
    frames, _ = folder.read_frames(items, data.frames.size, threads=max(data.workers, 1))
    clips = FrameClips(frames, [item.frames for item in items], data.frames.num_frames)
    tokens = context.reader.tokenize(records.texts, data.max_words)
    return clip_source(records, tokens, clips.clips)


def inspect_frames(data: DataChoice, split: str) -> SplitSummary:
    """Count the items of the index without reading frames."""
    _, records, _ = load_items(data, split)
    return summarise_split(records, records.video_of_text, len(records.left_out))


def check_frames(
    root: Path,
    *,
    splits: Sequence[str] | None = None,
    captions: str = CAPTION_KINDS[0],
    decode: bool = False,
) -> CheckReport:
    """Compare the index of ``splits`` (default: all) with the shards.

    With ``decode``, also decode every frame.
    """
    folder = FrameFolder.open(root)
    names = tuple(splits or [name for name in SPLITS if folder.splits.get(SPLITS[name])])
    if not names:
        contents = ", ".join(sorted(folder.splits)) or "none"
        raise DatasetError(
            f"{root}: its splits are {contents}; expected {', '.join(SPLITS.values())}"
        )
    numbers, errors = _read_shards(folder, _decoding_error if decode else None)
    reports = []
    for name in names:
        check_split_name(FRAMES, name, tuple(SPLITS))
        records, items = split_records(folder, name, captions)
        missing_ids = [item.id for item in items if len(numbers[item.id]) < item.frames]
        reports.append(report_split(records, errors, missing_ids))
    return CheckReport(FRAMES, str(root), tuple(reports), decoded=decode)


def _read_shards(
    folder: FrameFolder, check: Callable[[bytes], str | None] | None
) -> tuple[dict[str, set[int]], dict[str, str]]:
    """Collect the numbers of the frames of each item, and the first error of ``check`` for each."""
    numbers: dict[str, set[int]] = {item.id: set() for item in folder.items}
    num_frames = {item.id: item.frames for item in folder.items}
    errors: dict[str, str] = {}
    for name, data in folder.read_jpegs():
        item, number = split_name(name)
        if 0 <= number < num_frames.get(item, 0):
            numbers[item].add(number)
        reason = check(data) if check is not None else None
        if reason is not None:
            errors.setdefault(item, reason)
    return numbers, errors


def _decoding_error(data: bytes) -> str | None:
    try:
        decode_jpeg(data, 16)
    except (OSError, ValueError) as error:
        return f"a frame cannot be decoded ({error})"
    return None


IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
MAX_IMAGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class FramePreparation:
    """Options of ``eaglenet data frames``.

    Caption files are JSON, optionally gzipped: ``{item: [caption, ...]}``, or as in MSR-VTT
    ``{"sentences": [{"video_id", "caption"}, ...]}``. The files ``only`` and ``without`` have one
    id per line, or are CSV with a column ``video_id``.
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
    counts = {"items": 0, "frames": 0, "validation": 0, "unreadable": 0}
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
            counts["validation"] += name in validation
        if progress is not None:
            progress(ProgressUpdate("preparing frames", number + 1, len(order)))
    if not counts["items"]:
        raise DatasetError(
            f"{plan.images}: none of the {counts['unreadable']} images with captions can be read"
        )
    writer.close()
    return counts


def find_images(plan: FramePreparation) -> dict[str, list[Path]]:
    """Find the images of each item, in natural order of their paths."""
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
    """Read ids: one per line, or the column ``video_id`` of a CSV."""
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
    """Return a sort key by which frame 9 precedes frame 10."""
    parts = re.split(r"(\d+)", path.as_posix())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
