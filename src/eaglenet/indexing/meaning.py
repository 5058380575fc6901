"""Windows of transcripts: encoded at the end of a run, for every source that has none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.progress import Progress, report_progress
from eaglenet.models.meaning import MeaningEncoder
from eaglenet.store.base import Writer
from eaglenet.store.records import Changes, Line, SourceKey, SourceWindows
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.meaning import make_windows

COMMIT_WINDOWS = 500
"""Windows per commit; a killed run encodes as many again."""
TITLE = "encoding transcripts"


def encode_transcripts(
    writer: Writer, progress: Progress | None = None, encoder: MeaningEncoder | None = None
) -> int:
    """Add windows to all complete sources without them; returns their number.

    Reads lines from the store alone: a store of an earlier version gets them without decoding.
    """
    if not any(source.lines for source in writer.sources().values()):
        return 0
    encoder = encoder or MeaningEncoder.open()
    # A description belongs to its clip; joined with others in a window it would lose its span.
    keys = [
        key for key in writer.sources_without_windows(encoder.identity) if key[1] != "description"
    ]
    pending: list[SourceWindows] = []
    total = 0
    for number, key in enumerate(keys):
        report_progress(progress, TITLE, number, len(keys))
        pending.append(encode_source(encoder, key, writer.lines(key)))
        total += len(pending[-1].vectors)
        if sum(len(each.vectors) for each in pending) >= COMMIT_WINDOWS:
            writer.commit(Changes(windows=pending))
            pending = []
    writer.commit(Changes(windows=pending))
    if keys:
        report_progress(progress, TITLE, len(keys), len(keys))
    return total


def encode_source(encoder: MeaningEncoder, key: SourceKey, lines: Sequence[Line]) -> SourceWindows:
    """Windows of one source that the encoder can read."""
    windows = [
        window
        for window in make_windows(
            [TranscriptLine(line.start, line.end, line.text, line.language) for line in lines]
        )
        if encoder.reads(window.text)
    ]
    firsts: NDArray[np.uint32] = np.array([window.first for window in windows], np.uint32)
    lasts: NDArray[np.uint32] = np.array([window.last for window in windows], np.uint32)
    vectors = encoder.encode([window.text for window in windows])
    return SourceWindows(key, encoder.identity, firsts, lasts - firsts + 1, vectors)
