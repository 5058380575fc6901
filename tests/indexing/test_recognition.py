"""Speech and on-screen text are read in chunks, once, and continued where a run ended.

The models are stand-ins here; `tests/transcripts` has the real ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from eaglenet.core.progress import ProgressUpdate
from eaglenet.indexing import index as index_module
from eaglenet.indexing import recognition
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.maintenance import options_like
from eaglenet.indexing.report import IndexReport
from eaglenet.search.engine import Engine
from eaglenet.store.records import IndexedFile
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.ocr import DistinctFrame, RecognizedText
from eaglenet.transcripts.speech import RATE
from eaglenet.video.audio import Samples
from eaglenet.video.limits import Limits
from small_videos import colour_video
from synthetic_store import BagMethod

COLOURS = ("red", "green", "blue")


class ColourReader:
    """Reads the name of a frame's colour; ends the run after ``left`` frames."""

    name = "colours 1"
    """Version that is stored with the lines."""
    read_at: list[float]
    left = 1000
    seconds = 0.0
    """Time for a frame."""

    def __init__(self) -> None:
        self.read_at = type(self).read_at

    @staticmethod
    def require() -> None:
        """Nothing has to be installed."""

    @classmethod
    def version(cls) -> str:
        return cls.name

    def read(self, frames: Sequence[DistinctFrame], deadline: float) -> list[list[RecognizedText]]:
        if time.monotonic() >= deadline:
            raise TimeoutError
        return [self._read(frame) for frame in frames]

    def _read(self, frame: DistinctFrame) -> list[RecognizedText]:
        time.sleep(self.seconds)
        if type(self).left == 0:
            raise KeyboardInterrupt
        type(self).left -= 1
        self.read_at.append(frame.start)
        colour = COLOURS[int(frame.pixels.mean(axis=(1, 2)).argmax())]
        return [RecognizedText(f"all is {colour}", 0.9), RecognizedText("CITY NEWS", 0.9)]


