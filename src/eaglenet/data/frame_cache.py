"""Frames decoded once: packed in one file, memory-mapped, resumable after a kill at any moment."""

from __future__ import annotations

import hashlib
import logging
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from eaglenet.data.frame_journal import (
    DATA_FILE,
    LOCK_FILE,
    NO_FILE,
    Encoding,
    FrameRow,
    Journal,
    check_header,
    decode_jpeg,
    file_size,
    read_header,
    read_journal,
    write_header,
)
from eaglenet.data.records import Split, VideoRecord
from eaglenet.errors import DatasetError, UsageError
from eaglenet.locking import hold_lock
from eaglenet.progress import Progress, tell
from eaglenet.types import Clips, FrameSpec

logger = logging.getLogger(__name__)

# Measured on 93 natural videos at 224 pixels, quality 90: 0.30 bytes a pixel. A guide, no bound.
JPEG_BYTES_PER_PIXEL = 0.3


def estimate_bytes(num_videos: int, spec: FrameSpec, encoding: Encoding = "raw") -> int:
    """Bytes that the frames of so many videos take: exact for raw, a guide for JPEG."""
    pixels = num_videos * spec.num_frames * spec.size * spec.size
    return pixels * 3 if encoding == "raw" else round(pixels * JPEG_BYTES_PER_PIXEL)


def cache_folder(base: Path, dataset: str, spec: FrameSpec) -> Path:
    """Where frames of a dataset taken in one way lie below ``base``; all its splits share it.

    `eaglenet data cache` and training agree on it, and other frames of the same dataset (a
    method with another sampling) get a folder of their own.
    """
    key = hashlib.sha256(repr(spec).encode()).hexdigest()[:8]
    return base / f"{dataset}-{spec.num_frames}x{spec.size}-{key}"


def estimate(split: Split, spec: FrameSpec, encoding: Encoding = "raw") -> int:
    """Bytes that a cache of the split's found videos takes."""
    return estimate_bytes(len(split) - len(split.missing), spec, encoding)


