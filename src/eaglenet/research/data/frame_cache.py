"""Cache of decoded frames: a header, a memory-mapped file of frames, and a journal of its rows.

A row is valid once its line is in the journal, so an interrupted build can always be resumed.
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
COMMIT_ROWS = 16
COMMIT_SECONDS = 2.0
"""Rows and seconds between commits: the most work that an interruption loses."""

Encoding = Literal["raw", "jpeg"]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


SAMPLE_BYTES = 2**16
"""Bytes at each end of a file by which it is recognised if its time has changed."""


@dataclass(frozen=True)
class FileIdentity:
    """Size, time and sample of a file that was decoded, to notice another one of its name.

    modified: in nanoseconds; None in caches of earlier versions. sample: hash of both ends.
    """

    num_bytes: int = 0
    modified: int | None = None
    sample: str = ""

    @classmethod
    def of(cls, path: Path | None) -> FileIdentity:
        """Return the identity of a file; that of none if it cannot be read."""
        try:
            if path is None:
                return cls()
            status = path.stat()
            return cls(status.st_size, status.st_mtime_ns, sample_of(path))
        except OSError:
            return cls()

    def is_of(self, path: Path, size: int) -> bool:
        """Return whether a file of this size is, by all that is known, the same."""
        if size != self.num_bytes or self.modified is None:
            return size == self.num_bytes
        try:
            return path.stat().st_mtime_ns == self.modified or sample_of(path) == self.sample
        except OSError:
            return True  # It cannot be decoded either.

    def is_untouched(self, path: Path, size: int) -> bool:
        """Return whether a file of this size also has the same time."""
        try:
            return (size, path.stat().st_mtime_ns) == (self.num_bytes, self.modified)
        except OSError:
            return True


def sample_of(path: Path) -> str:
    """Hash the first and the last bytes of a file; copies of a dataset have other times."""
    with path.open("rb") as file:
        digest = hashlib.blake2b(file.read(SAMPLE_BYTES), digest_size=8)
        file.seek(max(file.tell(), path.stat().st_size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


@dataclass(frozen=True)
class FrameRow:
    """Frames of a video in the data file: offset, sizes in bytes, mask and times in seconds."""

    offset: int
    lengths: tuple[int, ...]
    mask: tuple[bool, ...]
    seconds: tuple[float, ...]
    file: FileIdentity
    window: tuple[float, float] | None

    @property
    def num_bytes(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Contents:
    """Entries of a journal, and the ends of its last complete row and line in bytes.

    skip_reasons: reasons why videos were skipped, by id. skipped_files: the files that were tried.
    """

    rows: dict[str, FrameRow]
    skip_reasons: dict[str, str]
    skipped_files: dict[str, FileIdentity]
    data_end: int
    lines_end: int


NO_FILE = "no file found"


def file_size(path: Path | None) -> int | None:
    try:
        return None if path is None else path.stat().st_size
    except OSError:
        return None


class Journal:
    """Writer of a cache; a commit syncs the frames to disk before the lines of their rows."""

    def __init__(
        self, folder: Path, contents: Contents, spec: FrameSpec, encoding: Encoding
    ) -> None:
        self.spec = spec
        self.encoding = encoding
        self.data: BinaryIO = (folder / DATA_FILE).open("ab")
        self.lines: BinaryIO = (folder / INDEX_FILE).open("ab")
        # Remove bytes of an interrupted run.
        self.data.truncate(contents.data_end)
        self.lines.truncate(contents.lines_end)
        self.offset = contents.data_end
        self.pending: list[bytes] = []
        self.last_commit = time.monotonic()

    def add(self, record: VideoRecord, video: DecodedVideo) -> None:
        """Append the frames of a video, padded to the number of frames of the cache."""
        num_padding = self.spec.num_frames - len(video.frames)
        if num_padding < 0:
            raise DatasetError(
                f"{len(video.frames)} frames decoded, expected at most {self.spec.num_frames}"
            )
        frames = F.pad(video.frames, (0, 0, 0, 0, 0, 0, 0, num_padding)).numpy()
        mask = F.pad(video.mask, (0, num_padding))
        seconds = F.pad(video.seconds, (0, num_padding))
        chunks = [frames.tobytes()]
        if self.encoding == "jpeg":
            chunks = [
                pixels_to_jpeg(frame, quality=JPEG_QUALITY, subsampling=0) for frame in frames
            ]
        content = b"".join(chunks)
        self.data.write(content)
        line = {
            "id": record.video_id,
            "offset": self.offset,
            "lengths": [len(chunk) for chunk in chunks],
            "mask": [int(flag) for flag in mask.tolist()],
            "seconds": [round(second, 4) for second in seconds.tolist()],
            # 0 bytes if the file was deleted meanwhile: a new file has another size.
            **_file_fields(FileIdentity.of(record.path)),
            "window": record.window,
        }
        self.offset += len(content)
        self._append(line)

    def skip(self, record: VideoRecord, reason: str) -> None:
        file = _file_fields(FileIdentity.of(record.path))
        self._append({"id": record.video_id, "skip": reason, **file})

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
        # Keep the rows written before an error or an interrupt.
        self.commit()
        self.data.close()
        self.lines.close()


def _file_fields(file: FileIdentity) -> dict[str, Any]:
    return {"file_bytes": file.num_bytes, "modified": file.modified, "sample": file.sample}


def _parse_file(entry: Mapping[str, Any]) -> FileIdentity:
    modified = entry.get("modified")
    modified = None if modified is None else int(modified)
    return FileIdentity(int(entry["file_bytes"]), modified, str(entry.get("sample", "")))


def read_journal(folder: Path) -> Contents:
    """Read a journal up to the first incomplete line; later lines replace earlier ones."""
    rows: dict[str, FrameRow] = {}
    skip_reasons: dict[str, str] = {}
    skipped_files: dict[str, FileIdentity] = {}
    path = folder / INDEX_FILE
    content = path.read_bytes() if path.exists() else b""
    data_size = file_size(folder / DATA_FILE) or 0
    data_end = lines_end = 0
    for line in content.splitlines(keepends=True):
        entry = parse_line(line)
        if entry is None:
            break
        video_id, row_or_skip = entry
        if isinstance(row_or_skip, FrameRow):
            row_end = row_or_skip.offset + row_or_skip.num_bytes
            if row_end > data_size:
                break
            rows[video_id] = row_or_skip
            skip_reasons.pop(video_id, None)
            data_end = max(data_end, row_end)
        else:
            skip_reasons[video_id], file = row_or_skip
            skipped_files.pop(video_id, None)
            if file is not None:
                skipped_files[video_id] = file
            rows.pop(video_id, None)
        lines_end += len(line)
    if lines_end < len(content):
        logger.warning(
            "%s: ignored %d bytes of an interrupted write; those videos are decoded again",
            path,
            len(content) - lines_end,
        )
    return Contents(rows, skip_reasons, skipped_files, data_end, lines_end)


Skip = tuple[str, FileIdentity | None]
"""Reason why a video was skipped, and its file; None in caches of earlier versions."""


def parse_line(line: bytes) -> tuple[str, FrameRow | Skip] | None:
    """Parse a line: a video id with its row or the reason it was skipped; None if incomplete."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = untrusted.parse_json(line)
        if "skip" in entry:
            file = _parse_file(entry) if "file_bytes" in entry else None
            return str(entry["id"]), (str(entry["skip"]), file)
        row = FrameRow(
            offset=int(entry["offset"]),
            lengths=tuple(entry["lengths"]),
            mask=tuple(bool(flag) for flag in entry["mask"]),
            seconds=tuple(entry["seconds"]),
            file=_parse_file(entry),
            window=tuple(entry["window"]) if entry["window"] else None,
        )
    except (ValueError, KeyError, TypeError):
        return None
    return str(entry["id"]), row


