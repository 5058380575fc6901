"""Recognition of on-screen text with RapidOCR, which no other module imports."""

from __future__ import annotations

import difflib
import importlib.metadata
import math
import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import naming_extra
from eaglenet.core.platform import num_cores
from eaglenet.transcripts.lines import TranscriptLine, analyse, clean_lines
from eaglenet.video.containers import is_image
from eaglenet.video.images import image_pixels
from eaglenet.video.pixels import Pixels
from eaglenet.video.source import VideoSource, decode_from, open_video

FRAME_SECONDS = 1.0
"""Seconds between the frames that are compared."""
SHORT_SIDE = 720
"""Maximum shorter side of a frame in pixels. Recognition at twice this size is no better, and takes
four times as long."""
IMAGE_SHORT_SIDE = 1440
"""Maximum shorter side of an image, which may show a printed page."""
BLOCK = 8
"""Side in pixels of the blocks whose means are compared: about one letter."""
MIN_CHANGE, MAX_CHANGED_BLOCKS = 16.0, 2
"""Minimum change of a block, from 0 to 255, and maximum changed blocks of equal frames."""


@dataclass(frozen=True)
class DistinctFrame:
    """A frame that differs from the previous one; visible from ``start`` to ``end`` (seconds)."""

    start: float
    end: float
    pixels: Pixels
    """``[3, height, width]``"""


def distinct_frames(path: str | Path, start: float, end: float) -> list[DistinctFrame]:
    """Return one frame per second between ``start`` and ``end``, without repeated frames."""
    if is_image(path):
        return [DistinctFrame(0.0, 0.0, image_pixels(path, IMAGE_SHORT_SIDE))]
    with open_video(path, threads=1) as source:
        return _distinct(source, start, end)