class FrameCache:
    """Frames of a split's videos, read without decoding. Make one with ``build`` or ``open``."""

    def __init__(
        self,
        folder: Path,
        spec: FrameSpec,
        encoding: Encoding,
        rows: dict[str, FrameRow],
        skipped: dict[str, str],
        split: Split | None = None,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.encoding = encoding
        self.rows = rows
        self.skipped = skipped
        self.split = split
        self._data: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    @classmethod
    def open(
        cls, folder: Path | str, split: Split | None = None, spec: FrameSpec | None = None
    ) -> Self:
        """Read an existing cache; frames of another ``spec`` or dataset are refused."""
        folder = Path(folder)
        header = read_header(folder)
        if header is None:
            raise DatasetError(f"{folder} holds no frame cache; make one with FrameCache.build")
        check_header(folder, header, spec, split)
        contents = read_journal(folder)
        found = FrameSpec(**header["frame_spec"])
        return cls(folder, found, header["encoding"], contents.rows, contents.skipped, split)

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
        """Decode what is not yet in the folder. Stopped at any moment, it continues where it was.

        Without ``encoding`` an existing cache keeps its own, and a new one is raw.

        A video whose file changed its size, or whose window is another, is decoded again. One
        that was skipped is tried again when its file has appeared, or with ``retry_skipped``.
        """
        if spec.num_frames < 1 or spec.size < 1:
            raise UsageError(
                f"{spec.num_frames} frames of {spec.size} pixels were asked for; expected at least "
                "1 of both"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # A second one (another rank of a run) waits, then finds the work done.
        with hold_lock(folder / LOCK_FILE, wait=True):
            header = read_header(folder) or write_header(folder, split, spec, encoding or "raw")
            check_header(folder, header, spec, split, encoding)
            encoding = header["encoding"]
            contents = read_journal(folder)
            rows, skipped = contents.rows, contents.skipped
            due = [
                video
                for video in split.videos
                if needs_decoding(video, rows.get(video.video_id), skipped, retry_skipped)
            ]
            check_space(folder, due, spec, encoding)
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

    def bound_to(self, split: Split) -> FrameCache:
        """The same cache, its ``clips`` indexed by the videos of ``split``."""
        return FrameCache(self.folder, self.spec, self.encoding, self.rows, self.skipped, split)

    @property
    def available(self) -> Tensor:
        """[videos] bool: which videos of the split have frames here."""
        return torch.tensor([self._row(video) is not None for video in self._split.videos])

    def clips(self, indices: Sequence[int] | Tensor) -> Clips:
        """Frames of these videos of the split, copied out of the memory map."""
        videos = [self._split.videos[index] for index in torch.as_tensor(indices).tolist()]
        rows = []
        for video in videos:
            row = self._row(video)
            if row is None:
                reason = self.skipped.get(video.video_id, "it was not built for this split")
                raise DatasetError(f"{self.folder} has no frames of {video.video_id!r}: {reason}")
            rows.append(row)
        shape = (len(rows), self.spec.num_frames, 3, self.spec.size, self.spec.size)
        frames = np.empty(shape, dtype=np.uint8)
        for place, row in enumerate(rows):
            self._read(row, frames[place])
        return Clips(
            torch.from_numpy(frames),
            torch.tensor([row.mask for row in rows]),
            torch.tensor([row.seconds for row in rows], dtype=torch.float32),
        )

    def verify(self) -> list[str]:
        """Ids whose bytes no longer have the checksum they were stored with."""
        data = self._map()
        return [
            video_id
            for video_id, row in self.rows.items()
            if zlib.crc32(data[row.offset : row.offset + row.num_bytes].tobytes()) != row.checksum
        ]

    @property
    def num_bytes(self) -> int:
        """Size of the data file."""
        path = self.folder / DATA_FILE
        return path.stat().st_size if path.exists() else 0

    @property
    def _split(self) -> Split:
        if self.split is None:
            raise DatasetError(f"{self.folder} was opened without a split; use bound_to(split)")
        return self.split

    def _row(self, video: VideoRecord) -> FrameRow | None:
        row = self.rows.get(video.video_id)
        return row if row is not None and row.window == video.window else None

    def _map(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if self.num_bytes == 0:
            # An empty file cannot be mapped; it has no rows to read either.
            return np.empty(0, dtype=np.uint8)
        if self._data is None:
            self._data = np.memmap(self.folder / DATA_FILE, dtype=np.uint8, mode="r")
        return self._data

    def _read(self, row: FrameRow, target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        data = self._map()[row.offset : row.offset + row.num_bytes]
        if self.encoding == "raw":
            target[...] = data.reshape(target.shape)
            return
        start = 0
        for place, length in enumerate(row.lengths):
            target[place] = decode_jpeg(data[start : start + length])
            start += length


def needs_decoding(
    video: VideoRecord, row: FrameRow | None, skipped: dict[str, str], retry_skipped: bool
) -> bool:
    """No row of this window yet, or its file has changed; a skipped one only when worth a try."""
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
    from eaglenet.video.many import decode_many
    from eaglenet.video.pool import Done

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
        if isinstance(outcome, Done):
            journal.add(video, outcome.result)
        else:
            journal.skip(video.video_id, outcome.reason)
        done += 1
        tell(progress, title, done, len(due))


def check_space(
    folder: Path, due: Sequence[VideoRecord], spec: FrameSpec, encoding: Encoding
) -> None:
    """Refuse to start what the disk cannot hold."""
    num_videos = sum(file_size(video.path) is not None for video in due)
    needed = estimate_bytes(num_videos, spec, encoding)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(
            f"{folder}: {num_videos} videos need about {needed / 1e9:.1f} GB and {free / 1e9:.1f} "
            "GB are free; use encoding='jpeg', fewer or smaller frames, or another disk"
        )