def read_header(folder: Path) -> dict[str, Any] | None:
    """Read the header of a cache; None if there is no cache."""
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
    """Raise if the cache has frames of another dataset, sampling or encoding."""
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

    with Image.open(io.BytesIO(content.tobytes()), formats=("JPEG",)) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


JPEG_BYTES_PER_PIXEL = 0.3
"""Mean over 93 real videos at 224 pixels and quality 90."""


def estimate_bytes(num_videos: int, spec: FrameSpec, encoding: Encoding) -> int:
    """Return the bytes of the frames of ``num_videos`` videos; approximate for JPEG."""
    pixels = num_videos * spec.num_frames * spec.size * spec.size
    return pixels * 3 if encoding == "raw" else round(pixels * JPEG_BYTES_PER_PIXEL)


def cache_folder(base: Path, dataset: str, spec: FrameSpec) -> Path:
    """Return the folder in ``base`` for frames of a dataset; all splits share it."""
    key = hashlib.sha256(repr(spec).encode()).hexdigest()[:8]
    return base / f"{dataset}-{spec.num_frames}x{spec.size}-{key}"


def estimate(split: Split, spec: FrameSpec, encoding: Encoding = "raw") -> int:
    """Estimate the bytes of a cache of the videos of a split that have a file."""
    return estimate_bytes(len(split) - len(split.missing), spec, encoding)


