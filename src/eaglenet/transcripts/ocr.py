"""Text in frames: the only file that imports RapidOCR, whose models are in its package."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
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

# Frames that differ from those before them, whole and large enough to read.

EVERY = 1.0
"""Seconds between frames that are looked at."""
SHORT_SIDE = 720
"""Pixels at most: text of a film is read as well as at twice that, in a quarter of the time."""
STILL_SIDE = 1440
"""The same of a photograph, which may be of a page of print."""
BLOCK = 8
"""Pixels along a block whose mean is compared: about a letter."""
CHANGED, FEW = 16.0, 2
"""Levels of 256 by which a block has to change, and more blocks than so many for a frame."""


@dataclass(frozen=True)
class DistinctFrame:
    """``pixels`` [3, height, width], on show from ``start`` until the next one or ``end``."""

    start: float
    end: float
    pixels: Pixels


def distinct_frames(path: str | Path, start: float, end: float) -> list[DistinctFrame]:
    """A frame a second from ``start`` on, without those that look like the one before."""
    if is_image(path):
        return [DistinctFrame(0.0, 0.0, image_pixels(path, STILL_SIDE))]
    with open_video(path, threads=1) as source:
        return _distinct(source, start, end)


def _distinct(source: VideoSource, start: float, end: float) -> list[DistinctFrame]:
    found: list[DistinctFrame] = []
    blocks: NDArray[np.float32] | None = None
    due = start
    first = source.zero + int(Fraction(start) / source.tick) if start else None
    shown = start
    for time, frame in decode_through(source, first):
        seconds = source.seconds(time)
        if seconds >= end:
            break
        shown = max(shown, seconds)
        if seconds < due - 1e-6:
            continue
        due = max(due + EVERY, seconds)
        pixels = source.picture(frame, min(SHORT_SIDE, frame.width, frame.height))
        now = _blocks(pixels)
        if blocks is None or blocks.shape != now.shape or _differs(blocks, now):
            found.append(DistinctFrame(seconds, end, pixels))
            blocks = now
    last = min(end, shown + EVERY)
    ends = [*(frame.start for frame in found[1:]), last]
    return [
        DistinctFrame(frame.start, max(stop, frame.start), frame.pixels)
        for frame, stop in zip(found, ends, strict=False)
    ]


def _blocks(pixels: Pixels) -> NDArray[np.float32]:
    """Means ``[3, rows, columns]``: colours may change where the brightness does not."""
    height, width = (max(BLOCK, side - side % BLOCK) for side in pixels.shape[1:])
    missing = [(0, 0), (0, max(0, height - pixels.shape[1])), (0, max(0, width - pixels.shape[2]))]
    whole = np.pad(pixels, missing)[:, :height, :width].astype(np.float32)
    parts = whole.reshape(3, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    means: NDArray[np.float32] = parts.mean(axis=(2, 4))
    return means


def _differs(before: NDArray[np.float32], now: NDArray[np.float32]) -> bool:
    return int((np.abs(before - now) > CHANGED).sum()) > FEW


LEAST_SCORE = 0.6
"""Below it RapidOCR guesses."""
LEAST_SIGNS = 2
SAME = 0.87
"""Share of signs in common (difflib) from which on two readings are of one text."""
GAP = 2.5
"""Seconds for which a text may be lost and still be the same: a reading that failed."""
MOST_OPEN = 200


@dataclass(frozen=True)
class RecognizedText:
    """A text in a frame; ``score`` from 0 to 1."""

    text: str
    score: float


class OcrModel:
    """Reads frames. Made once: loading the models takes a second."""

    def __init__(self) -> None:
        rapidocr = self.require()
        self.name = f"rapidocr {version('rapidocr')}"
        # One picture at a time: threads that wait for each other only burn cores.
        threads = {"intra_op_num_threads": num_cores(), "inter_op_num_threads": 1}
        engine = {f"EngineConfig.onnxruntime.{name}": value for name, value in threads.items()}
        self._read: Any = rapidocr.RapidOCR(params={"Global.log_level": "error", **engine})

    @staticmethod
    def require() -> Any:
        """RapidOCR, or the name of the extra that brings it."""
        try:
            import rapidocr
        except ImportError as error:
            raise UsageError(
                f"reading text in frames needs rapidocr ({error}); install it with: "
                "pip install 'eaglenet[ocr]'"
            ) from error
        return rapidocr

    def read(self, frame: DistinctFrame) -> list[RecognizedText]:
        """The texts of a frame, from top to bottom."""
        # [3, height, width] RGB to the [height, width, 3] BGR of OpenCV.
        picture = np.ascontiguousarray(frame.pixels[::-1].transpose(1, 2, 0))
        result = self._read(picture)
        texts, scores = getattr(result, "txts", None), getattr(result, "scores", None)
        return [
            RecognizedText(str(text), float(score))
            for text, score in zip(texts or (), scores or (), strict=False)
            if score >= LEAST_SCORE and sum(map(str.isalnum, text)) >= LEAST_SIGNS
        ]


@dataclass
class _Open:
    text: str
    score: float
    start: float
    end: float
    key: str


class TextTracker:
    """Joins what is read again and again into lines that last as long as the text is shown."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    def feed(self, frame: DistinctFrame, texts: Sequence[RecognizedText]) -> list[TranscriptLine]:
        """Take the texts of the next frame; gives the lines that are over."""
        over = [each for each in self._open if frame.start - each.end > GAP]
        self._open = [each for each in self._open if frame.start - each.end <= GAP]
        for read in texts:
            key = " ".join(term.text for term in analyse(read.text).terms)
            if not key:
                continue
            known = self._same(key)
            if known is None:
                self._open.append(_Open(read.text, read.score, frame.start, frame.end, key))
                continue
            known.end = frame.end
            if read.score > known.score:
                known.text, known.score, known.key = read.text, read.score, key
        while len(self._open) > MOST_OPEN:
            over.append(self._open.pop(0))
        return _lines(over)

    def finish(self) -> list[TranscriptLine]:
        """The lines that are still on show."""
        over, self._open = self._open, []
        return _lines(over)

    @property
    def begun(self) -> float | None:
        """The start of the first line that is not over."""
        return min((each.start for each in self._open), default=None)

    def _same(self, key: str) -> _Open | None:
        for each in self._open:
            matcher = difflib.SequenceMatcher(None, each.key, key, autojunk=False)
            if each.key == key or (
                matcher.quick_ratio() >= SAME
                and matcher.ratio() >= SAME
                and not _are_other_numbers(each.key, key)
            ):
                return each
        return None


def _are_other_numbers(first: str, second: str) -> bool:
    """Clocks, scores and pages differ in little but their digits."""
    digits = ["".join(filter(str.isdigit, key)) for key in (first, second)]
    return digits[0] != digits[1]


def _lines(texts: Sequence[_Open]) -> list[TranscriptLine]:
    return clean_lines(TranscriptLine(each.start, each.end, each.text) for each in texts)
