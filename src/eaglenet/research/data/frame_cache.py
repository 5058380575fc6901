"""Cache of decoded frames: a header, one file of packed frames, and a journal of its rows.

The file is memory-mapped. A row counts once its journal line is written, so a build resumes after
an interruption at any moment.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.files import hold_lock, write_json
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import Clips, FrameSpec
from eaglenet.research.data.annotation_files import read_json
from eaglenet.research.data.records import Split, VideoRecord
from eaglenet.video.images import pixels_to_jpeg

if TYPE_CHECKING:
    from eaglenet.video.decoding import DecodedVideo


logger = logging.getLogger(__name__)

FORMAT = 1
HEADER_FILE = "cache.json"
DATA_FILE = "frames.bin"
INDEX_FILE = "index.jsonl"
LOCK_FILE = "lock"
JPEG_QUALITY = 90
# Rows are flushed to disk together: an interruption costs at most these rows or seconds.
COMMIT_ROWS = 16
COMMIT_SECONDS = 2.0

Encoding = Literal["raw", "jpeg"]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class FrameRow:
    """Position of a video's frames in the data file, their mask and times."""

    offset: int
    lengths: tuple[int, ...]
    mask: tuple[bool, ...]
    seconds: tuple[float, ...]
    file_bytes: int
    window: tuple[float, float] | None

    @property
    def num_bytes(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Contents:
    """Entries of a journal, and the ends of its last whole row and line."""

    rows: dict[str, FrameRow]
    skipped: dict[str, str]
    data_end: int
    lines_end: int


NO_FILE = "no file found"


def file_size(path: Path | None) -> int | None:
    try:
        return None if path is None else path.stat().st_size
    except OSError:
        return None


class Journal:
    """Appends rows: bytes first, made durable, then the lines that make them count."""

    def __init__(
        self, folder: Path, contents: Contents, spec: FrameSpec, encoding: Encoding
    ) -> None:
        self.spec = spec
        self.encoding = encoding
        self.data: BinaryIO = (folder / DATA_FILE).open("ab")
        self.lines: BinaryIO = (folder / INDEX_FILE).open("ab")
        # Bytes after the last whole row or line are from an interrupted run.
        self.data.truncate(contents.data_end)
        self.lines.truncate(contents.lines_end)
        self.offset = contents.data_end
        self.pending: list[bytes] = []
        self.last_commit = time.monotonic()

    def add(self, video: VideoRecord, decoded: DecodedVideo) -> None:
        absent = self.spec.num_frames - len(decoded.frames)
        if absent < 0:
            raise DatasetError(
                f"{len(decoded.frames)} frames decoded, expected at most {self.spec.num_frames}"
            )
        array = F.pad(decoded.frames, (0, 0, 0, 0, 0, 0, 0, absent)).numpy()
        mask, seconds = F.pad(decoded.mask, (0, absent)), F.pad(decoded.seconds, (0, absent))
        parts = [array.tobytes()]
        if self.encoding == "jpeg":
            # Without colour subsampling.
            parts = [pixels_to_jpeg(one, quality=JPEG_QUALITY, subsampling=0) for one in array]
        content = b"".join(parts)
        self.data.write(content)
        line = {
            "id": video.video_id,
            "offset": self.offset,
            "lengths": [len(part) for part in parts],
            "mask": [int(flag) for flag in mask.tolist()],
            "seconds": [round(second, 4) for second in seconds.tolist()],
            # 0 where the file was removed meanwhile: a new file of that name is decoded again.
            "file_bytes": file_size(video.path) or 0,
            "window": video.window,
        }
        self.offset += len(content)
        self._append(line)

    def skip(self, video_id: str, reason: str) -> None:
        self._append({"id": video_id, "skip": reason})

    def _append(self, line: dict[str, Any]) -> None:
        self.pending.append(json.dumps(line).encode() + b"\n")
        is_old = time.monotonic() - self.last_commit > COMMIT_SECONDS
        if is_old or len(self.pending) >= COMMIT_ROWS:
            self.commit()

    def commit(self) -> None:
        self.data.flush()
        os.fsync(self.data.fileno())
        self.lines.write(b"".join(self.pending))
        self.lines.flush()
        os.fsync(self.lines.fileno())
        self.pending.clear()
        self.last_commit = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Rows finished before an error or an interrupt are kept.
        self.commit()
        self.data.close()
        self.lines.close()


def read_journal(folder: Path) -> Contents:
    """Rows and skips; later lines win. Reading stops at the first torn line."""
    rows: dict[str, FrameRow] = {}
    skipped: dict[str, str] = {}
    path = folder / INDEX_FILE
    content = path.read_bytes() if path.exists() else b""
    data_size = file_size(folder / DATA_FILE) or 0
    data_end = lines_end = 0
    for line in content.splitlines(keepends=True):
        entry = parse_line(line)
        if entry is None:
            break
        video_id, parsed = entry
        if isinstance(parsed, FrameRow):
            row_end = parsed.offset + parsed.num_bytes
            if row_end > data_size:
                break
            rows[video_id] = parsed
            skipped.pop(video_id, None)
            data_end = max(data_end, row_end)
        else:
            skipped[video_id] = parsed
            rows.pop(video_id, None)
        lines_end += len(line)
    if lines_end < len(content):
        logger.warning(
            "%s: ignored %d bytes of an interrupted write; those videos are decoded again",
            path,
            len(content) - lines_end,
        )
    return Contents(rows, skipped, data_end, lines_end)


def parse_line(line: bytes) -> tuple[str, FrameRow | str] | None:
    """(video id, row or reason of a skip); ``None`` for a line that was not written whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = untrusted.parse_json(line)
        if "skip" in entry:
            return str(entry["id"]), str(entry["skip"])
        row = FrameRow(
            offset=int(entry["offset"]),
            lengths=tuple(entry["lengths"]),
            mask=tuple(bool(flag) for flag in entry["mask"]),
            seconds=tuple(entry["seconds"]),
            file_bytes=int(entry["file_bytes"]),
            window=tuple(entry["window"]) if entry["window"] else None,
        )
    except (ValueError, KeyError, TypeError):
        return None
    return str(entry["id"]), row


def read_header(folder: Path) -> dict[str, Any] | None:
    """Header of the cache; ``None`` where there is no cache yet."""
    path = folder / HEADER_FILE
    if not path.exists():
        return None
    header = read_json(path)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DatasetError(f"{path}: not a frame cache of format {FORMAT}; use another folder")
    return header


def check_header(
    folder: Path,
    header: dict[str, Any],
    split: Split,
    spec: FrameSpec | None = None,
    encoding: Encoding | None = None,
) -> None:
    """Refuse frames sampled in another way or of another dataset: scores would be wrong."""
    frame_spec = dataclasses.asdict(spec) if spec else None
    for key, value in (
        ("frame_spec", frame_spec), ("dataset", split.dataset), ("encoding", encoding),
    ):  # fmt: skip
        if value is not None and header[key] != value:
            raise DatasetError(
                f"{folder} was built with {key} {header[key]}, not {value}; "
                "use another folder or the same settings"
            )


def decode_jpeg(content: Bytes) -> Bytes:
    from PIL import Image

    with Image.open(io.BytesIO(content.tobytes())) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


# Mean of 93 natural videos at 224 pixels and quality 90; a guide, not a bound.
JPEG_BYTES_PER_PIXEL = 0.3


def estimate_bytes(num_videos: int, spec: FrameSpec, encoding: Encoding = "raw") -> int:
    """Bytes of the frames of ``num_videos`` videos: exact for raw, a guide for JPEG."""
    pixels = num_videos * spec.num_frames * spec.size * spec.size
    return pixels * 3 if encoding == "raw" else round(pixels * JPEG_BYTES_PER_PIXEL)


def cache_folder(base: Path, dataset: str, spec: FrameSpec) -> Path:
    """Folder below ``base`` for the frames of a dataset; its splits share it.

    `eaglenet data cache` and training use the same folder. Frames sampled in another way have
    another one.
    """
    key = hashlib.sha256(repr(spec).encode()).hexdigest()[:8]
    return base / f"{dataset}-{spec.num_frames}x{spec.size}-{key}"


def estimate(split: Split, spec: FrameSpec, encoding: Encoding = "raw") -> int:
    """Bytes of a cache of the videos of a split that have a file."""
    return estimate_bytes(len(split) - len(split.missing), spec, encoding)


@dataclass(frozen=True)
class FrameCache:
    """Frames of the videos of a split; create one with ``build`` or ``open``."""

    folder: Path
    spec: FrameSpec
    encoding: Encoding
    rows: Mapping[str, FrameRow]
    skipped: Mapping[str, str]
    split: Split

    @classmethod
    def open(cls, folder: Path | str, split: Split, spec: FrameSpec | None = None) -> Self:
        """Read an existing cache; frames of another ``spec`` or dataset are refused."""
        folder = Path(folder)
        header = read_header(folder)
        if header is None:
            raise DatasetError(f"{folder} holds no frame cache; make one with FrameCache.build")
        check_header(folder, header, split, spec)
        contents = read_journal(folder)
        frame_spec = FrameSpec(**header["frame_spec"])
        return cls(folder, frame_spec, header["encoding"], contents.rows, contents.skipped, split)

    @classmethod
    def build(
        cls,
        split: Split,
        spec: FrameSpec,
        folder: Path | str,
        workers: int = 0,
        *,
        encoding: Encoding | None = None,
        retry_skipped: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Decode the videos that the folder lacks; an interrupted build is continued.

        Without ``encoding`` an existing cache keeps its own, and a new one is raw.

        A video whose file size or window has changed is decoded again. A skipped video is tried
        again when its file has appeared, or with ``retry_skipped``.
        """
        if spec.num_frames < 1 or spec.size < 1:
            raise UsageError(
                f"{spec.num_frames} frames of {spec.size} pixels; expected at least 1 of both"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Another process (another rank of a run) waits, then finds the frames decoded.
        with hold_lock(folder / LOCK_FILE, wait=True):
            header = read_header(folder)
            if header is None:
                header = {
                    "format": FORMAT,
                    "dataset": split.dataset,
                    "encoding": encoding or "raw",
                    "frame_spec": dataclasses.asdict(spec),
                }
                write_json(folder / HEADER_FILE, header)
            check_header(folder, header, split, spec, encoding)
            encoding = header["encoding"]
            contents = read_journal(folder)
            rows, skipped = contents.rows, contents.skipped
            due = [
                video
                for video in split.videos
                if needs_decoding(video, rows.get(video.video_id), skipped, retry_skipped)
            ]
            num_videos = sum(file_size(video.path) is not None for video in due)
            needed = estimate_bytes(num_videos, spec, header["encoding"])
            free = shutil.disk_usage(folder).free
            if needed > free:
                raise DatasetError(
                    f"{folder}: {num_videos} videos need about {needed / 1e9:.1f} GB and "
                    f"{free / 1e9:.1f} GB are free; use --encoding jpeg, fewer or smaller frames, "
                    "or another disk"
                )
            if due:
                with Journal(folder, contents, spec, encoding) as journal:
                    title = f"decoding {split.name} frames"
                    decode_into(journal, due, spec, workers, progress, title)
        cache = cls.open(folder, split, spec)
        absent = int((~cache.available).sum())
        if absent:
            logger.warning(
                "%s %s: %d of %d videos cached, %d skipped (see .skipped)",
                split.dataset,
                split.name,
                len(split) - absent,
                len(split),
                absent,
            )
        return cache

    @property
    def available(self) -> Tensor:
        """[videos] bool: the videos of the split that have frames here."""
        return torch.tensor([self._row(video) is not None for video in self.split.videos])

    def clips(self, indices: Sequence[int] | Tensor) -> Clips:
        """Frames of these videos of the split, copied out of the memory map."""
        videos = [self.split.videos[index] for index in torch.as_tensor(indices).tolist()]
        rows = []
        for video in videos:
            row = self._row(video)
            if row is None:
                reason = self.skipped.get(video.video_id, "it was not built for this split")
                raise DatasetError(f"{self.folder} has no frames of {video.video_id!r}: {reason}")
            rows.append(row)
        shape = (len(rows), self.spec.num_frames, 3, self.spec.size, self.spec.size)
        frames = np.empty(shape, dtype=np.uint8)
        for number, row in enumerate(rows):
            self._read(row, frames[number])
        return Clips(
            torch.from_numpy(frames),
            torch.tensor([row.mask for row in rows]),
            torch.tensor([row.seconds for row in rows], dtype=torch.float32),
        )

    @property
    def num_bytes(self) -> int:
        path = self.folder / DATA_FILE
        return path.stat().st_size if path.exists() else 0

    def _row(self, video: VideoRecord) -> FrameRow | None:
        row = self.rows.get(video.video_id)
        return row if row is not None and row.window == video.window else None

    @cached_property
    def _data(self) -> Bytes:
        if self.num_bytes == 0:
            # An empty file cannot be mapped; it has no rows to read either.
            return np.empty(0, dtype=np.uint8)
        return np.memmap(self.folder / DATA_FILE, dtype=np.uint8, mode="r")

    def _read(self, row: FrameRow, target: Bytes) -> None:
        data = self._data[row.offset : row.offset + row.num_bytes]
        if self.encoding == "raw":
            target[...] = data.reshape(target.shape)
            return
        start = 0
        for number, length in enumerate(row.lengths):
            target[number] = decode_jpeg(data[start : start + length])
            start += length


def needs_decoding(
    video: VideoRecord, row: FrameRow | None, skipped: dict[str, str], retry_skipped: bool
) -> bool:
    """Tell whether a video has no row of its window, has changed, or was skipped for no file."""
    size = file_size(video.path)
    if row is not None and row.window == video.window:
        return size not in (None, row.file_bytes)
    reason = skipped.get(video.video_id)
    return reason is None or retry_skipped or (reason == NO_FILE and size is not None)


def decode_into(
    journal: Journal,
    due: Sequence[VideoRecord],
    spec: FrameSpec,
    workers: int,
    progress: Progress | None,
    title: str,
) -> None:
    """Decode ``due`` and append a row, or the reason of a skip, for each."""
    from eaglenet.video.decoding import decode_many
    from eaglenet.video.pool import Success

    done = 0
    by_id = {}
    items = []
    for video in due:
        if video.path is None or file_size(video.path) is None:
            journal.skip(video.video_id, NO_FILE)
            done += 1
        else:
            by_id[video.video_id] = video
            items.append((video.video_id, video.path, video.window))
    for outcome in decode_many(items, spec, workers=workers):
        video = by_id[outcome.request.video_id]
        if isinstance(outcome, Success):
            journal.add(video, outcome.result)
        else:
            journal.skip(video.video_id, outcome.reason)
        done += 1
        report_progress(progress, title, done, len(due))
