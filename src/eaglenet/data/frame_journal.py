"""How a frame cache lies on disk: a header, packed rows and a journal that makes them count.

A folder holds ``cache.json`` (how frames were taken), ``frames.bin`` (rows one after the other)
and ``index.jsonl`` (a journal, one line a row). A row counts only when its journal line is whole;
the line is written after the row's bytes are on disk, so a torn row is never read.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from eaglenet import foreign
from eaglenet.data.annotation_files import read_json
from eaglenet.data.records import Split, VideoRecord
from eaglenet.errors import DatasetError
from eaglenet.files import write_json
from eaglenet.types import FrameSpec
from eaglenet.video.pictures import to_jpeg

if TYPE_CHECKING:
    from eaglenet.video.decoding import DecodedVideo

logger = logging.getLogger(__name__)

FORMAT = 1
HEADER_FILE = "cache.json"
DATA_FILE = "frames.bin"
INDEX_FILE = "index.jsonl"
LOCK_FILE = "lock"
JPEG_QUALITY = 90
# Rows are made durable together: a kill costs at most so many decodings, or this much time.
COMMIT_ROWS = 16
COMMIT_SECONDS = 2.0

Encoding = Literal["raw", "jpeg"]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class FrameRow:
    """Where a video's frames lie in the data file, and what they show."""

    offset: int
    lengths: tuple[int, ...]
    mask: tuple[bool, ...]
    seconds: tuple[float, ...]
    checksum: int
    file_bytes: int
    window: tuple[float, float] | None

    @property
    def num_bytes(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Contents:
    """What a journal holds, and where its last whole row and line end."""

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


def pad_frames(
    frames: Tensor, mask: Tensor, seconds: Tensor, num_frames: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Frames, mask and seconds with masked padding up to ``num_frames``."""
    absent = num_frames - len(frames)
    if absent < 0:
        raise DatasetError(f"{len(frames)} frames decoded where at most {num_frames} were asked")
    return (
        F.pad(frames, (0, 0, 0, 0, 0, 0, 0, absent)),
        F.pad(mask, (0, absent)),
        F.pad(seconds, (0, absent)),
    )


class Journal:
    """Appends rows: bytes first, made durable, then the lines that make them count."""

    def __init__(
        self, folder: Path, contents: Contents, spec: FrameSpec, encoding: Encoding
    ) -> None:
        self.spec = spec
        self.encoding = encoding
        self.data: BinaryIO = (folder / DATA_FILE).open("ab")
        self.lines: BinaryIO = (folder / INDEX_FILE).open("ab")
        # What lies behind the last whole row or line is of an interrupted run.
        self.data.truncate(contents.data_end)
        self.lines.truncate(contents.lines_end)
        self.offset = contents.data_end
        self.pending: list[bytes] = []
        self.last_commit = time.monotonic()

    def add(self, video: VideoRecord, decoded: DecodedVideo) -> None:
        frames, mask, seconds = pad_frames(
            decoded.frames, decoded.mask, decoded.seconds, self.spec.num_frames
        )
        array = frames.numpy()
        raw = self.encoding == "raw"
        parts = [array.tobytes()] if raw else [encode_jpeg(one) for one in array]
        content = b"".join(parts)
        self.data.write(content)
        line = {
            "id": video.video_id,
            "offset": self.offset,
            "lengths": [len(part) for part in parts],
            "mask": [int(flag) for flag in mask.tolist()],
            "seconds": [round(second, 4) for second in seconds.tolist()],
            "checksum": zlib.crc32(content),
            # 0 where the file went away meanwhile: another one in its place is decoded anew.
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
        entry = foreign.parse_json(line)
        if "skip" in entry:
            return str(entry["id"]), str(entry["skip"])
        row = FrameRow(
            offset=int(entry["offset"]),
            lengths=tuple(entry["lengths"]),
            mask=tuple(bool(flag) for flag in entry["mask"]),
            seconds=tuple(entry["seconds"]),
            checksum=int(entry["checksum"]),
            file_bytes=int(entry["file_bytes"]),
            window=tuple(entry["window"]) if entry["window"] else None,
        )
    except (ValueError, KeyError, TypeError):
        return None
    return str(entry["id"]), row


def read_header(folder: Path) -> dict[str, Any] | None:
    """How the cache's frames were taken; ``None`` where there is no cache yet."""
    path = folder / HEADER_FILE
    if not path.exists():
        return None
    header = read_json(path)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DatasetError(f"{path}: not a frame cache of format {FORMAT}; use another folder")
    return header


def write_header(folder: Path, split: Split, spec: FrameSpec, encoding: Encoding) -> dict[str, Any]:
    header = {
        "format": FORMAT,
        "dataset": split.dataset,
        "encoding": encoding,
        "frame_spec": dataclasses.asdict(spec),
    }
    write_json(folder / HEADER_FILE, header)
    return header


def check_header(
    folder: Path,
    header: dict[str, Any],
    spec: FrameSpec | None = None,
    split: Split | None = None,
    encoding: Encoding | None = None,
) -> None:
    """Frames taken otherwise, or of another dataset, would give wrong scores: refused."""
    wanted: dict[str, Any] = {
        "frame_spec": dataclasses.asdict(spec) if spec else None,
        "dataset": split.dataset if split else None,
        "encoding": encoding,
    }
    for key, value in wanted.items():
        if value is not None and header[key] != value:
            raise DatasetError(
                f"{folder} was made with {key} {header[key]}, asked for {value}; "
                "use another folder or the same settings"
            )


def encode_jpeg(frame: Bytes) -> bytes:
    """[3, height, width] to JPEG, without colour subsampling."""
    return to_jpeg(frame, quality=JPEG_QUALITY, subsampling=0)


def decode_jpeg(content: Bytes) -> Bytes:
    from PIL import Image

    with Image.open(io.BytesIO(content.tobytes())) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
