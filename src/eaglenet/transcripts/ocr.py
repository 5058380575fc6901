"""On-screen text: OCR with RapidOCR, which only this module imports."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.platform import num_cores
from eaglenet.transcripts.lines import TranscriptLine, analyse, clean_lines
from eaglenet.video.containers import is_image
from eaglenet.video.images import image_pixels
from eaglenet.video.picking import decode_through
from eaglenet.video.pixels import Pixels
from eaglenet.video.source import VideoSource, open_video

FRAME_SECONDS = 1.0
"""Seconds between the frames that are compared."""
SHORT_SIDE = 720
"""Pixels of the shorter side of a frame at most: text in films is read as well as at twice that,
in a quarter of the time."""
IMAGE_SHORT_SIDE = 1440
"""The same for an image, which may show a printed page."""
BLOCK = 8
"""Side in pixels of a block whose mean is compared, about one letter."""
MIN_CHANGE, MAX_CHANGED_BLOCKS = 16.0, 2
"""Grey values (of 256) by which a changed block differs; more changed blocks make a new frame."""


@dataclass(frozen=True)
class DistinctFrame:
    """A frame that differs from the previous one; visible from ``start`` to ``end`` (seconds)."""

    start: float
    end: float
    pixels: Pixels
    """``[3, height, width]``"""


def distinct_frames(path: str | Path, start: float, end: float) -> list[DistinctFrame]:
    """Decode one frame per second between ``start`` and ``end``, without repeated ones."""
    if is_image(path):
        return [DistinctFrame(0.0, 0.0, image_pixels(path, IMAGE_SHORT_SIDE))]
    with open_video(path, threads=1) as source:
        return _distinct(source, start, end)


def _distinct(source: VideoSource, start: float, end: float) -> list[DistinctFrame]:
    frames: list[DistinctFrame] = []
    blocks: NDArray[np.float32] | None = None
    due = last_seconds = start
    first = source.zero + int(Fraction(start) / source.tick) if start else None
    for time, frame in decode_through(source, first):
        seconds = source.seconds(time)
        if seconds >= end:
            break
        last_seconds = max(last_seconds, seconds)
        if seconds < due - 1e-6:
            continue
        due = max(due + FRAME_SECONDS, seconds)
        pixels = source.scaled_pixels(frame, min(SHORT_SIDE, frame.width, frame.height))
        new_blocks = _block_means(pixels)
        if (
            blocks is None
            or blocks.shape != new_blocks.shape
            or int((np.abs(blocks - new_blocks) > MIN_CHANGE).sum()) > MAX_CHANGED_BLOCKS
        ):
            frames.append(DistinctFrame(seconds, end, pixels))
            blocks = new_blocks
    ends = [*(frame.start for frame in frames[1:]), min(end, last_seconds + FRAME_SECONDS)]
    return [
        DistinctFrame(frame.start, max(frame_end, frame.start), frame.pixels)
        for frame, frame_end in zip(frames, ends, strict=False)
    ]


def _block_means(pixels: Pixels) -> NDArray[np.float32]:
    """Means ``[3, rows, columns]`` per colour: brightness may stay where colours change."""
    height, width = (max(BLOCK, side - side % BLOCK) for side in pixels.shape[1:])
    missing = [(0, 0), (0, max(0, height - pixels.shape[1])), (0, max(0, width - pixels.shape[2]))]
    whole = np.pad(pixels, missing)[:, :height, :width].astype(np.float32)
    blocks = whole.reshape(3, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    means: NDArray[np.float32] = blocks.mean(axis=(2, 4))
    return means


MIN_SCORE = 0.6
"""Confidence below which RapidOCR guesses."""
MIN_CHARACTERS = 2
MIN_RATIO = 0.87
"""Similarity (difflib) above which two readings are of the same text."""
MAX_GAP = 2.5
"""Seconds a text may be missing and still be the same line, after a failed reading."""
MAX_OPEN = 200


@dataclass(frozen=True)
class RecognizedText:
    """A text in a frame; ``score`` is between 0 and 1."""

    text: str
    score: float


class OcrModel:
    """Reads text in frames. Loading takes about a second."""

    def __init__(self) -> None:
        rapidocr = self.require()
        # One frame at a time: operators that run side by side only wait for each other.
        threads = {"intra_op_num_threads": num_cores(), "inter_op_num_threads": 1}
        engine = {f"EngineConfig.onnxruntime.{name}": value for name, value in threads.items()}
        self._read: Any = rapidocr.RapidOCR(params={"Global.log_level": "error", **engine})

    @staticmethod
    def version() -> str:
        """Name and version of the library, which has its models built in."""
        return f"rapidocr {importlib.metadata.version('rapidocr')}"

    @staticmethod
    def require() -> Any:
        """Import RapidOCR, or raise an error that names the extra."""
        try:
            import rapidocr
        except ImportError as error:
            raise UsageError(
                f"reading on-screen text needs rapidocr ({error}); install it with: "
                "pip install 'eaglenet[ocr]'"
            ) from error
        return rapidocr

    def read(self, frame: DistinctFrame) -> list[RecognizedText]:
        """Texts of a frame, from top to bottom."""
        # [3, height, width] RGB to the [height, width, 3] BGR of OpenCV.
        image = np.ascontiguousarray(frame.pixels[::-1].transpose(1, 2, 0))
        result = self._read(image)
        texts, scores = getattr(result, "txts", None), getattr(result, "scores", None)
        return [
            RecognizedText(str(text), float(score))
            for text, score in zip(texts or (), scores or (), strict=False)
            if score >= MIN_SCORE and sum(map(str.isalnum, text)) >= MIN_CHARACTERS
        ]


@dataclass
class _OpenLine:
    """A text that may still be visible in the next frame."""

    text: str
    score: float
    start: float
    end: float
    key: str


class TextTracker:
    """Joins repeated readings of a text into one line that lasts as long as it is visible."""

    def __init__(self) -> None:
        self._open: list[_OpenLine] = []

    def feed(self, frame: DistinctFrame, texts: Sequence[RecognizedText]) -> list[TranscriptLine]:
        """Add the texts of the next frame; returns the lines that have ended."""
        ended = [line for line in self._open if frame.start - line.end > MAX_GAP]
        self._open = [line for line in self._open if frame.start - line.end <= MAX_GAP]
        for text in texts:
            key = " ".join(term.text for term in analyse(text.text).terms)
            if not key:
                continue
            line = self._find(key)
            if line is None:
                self._open.append(_OpenLine(text.text, text.score, frame.start, frame.end, key))
                continue
            line.end = frame.end
            if text.score > line.score:
                line.text, line.score, line.key = text.text, text.score, key
        while len(self._open) > MAX_OPEN:
            ended.append(self._open.pop(0))
        return _transcript_lines(ended)

    def finish(self) -> list[TranscriptLine]:
        """Return the lines that are still open."""
        ended, self._open = self._open, []
        return _transcript_lines(ended)

    @property
    def earliest_open(self) -> float | None:
        """Start of the earliest open line."""
        return min((line.start for line in self._open), default=None)

    def _find(self, key: str) -> _OpenLine | None:
        for line in self._open:
            matcher = difflib.SequenceMatcher(None, line.key, key, autojunk=False)
            if line.key == key or (
                matcher.quick_ratio() >= MIN_RATIO
                and matcher.ratio() >= MIN_RATIO
                # Clocks, scores and page numbers differ in little but their digits.
                and _digits(line.key) == _digits(key)
            ):
                return line
        return None


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


def _transcript_lines(lines: Sequence[_OpenLine]) -> list[TranscriptLine]:
    return clean_lines(TranscriptLine(line.start, line.end, line.text) for line in lines)
