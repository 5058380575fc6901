"""On-screen text: which frames are read, and that a visible text is one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.ocr import (
    DistinctFrame,
    OcrModel,
    RecognizedText,
    TextTracker,
    distinct_frames,
)
from eaglenet.video.decoding import write_video
from subtitled import write_pages


def frame_at(start: float, end: float) -> DistinctFrame:
    return DistinctFrame(start, end, np.zeros((3, 8, 8), np.uint8))


def follow(*frames: tuple[float, float, list[str]]) -> list[TranscriptLine]:
    tracker, lines = TextTracker(), []
    for start, end, texts in frames:
        lines += tracker.feed(frame_at(start, end), [RecognizedText(text, 0.9) for text in texts])
    return sorted([*lines, *tracker.finish()], key=lambda line: (line.start, line.text))


def test_lasting_text_is_one_line_while_others_change() -> None:
    lines = follow(
        (0.0, 1.0, ["CITY NEWS", "storm warning"]),
        (1.0, 2.0, ["CITY NEWS"]),
        (2.0, 6.0, ["CITY NEWS", "sunny tomorrow"]),
    )
    assert [(line.text, line.start, line.end) for line in lines] == [
        ("CITY NEWS", 0.0, 6.0),
        ("storm warning", 0.0, 1.0),
        ("sunny tomorrow", 2.0, 6.0),
    ]


def test_failed_or_misread_frame_does_not_end_a_line() -> None:
    lines = follow((0.0, 1.0, ["platform nine"]), (1.0, 2.0, []), (2.0, 3.0, ["platforrn nine"]))
    assert [(line.start, line.end) for line in lines] == [(0.0, 3.0)]


def test_texts_with_different_digits_are_different_lines() -> None:
    assert len(follow((0.0, 1.0, ["page 41 of 90"]), (1.0, 2.0, ["page 42 of 90"]))) == 2


def test_text_that_returns_later_is_a_new_line() -> None:
    lines = follow((0.0, 1.0, ["the end"]), (1.0, 9.0, []), (9.0, 10.0, ["the end"]))
    assert [line.start for line in lines] == [0.0, 9.0]


def test_similar_frames_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pages.mp4"
    write_pages(path, ["first", "second page"], seconds=3)
    frames = distinct_frames(path, 0.0, 60.0)
    assert [(frame.start, frame.end) for frame in frames] == [(0.0, 3.0), (3.0, 6.75)]
    assert frames[0].pixels.shape == (3, 120, 320)
    (later,) = distinct_frames(path, 4.0, 60.0)
    assert later.start == 4.0
    assert distinct_frames(path, 50.0, 60.0) == []


def test_codec_noise_is_not_a_change(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(100, 108, (12, 3, 48, 64), generator=generator, dtype=torch.uint8)
    write_video(tmp_path / "noise.mp4", frames, 4)
    assert len(distinct_frames(tmp_path / "noise.mp4", 0.0, 9.0)) == 1


@pytest.mark.slow
def test_reads_text_in_frames(tmp_path: Path) -> None:
    path = tmp_path / "pages.mp4"
    write_pages(path, ["PLATFORM NINE", "Grand opening"], seconds=2, size=(640, 360))
    reader, tracker = OcrModel(), TextTracker()
    lines: list[TranscriptLine] = []
    for frame in distinct_frames(path, 0.0, 60.0):
        lines += tracker.feed(frame, reader.read(frame))
    lines += tracker.finish()
    assert [(line.text, line.start) for line in lines] == [
        ("PLATFORM NINE", 0.0),
        ("Grand opening", 2.0),
    ]
