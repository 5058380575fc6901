"""Search transcripts by meaning: windows of lines, their vectors, a ranking with exact terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eaglenet.transcripts.lines import TranscriptLine

WINDOW_WORDS = 32
"""Words per window at most: about the longest sentence, and what text encoders read whole."""
MAX_GAP = 4.0
"""Seconds of silence that end a window: what follows is often about something else."""
SPREAD = 4.0
"""Standard deviations above the mean cosine at which a window means the same as the query."""

MEANING_WEIGHT = 0.5
"""Weight of meaning beside exact terms: the best of 0.5, 1 and 2 (``transcript_search.py``)."""

Vectors = NDArray[np.float32]
"""``[texts, width]``, of unit length."""
TextEncoder = Callable[[Sequence[str]], Vectors]
"""Encodes texts; texts of similar meaning have vectors of large cosine."""


@dataclass(frozen=True)
class TranscriptWindow:
    """Neighbouring transcript lines read as one text; ``first`` to ``last`` index the lines."""

    start: float
    end: float
    text: str
    first: int
    last: int


def make_windows(
    lines: Sequence[TranscriptLine], max_words: int = WINDOW_WORDS
) -> list[TranscriptWindow]:
    """Make one window per line: the line, and those after it as long as they fit.

    Windows overlap, so that a sentence that spans lines is whole in one of them. A window ends
    before a pause of ``MAX_GAP`` seconds. A window that ends where the previous one ends is left
    out, unless it is a single line: its text is in the previous one.

    >>> lines = [TranscriptLine(0, 1, "the keys"), TranscriptLine(1, 2, "are lost")]
    >>> [window.text for window in make_windows(lines)]
    ['the keys are lost', 'are lost']
    """
    windows: list[TranscriptWindow] = []
    for first, line in enumerate(lines):
        text, last = line.text, first
        count = len(text.split())
        while last + 1 < len(lines):
            following = lines[last + 1]
            count += len(following.text.split())
            if count > max_words or following.start - lines[last].end > MAX_GAP:
                break
            text, last = f"{text} {following.text}", last + 1
        is_inside = bool(windows) and windows[-1].last == last and last > first
        if not is_inside:
            windows.append(TranscriptWindow(line.start, lines[last].end, text, first, last))
    return windows


class MeaningIndex:
    """Vectors of windows, searched exactly: a million windows take 0.8 GB and 0.1 s in fp16."""

    def __init__(self, windows: Sequence[TranscriptWindow], vectors: Vectors) -> None:
        if len(windows) != len(vectors):
            raise ValueError(f"{len(windows)} windows, {len(vectors)} vectors")
        self.windows = list(windows)
        self.vectors = vectors.astype(np.float16)

    @classmethod
    def build(
        cls, lines: Sequence[TranscriptLine], encode: TextEncoder, batch: int = 64
    ) -> MeaningIndex:
        """Encode the windows of a transcript."""
        windows = make_windows(lines)
        # Texts of one length per batch: padding is encoded too.
        order = sorted(range(len(windows)), key=lambda number: len(windows[number].text))
        rows: dict[int, NDArray[np.float32]] = {}
        for start in range(0, len(order), batch):
            numbers = order[start : start + batch]
            encoded = encode([windows[number].text for number in numbers])
            rows.update(zip(numbers, encoded, strict=True))
        width = len(next(iter(rows.values()))) if rows else 0
        vectors = np.zeros((len(windows), width), np.float32)
        for number, row in rows.items():
            vectors[number] = row
        return cls(windows, vectors)

    def cosines(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cosine of every window with a query vector."""
        result: NDArray[np.float32] = self.vectors.astype(np.float32) @ query
        return result


def meaning_strengths(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Map cosines to 0 (an average window) to 1 (``SPREAD`` deviations above it).

    Cosines of two encoders, or of two queries, are not comparable; distances from the other windows
    are. With fewer than three windows there is no average, and the cosine itself counts.
    """
    if len(cosines) < 3:
        return np.asarray(np.clip(cosines, 0.0, 1.0), np.float32)
    deviation = max(float(cosines.std()), 1e-6)
    scaled = (cosines - float(cosines.mean())) / (SPREAD * deviation)
    return np.asarray(np.clip(scaled, 0.0, 1.0), np.float32)


def hybrid_strengths(
    exact: NDArray[np.float32], cosines: NDArray[np.float32], weight: float = MEANING_WEIGHT
) -> NDArray[np.float32]:
    """Sum of the strength by exact terms (0 to 1) and ``weight`` times that by meaning.

    A window with all terms of the query comes before one that only means the same; where no window
    has them, meaning decides.
    """
    total: NDArray[np.float32] = exact + weight * meaning_strengths(cosines)
    return total