@dataclass(frozen=True)
class FrameCache:
    """Frames of the videos of a split; create one with ``build`` or ``open``.

    skip_reasons: reasons why videos have no frames, by id.
    """

    folder: Path
    spec: FrameSpec
    encoding: Encoding
    rows: Mapping[str, FrameRow]
    skip_reasons: Mapping[str, str]
    split: Split

    @classmethod
    def open(cls, folder: Path | str, split: Split, spec: FrameSpec | None = None) -> Self:
        """Open an existing cache; raise if its dataset or ``spec`` differs."""
        folder = Path(folder)
        header = read_header(folder)
        if header is None:
            raise DatasetError(f"{folder} has no frame cache; make one with FrameCache.build")
        check_header(folder, header, split, spec)
        contents = read_journal(folder)
        frame_spec = FrameSpec(**header["frame_spec"])
        rows, reasons = contents.rows, contents.skip_reasons
        return cls(folder, frame_spec, header["encoding"], rows, reasons, split)

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
        """Decode the videos that are not in the folder, and open the cache.

        A video is decoded again if its file or its window has changed: the size of the file, or
        its time and its first or last bytes. A skipped video is tried again if its file exists now
        or has changed, or with ``retry_skipped``. ``encoding`` is that of the cache by default,
        and ``raw`` for a new cache.
        """
        if spec.num_frames < 1 or spec.size < 1:
            raise UsageError(
                f"{spec.num_frames} frames of {spec.size} pixels; both must be at least 1"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Other processes, such as ranks of a run, wait until the frames are decoded.
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
            new_videos = [
                video for video in split.videos if needs_decoding(video, contents, retry_skipped)
            ]
            num_videos = sum(file_size(video.path) is not None for video in new_videos)
            num_bytes = estimate_bytes(num_videos, spec, header["encoding"])
            free_bytes = shutil.disk_usage(folder).free
            if num_bytes > free_bytes:
                raise DatasetError(
                    f"{folder}: {num_videos} videos need about {num_bytes / 1e9:.1f} GB and "
                    f"{free_bytes / 1e9:.1f} GB are free; use --encoding jpeg, fewer or smaller "
                    "frames, or another disk"
                )
            if new_videos:
                with Journal(folder, contents, spec, encoding) as journal:
                    title = f"decoding {split.name} frames"
                    decode_into(journal, new_videos, spec, workers, progress, title)
        cache = cls.open(folder, split, spec)
        num_skipped = int((~cache.cached_mask).sum())
        if num_skipped:
            logger.warning(
                "%s %s: %d of %d videos cached, %d skipped (see .skip_reasons)",
                split.dataset,
                split.name,
                len(split) - num_skipped,
                len(split),
                num_skipped,
            )
        return cache

    @property
    def cached_mask(self) -> Tensor:
        """Mask [videos] of the videos of the split that are in the cache."""
        return torch.tensor([self._row(video) is not None for video in self.split.videos])

    def clips(self, indices: Sequence[int] | Tensor) -> Clips:
        """Read the frames of videos of the split by index."""
        videos = [self.split.videos[index] for index in torch.as_tensor(indices).tolist()]
        rows = []
        for video in videos:
            row = self._row(video)
            if row is None:
                reason = self.skip_reasons.get(video.video_id, "it was not built for this split")
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
            # An empty file cannot be mapped.
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


def needs_decoding(video: VideoRecord, contents: Contents, retry_skipped: bool) -> bool:
    """Return whether a video is new, has changed, or was skipped and should be tried again."""
    path, size = video.path, file_size(video.path)
    row = contents.rows.get(video.video_id)
    if row is not None and row.window == video.window:
        return path is not None and size is not None and not row.file.is_of(path, size)
    reason = contents.skip_reasons.get(video.video_id)
    if reason is None or retry_skipped:
        return True
    if path is None or size is None:
        return False
    file = contents.skipped_files.get(video.video_id)
    return reason == NO_FILE or (file is not None and not file.is_untouched(path, size))


def decode_into(
    journal: Journal,
    videos: Sequence[VideoRecord],
    spec: FrameSpec,
    workers: int,
    progress: Progress | None,
    title: str,
) -> None:
    """Decode videos; append a row for each, or the reason why it is skipped."""
    from eaglenet.video.decoding import decode_many
    from eaglenet.video.pool import Success

    num_done = 0
    by_id = {}
    items = []
    for video in videos:
        if video.path is None or file_size(video.path) is None:
            journal.skip(video, NO_FILE)
            num_done += 1
        else:
            by_id[video.video_id] = video
            items.append((video.video_id, video.path, video.window))
    report_progress(progress, title, num_done, len(videos))
    for outcome in decode_many(items, spec, workers=min(workers, len(items))):
        video = by_id[outcome.request.video_id]
        if isinstance(outcome, Success):
            journal.add(video, outcome.result)
        else:
            journal.skip(video, outcome.reason)
        num_done += 1
        report_progress(progress, title, num_done, len(videos))
