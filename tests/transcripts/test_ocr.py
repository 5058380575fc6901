"""On-screen text: selection of frames, and one line per visible text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

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


def test_no_frame_of_a_transport_stream_is_skipped(tmp_path: Path) -> None:
    """A seek may land after its target, since transport streams have no index."""
    frames = np.repeat(np.arange(0, 240, 40, dtype=np.uint8), 10)[:, None, None, None]
    frames = np.broadcast_to(frames, (60, 48, 64, 3))
    write_video(tmp_path / "film.ts", frames, 10, options={"g": "30", "sc_threshold": "0"})
    first, *_ = distinct_frames(tmp_path / "film.ts", 2.0, 4.0)
    assert first.start < 2.2


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
    frames = distinct_frames(path, 0.0, 60.0)
    for frame, texts in zip(frames, reader.read(frames), strict=True):
        lines += tracker.feed(frame, texts)
    lines += tracker.finish()
    assert [(line.text, line.start) for line in lines] == [
        ("PLATFORM NINE", 0.0),
        ("Grand opening", 2.0),
    ]


def test_rules_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """RapidOCR would enlarge 1 x 2000 pixels to gigabytes, and shrink 20 x 6000 to nothing."""
    shapes = []

    def engine(image: Any, **steps: bool) -> None:
        shapes.append(image.shape)

    monkeypatch.setattr(OcrModel, "_load", lambda self: engine)
    model = OcrModel()
    for shape in ((1, 2000, 3), (2000, 1, 3), (20, 6000, 3)):
        assert model._recognize(np.zeros(shape, np.uint8)) == RecognizedText("", 0.0)
    assert model._locate(np.zeros((721, 80_000, 3), np.uint8)) == []
    assert shapes == []
    model._recognize(np.zeros((20, 2000, 3), np.uint8))
    assert shapes == [(20, 2000, 3)]


def test_reading_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame may show a thousand texts."""

    class Boxes(NamedTuple):
        boxes: Any

    def engine(image: Any, use_det: bool, **steps: bool) -> Any:
        time.sleep(0.05)
        corners = np.array([(0, 0), (50, 0), (50, 20), (0, 20)], np.float32)
        return Boxes(
            [np.add(corners, (0, row), dtype=np.float32) for row in range(0, 300, 3)]
            if use_det
            else None
        )

    monkeypatch.setattr(OcrModel, "_load", lambda self: engine)
    frames = [DistinctFrame(0.0, 1.0, np.zeros((3, 320, 100), np.uint8))] * 20
    model, began_at = OcrModel(), time.monotonic()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            model.read(frames, time.monotonic() + 0.3)
    assert time.monotonic() - began_at < 20  # All of them take at least 25 s.
    assert model.read([]) == []


def frame_with(text: str, second: float, background: int) -> DistinctFrame:
    """Return a frame with a text in the lower half and an image in the upper one."""
    picture = Image.new("RGB", (640, 360), (20, 30, 60))
    ImageDraw.Draw(picture).rectangle((0, 0, 639, 150), fill=(background, background, 90))
    font = ImageFont.load_default(36)
    ImageDraw.Draw(picture).text((60, 240), text, "white", font)  # type: ignore[arg-type]
    pixels = np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))
    return DistinctFrame(second, second + 1, pixels)


def count_readings(*frames: DistinctFrame) -> tuple[int, list[list[str]]]:
    """Return the number of recognised texts, and the results for each frame."""
    model = OcrModel()
    crops = []
    recognize = model._recognize

    def record(crop: Any) -> RecognizedText:
        crops.append(crop)
        return recognize(crop)

    model._recognize = record  # type: ignore[method-assign]
    # The second call continues after the first.
    readings = [*model.read(frames[:1]), *model.read(frames[1:])]
    return len(crops), [[reading.text for reading in texts] for texts in readings]


@pytest.mark.slow
def test_a_text_that_stays_is_recognised_once_while_the_picture_changes() -> None:
    text = "Platform 7 to the harbour"
    count, texts = count_readings(*(frame_with(text, n, 40 + 60 * n) for n in range(3)))
    assert texts[0] == texts[1] == texts[2]
    assert texts[0][0].replace(" ", "") == text.replace(" ", "")
    assert count == 1


@pytest.mark.slow
def test_a_text_of_which_one_digit_changes_is_read_again() -> None:
    frames = (frame_with(f"Score 12:0{number}", number, 40) for number in (1, 2))
    count, texts = count_readings(*frames)
    assert count == 2
    assert "01" in texts[0][0]
    assert "02" in texts[1][0]