def _distinct(source: VideoSource, start: float, end: float) -> list[DistinctFrame]:
    frames: list[DistinctFrame] = []
    blocks: NDArray[np.float32] | None = None
    next_time = last_seconds = start
    for ticks, frame in decode_from(source, source.zero + int(Fraction(start) / source.tick)):
        seconds = source.seconds(ticks)
        if seconds >= end:
            break
        last_seconds = max(last_seconds, seconds)
        if seconds < next_time - 1e-6:
            continue
        next_time = max(next_time + FRAME_SECONDS, seconds)
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
    """Return the means ``[3, rows, columns]`` of blocks per colour channel."""
    height, width = (max(BLOCK, side - side % BLOCK) for side in pixels.shape[1:])
    padding = [(0, 0), (0, max(0, height - pixels.shape[1])), (0, max(0, width - pixels.shape[2]))]
    if padding[1:] != [(0, 0), (0, 0)]:
        pixels = np.pad(pixels, padding)
    pixels = pixels[:, :height, :width]
    blocks = pixels.reshape(3, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    # Summing rows of integers first takes a quarter of the time of a mean over both axes.
    sums = blocks.sum(axis=2, dtype=np.uint32).sum(axis=3)
    means: NDArray[np.float32] = sums.astype(np.float32) / BLOCK**2
    return means


LOCATE_SIDE = 640
"""Longer side in pixels of the copy of a frame in which text is located."""
MIN_TEXT_SIDE = 13.0
"""Minimum shorter side of a text in a frame, in pixels; smaller texts are misread, slowly."""
MAX_SIDE = 2000
"""Maximum longer side of an image in pixels: the limit of RapidOCR."""
MAX_SHIFT = 0.25
"""Maximum movement of the corners of an unchanged text, in letter heights, since the detector is
not exact. An additional letter moves them further."""
MAX_CROP_CHANGE = 10.0
"""Maximum change of a block of an unchanged text, from 0 to 255. Another digit changes its block by
more."""
COLUMN_RATIO = 1.5
"""Minimum height / width of a column of text; RapidOCR's value."""
MAX_THREADS = 8
"""Maximum threads that locate and read texts; each has its own RapidOCR of about 130 MB."""
MAX_RATIO = 100
"""Maximum ratio of the sides of an image that is read. Longer ones are lines, not text; RapidOCR
would enlarge them to gigabytes or shrink them to nothing."""
MIN_SCORE = 0.6
"""Minimum confidence of a reading."""
MIN_CHARACTERS = 2
MIN_RATIO = 0.87
"""Minimum similarity (difflib) of two readings of the same text."""
MAX_GAP = 2.5
"""Maximum seconds for which a text may be missing within a line, as after a failed reading."""
MAX_OPEN = 200


@dataclass(frozen=True)
class RecognizedText:
    """Text in a frame; ``score`` is the confidence, between 0 and 1."""

    text: str
    score: float


class OcrModel:
    """Reads text in frames. Loading the models takes about a second.

    Text is located in a small copy of the frame, and each text is read at full size. A text that
    looks the same as in the previous frame is not read again. Each thread has its own RapidOCR:
    threads that share one wait for each other half of the time.
    """

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle.put(self._load())  # More are loaded when they are needed.
        self._pool = ThreadPoolExecutor(min(num_cores(), MAX_THREADS), thread_name_prefix="ocr")
        self._previous: list[_TextBox] = []

    @staticmethod
    def version() -> str:
        """Return the name and version of the library, which contains its models."""
        return f"rapidocr {importlib.metadata.version('rapidocr')}"

    @staticmethod
    def require() -> Any:
        """Import RapidOCR; raise an error that names the extra if it is missing."""
        with naming_extra("ocr", "reading on-screen text needs rapidocr"):
            import rapidocr
        return rapidocr

    def _load(self) -> Any:
        threads = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
        engine = {f"EngineConfig.onnxruntime.{name}": value for name, value in threads.items()}
        # By default, RapidOCR would enlarge a small copy again.
        size = {"Det.limit_type": "max", "Det.limit_side_len": MAX_SIDE}
        params = {"Global.log_level": "error", **engine, **size}
        return self.require().RapidOCR(params=params)

    def _run(self, image: NDArray[np.uint8], **steps: bool) -> Any:
        """Run steps of an idle RapidOCR, which is not thread-safe; None beyond ``MAX_RATIO``."""
        shorter, longer = sorted(image.shape[:2])
        if longer > MAX_RATIO * shorter:
            return None
        try:
            engine = self._idle.get_nowait()
        except queue.Empty:
            engine = self._load()
        try:
            return engine(image, use_cls=False, **steps)
        finally:
            self._idle.put(engine)

    def read(
        self, frames: Sequence[DistinctFrame], deadline: float = math.inf
    ) -> list[list[RecognizedText]]:
        """Return the texts of each frame, from top to bottom; ``frames`` follow those read last.

        Raises ``TimeoutError`` at ``deadline`` (``time.monotonic``), since a frame may show a
        thousand texts.
        """
        # [3, height, width] RGB to the [height, width, 3] BGR of OpenCV.
        images = [np.ascontiguousarray(frame.pixels[::-1].transpose(1, 2, 0)) for frame in frames]
        locations = [self._pool.submit(self._locate, image) for image in images]
        readings: list[Future[RecognizedText]] = []
        results = []
        try:
            for image, boxes in zip(images, locations, strict=True):
                text_boxes = []
                for box in boxes.result(_timeout(deadline)):
                    _timeout(deadline)
                    text_box = next(
                        (each for each in self._previous if each.is_same(box, image)), None
                    )
                    if text_box is None:
                        crop = _cut_out(image, box)
                        readings.append(self._pool.submit(self._recognize, crop))
                        text_box = _TextBox(box, _crop_blocks(crop), readings[-1])
                    text_boxes.append(text_box)
                self._previous = text_boxes
                results.append([text_box.text for text_box in text_boxes])
            return [
                _readable([text.result(_timeout(deadline)) for text in texts]) for texts in results
            ]
        except BaseException:
            # Unfinished work would delay Ctrl-C.
            futures: list[Future[Any]] = [*locations, *readings]
            for future in futures:
                future.cancel()
            self._previous = []
            raise

    def _locate(self, image: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
        """Return the corners ``[4, 2]`` of each text, from top to bottom."""
        import cv2

        height, width = image.shape[:2]
        # An image may show a printed page, whose letters would be lost in a smaller copy.
        is_frame = min(height, width) <= SHORT_SIDE
        scale = min(1.0, LOCATE_SIDE / max(height, width)) if is_frame else 1.0
        small = image
        if scale < 1.0:
            size = max(1, round(width * scale)), max(1, round(height * scale))
            small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        result = self._run(small, use_det=True, use_rec=False)
        boxes = getattr(result, "boxes", None)
        if boxes is None:
            return []
        factors = np.array([width / small.shape[1], height / small.shape[0]], np.float32)
        full_size_boxes = [np.asarray(box, np.float32) * factors for box in boxes]
        return [box for box in full_size_boxes if not is_frame or _short_side(box) >= MIN_TEXT_SIDE]

    def _recognize(self, crop: NDArray[np.uint8]) -> RecognizedText:
        """Read one line, since a batch would pad all lines to the longest one."""
        result = self._run(crop, use_det=False, use_rec=True)
        texts, scores = getattr(result, "txts", None), getattr(result, "scores", None)
        if not texts or not scores:
            return RecognizedText("", 0.0)
        return RecognizedText(str(texts[0]), float(scores[0]))


def _timeout(deadline: float) -> float | None:
    """Return the seconds left, None for no limit; raise ``TimeoutError`` if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return None if seconds == math.inf else seconds


def _readable(texts: Sequence[RecognizedText]) -> list[RecognizedText]:
    return [
        text
        for text in texts
        if text.score >= MIN_SCORE and sum(map(str.isalnum, text.text)) >= MIN_CHARACTERS
    ]


@dataclass(frozen=True)
class _TextBox:
    """A text in the previous frame: its corners, grey blocks and reading."""

    box: NDArray[np.float32]
    blocks: NDArray[np.float32]
    text: Future[RecognizedText]

    def is_same(self, box: NDArray[np.float32], image: NDArray[np.uint8]) -> bool:
        """Return whether a box of the next frame has the same position and look."""
        if float(np.abs(self.box - box).max()) > MAX_SHIFT * _short_side(self.box):
            return False
        blocks = _crop_blocks(_cut_out(image, self.box))
        return float(np.abs(self.blocks - blocks).max()) <= MAX_CROP_CHANGE


def _cut_out(image: NDArray[np.uint8], box: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the text in a box as a straight image, with columns rotated to the left."""
    import cv2

    width = max(1, round(float(max(_distance(box, 0, 1), _distance(box, 3, 2)))))
    height = max(1, round(float(max(_distance(box, 0, 3), _distance(box, 1, 2)))))
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    transform = cv2.getPerspectiveTransform(box, corners)
    crop: NDArray[np.uint8] = cv2.warpPerspective(
        image, transform, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.rot90(crop).copy() if height >= COLUMN_RATIO * width else crop


def _short_side(box: NDArray[np.float32]) -> float:
    return min(_distance(box, 0, 3), _distance(box, 0, 1))


def _distance(box: NDArray[np.float32], first: int, second: int) -> float:
    return float(np.linalg.norm(box[first] - box[second]))


def _crop_blocks(crop: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the mean grey values of blocks, four per letter height."""
    import cv2

    columns = max(4, round(4 * crop.shape[1] / crop.shape[0]))
    grey = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY)
    small: NDArray[np.float32] = cv2.resize(
        grey, (columns, 4), interpolation=cv2.INTER_AREA
    ).astype(np.float32)
    return small


@dataclass
class _OpenLine:
    """A text that may still be visible in the next frame."""

    text: str
    score: float
    start: float
    end: float
    key: str


class TextTracker:
    """Joins repeated readings of a text into one transcript line."""

    def __init__(self) -> None:
        self._open: list[_OpenLine] = []

    def feed(self, frame: DistinctFrame, texts: Sequence[RecognizedText]) -> list[TranscriptLine]:
        """Add the texts of the next frame; return the lines that have ended."""
        ended_lines = [line for line in self._open if frame.start - line.end > MAX_GAP]
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
            ended_lines.append(self._open.pop(0))
        return _transcript_lines(ended_lines)

    def finish(self) -> list[TranscriptLine]:
        """End and return the open lines."""
        ended_lines, self._open = self._open, []
        return _transcript_lines(ended_lines)

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
                # Clocks, scores and page numbers differ only in digits.
                and _digits(line.key) == _digits(key)
            ):
                return line
        return None


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


def _transcript_lines(lines: Sequence[_OpenLine]) -> list[TranscriptLine]:
    return clean_lines(TranscriptLine(line.start, line.end, line.text) for line in lines)