class LengthListener:
    """Hears how long the sound is."""

    def __init__(self, model: str, device: str) -> None:
        """Nothing is loaded."""

    @staticmethod
    def require() -> None:
        """Nothing has to be installed."""

    def transcribe(self, samples: Samples, start: float) -> list[TranscriptLine]:
        return [TranscriptLine(start, start + 1, f"heard {len(samples) / RATE:.0f} seconds", "en")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A film of 50 seconds without sound: three parts of text."""
    (tmp_path / "v").mkdir()
    colour_video(tmp_path / "v" / "film.mp4", ["red", "green", "blue", "red", "green"], 10)
    for module in (index_module, recognition):
        monkeypatch.setattr(module, "OcrModel", ColourReader)
        monkeypatch.setattr(module, "SpeechModel", LengthListener)
    monkeypatch.setattr(ColourReader, "read_at", [], raising=False)
    monkeypatch.setattr(ColourReader, "left", 1000)
    return tmp_path


def index(folder: Path, method: BagMethod, **options: object) -> IndexReport:
    changes = IndexOptions(workers=0, **options)  # type: ignore[arg-type]
    return index_videos([folder / "v"], folder / "store", "bag", method=method, options=changes)


def test_the_files_to_read_decide_how_many_processes_decode(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the new files of the run, of which a later run may have none."""
    index(folder, bag)
    names: list[list[str]] = []

    def count(files: Sequence[IndexedFile], number: int | None) -> int:
        names.append([Path(file.path).name for file in files])
        return number or 0

    monkeypatch.setattr(recognition, "num_workers", count)
    for _ in range(2):
        index(folder, bag, read_text=True)
    assert names == [["film.mp4"]]


def lines_of(folder: Path, method: BagMethod, query: str) -> list[tuple[float, float]]:
    hits = Engine.open(folder / "store", method).search(query, k=50, modalities="screen-text")
    assert all(hit.matched_in == ("screen-text",) for hit in hits)
    return sorted((line.start, line.end) for hit in hits for line in hit.transcript)


def test_reads_text_once_with_its_duration(folder: Path, bag: BagMethod) -> None:
    assert index(folder, bag, read_text=True).transcript_lines == 6
    assert lines_of(folder, bag, '"city news"') == [(0.0, 49.75 + 1)]
    assert lines_of(folder, bag, '"is green"') == [(10.0, 20.0), (40.0, 50.75)]
    assert ColourReader.read_at == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert index(folder, bag, read_text=True).transcript_lines == 0
    assert len(ColourReader.read_at) == 5


def test_reading_a_file_has_a_time_limit_and_is_continued(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ColourReader, "seconds", 0.1)
    # Of the chunks at 0, 20 and 40 s, one is read per run: a limit counts for a whole file.
    limits = Limits(seconds=0.15, seconds_per_second=0.0)
    for run in range(3):
        report = index(folder, bag, read_text=True, limits=limits)
        reasons = [problem.reason for problem in report.problems]
        assert reasons == (["on-screen text: out of time; index again to continue"] * (run < 2))
    assert lines_of(folder, bag, '"city news"') == [(0.0, 20.0), (20.0, 40.0), (40.0, 50.75)]


def test_recognition_reports_progress(folder: Path, bag: BagMethod) -> None:
    """A part of twenty seconds takes half a minute to read: no silent wait. A photograph is one."""
    Image.new("RGB", (40, 30), (0, 200, 0)).save(folder / "v" / "page.png")
    told: list[ProgressUpdate] = []
    options = IndexOptions(workers=0, read_text=True, listen="tiny")
    index_videos(
        [folder / "v"],
        folder / "store",
        "bag",
        method=bag,
        options=options,
        on_transcripts=told.append,
    )
    texts = [work for work in told if work.title == "reading on-screen text"]
    assert [(work.count, work.total) for work in texts] == [
        *((0, 4), (0, 4), (1, 4), (2, 4), (3, 4)),
        (4, 4),
    ]
    assert [work.detail for work in texts] == ["", *["film.mp4"] * 3, "page.png", ""]
    assert ProgressUpdate("recognising speech", 2, 2) in told
    assert told[-1].title == "encoding transcripts"
    hits = Engine.open(folder / "store", bag).search("green", k=9, modalities="screen-text")
    assert "page.png" in {Path(hit.path).name for hit in hits}


def test_interrupted_run_continues_with_unread_text(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not over is read again from its beginning; no line is there twice."""
    plain = ColourReader._read

    def without_news(self: ColourReader, frame: DistinctFrame) -> list[RecognizedText]:
        return plain(self, frame)[:1]

    monkeypatch.setattr(ColourReader, "_read", without_news)
    monkeypatch.setattr(ColourReader, "left", 4)
    with pytest.raises(KeyboardInterrupt):
        index(folder, bag, read_text=True)
    assert ColourReader.read_at == [0.0, 10.0, 20.0, 30.0]
    monkeypatch.setattr(ColourReader, "left", 1000)
    index(folder, bag, read_text=True)
    # Blue might have come back when the second part ended: up to it everything was stored.
    assert ColourReader.read_at[4:] == [20.0, 30.0, 40.0]
    assert lines_of(folder, bag, "red") == [(0.0, 10.0), (30.0, 40.0)]
    assert lines_of(folder, bag, "green") == [(10.0, 20.0), (40.0, 50.75)]


def test_another_model_replaces_all_lines(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(folder, bag, read_text=True)
    monkeypatch.setattr(ColourReader, "name", "colours 2")
    assert index(folder, bag, read_text=True).transcript_lines == 6
    assert len(lines_of(folder, bag, '"city news"')) == 1


def test_video_without_audio_has_no_problem(folder: Path, bag: BagMethod) -> None:
    report = index(folder, bag, listen="tiny")
    assert (report.transcript_lines, report.problems) == (0, ())


def test_undecodable_file_is_reported_and_retried_on_request(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no luck")

    with monkeypatch.context() as patch:
        patch.setattr("eaglenet.indexing.recognition.distinct_frames", fail)
        for _ in range(2):
            (problem,) = index(folder, bag, read_text=True).problems
            assert "on-screen text: ValueError: no luck" in problem.reason
    assert index(folder, bag, read_text=True, retry=True).transcript_lines == 6


def test_a_model_that_fails_for_one_file_reads_the_others(
    folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that the model cannot read must not end the run."""
    Image.new("RGB", (40, 30), (0, 200, 0)).save(folder / "v" / "a page.png")
    read = ColourReader.read

    def fail_for_images(
        self: ColourReader, frames: Sequence[DistinctFrame], deadline: float
    ) -> Any:
        if frames[0].end == 0.0:
            raise RuntimeError("wrong size")
        return read(self, frames, deadline)

    monkeypatch.setattr(ColourReader, "read", fail_for_images)
    report = index(folder, bag, read_text=True)
    assert report.transcript_lines == 6
    (problem,) = report.problems
    assert (Path(problem.path).name, problem.reason) == (
        "a page.png",
        "on-screen text: RuntimeError: wrong size",
    )


def test_copies_transcripts_from_another_store(folder: Path, bag: BagMethod) -> None:
    """Words do not depend on the model; another listener still hears everything again."""
    index(folder, bag, read_text=True, listen="tiny")
    expected = lines_of(folder, bag, '"is green"')
    (folder / "store").rename(folder / "old")
    _, options = options_like(folder / "old", IndexOptions(workers=0))
    made = index_videos([folder / "v"], folder / "store", "bag", method=bag, options=options)
    assert made.transcript_lines == 6
    assert lines_of(folder, bag, '"is green"') == expected
    assert len(ColourReader.read_at) == 5
    again = replace(options, read_text=True)
    index_videos([folder / "v"], folder / "store", "bag", method=bag, options=again)
    assert len(ColourReader.read_at) == 5
    assert lines_of(folder, bag, '"is green"') == expected


REQUEST = recognition.ChunkRequest("c", "/a.mp4", 300.0, 600.0, False, 1000.0)
LAST = replace(REQUEST, start=900.0, end=1000.0, is_last=True)


@pytest.mark.parametrize(
    ("request_", "start", "end", "seconds"),
    [
        (REQUEST, -1e300, 600.0, 300),
        (REQUEST, math.nan, 600.0, 300),
        (REQUEST, 300.0, -1e300, 300),
        (REQUEST, 300.0, math.nan, 300),
        (REQUEST, 300.0, 300.0, 300),
        (REQUEST, 300.0, math.inf, 300),
        (REQUEST, 300.0, 600.0, 3000),
        (LAST, 900.0, 1000.0, 100),
        (LAST, 900.0, math.inf, 1000),
    ],
)
def test_audio_of_other_times_is_refused(
    request_: recognition.ChunkRequest, start: float, end: float, seconds: int
) -> None:
    """A decoder that a file has taken over sends anything; chunks are read from its end on."""
    chunk = recognition.AudioChunk(np.zeros(seconds * RATE, np.float32), start, end)
    with pytest.raises(ValueError, match="audio"):
        recognition.check_audio_chunk(request_, chunk)
    honest = replace(chunk, samples=chunk.samples[: 90 * RATE], start=request_.start)
    end = math.inf if request_.is_last else 602.9
    recognition.check_audio_chunk(request_, replace(honest, end=end))
    recognition.check_audio_chunk(request_, None)


@pytest.mark.parametrize(
    ("times", "shape"),
    [
        ([(-1e300, 310.0)], (3, 8, 8)),
        ([(math.nan, 310.0)], (3, 8, 8)),
        ([(301.0, math.inf)], (3, 8, 8)),
        ([(301.0, 601.0)], (3, 8, 8)),
        ([(302.0, 303.0), (301.0, 302.0)], (3, 8, 8)),
        ([(301.0, 302.0)], (4, 8, 8)),
        ([(301.0, 302.0)], (3, 64)),
        ([(301.0, 302.0)], (3, 0, 8)),
    ],
)
def test_frames_of_other_times_and_shapes_are_refused(
    times: list[tuple[float, float]], shape: tuple[int, ...]
) -> None:
    frames = [DistinctFrame(*span, np.zeros(shape, np.uint8)) for span in times]
    with pytest.raises(ValueError, match=r"times|frames"):
        recognition.check_frame_chunk(REQUEST, frames)
    image = np.zeros((3, 8, 8), np.uint8)
    recognition.check_frame_chunk(REQUEST, [DistinctFrame(300.0, 600.0, image)])
    recognition.check_frame_chunk(replace(LAST, start=0.0), [DistinctFrame(0.0, 0.0, image)])
