"""Text in frames: the only file that imports RapidOCR, whose models are in its package."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from eaglenet.cores import num_cores
from eaglenet.errors import UsageError
from eaglenet.video.distinct import DistinctFrame
from eaglenet.words.lines import Line, clean_lines
from eaglenet.words.terms import analyse

LEAST_SCORE = 0.6
"""Below it RapidOCR guesses."""
LEAST_SIGNS = 2
SAME = 0.87
"""Share of signs in common (difflib) from which on two readings are of one text."""
GAP = 2.5
"""Seconds for which a text may be lost and still be the same: a reading that failed."""
MOST_OPEN = 200


@dataclass(frozen=True)
class ReadText:
    """A text in a frame; ``score`` from 0 to 1."""

    text: str
    score: float


class TextReader:
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

    def read(self, frame: DistinctFrame) -> list[ReadText]:
        """The texts of a frame, from top to bottom."""
        # [3, height, width] RGB to the [height, width, 3] BGR of OpenCV.
        picture = np.ascontiguousarray(frame.pixels[::-1].transpose(1, 2, 0))
        result = self._read(picture)
        texts, scores = getattr(result, "txts", None), getattr(result, "scores", None)
        return [
            ReadText(str(text), float(score))
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

    def feed(self, frame: DistinctFrame, texts: Sequence[ReadText]) -> list[Line]:
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

    def finish(self) -> list[Line]:
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


def _lines(texts: Sequence[_Open]) -> list[Line]:
    return clean_lines(Line(each.start, each.end, each.text) for each in texts)
