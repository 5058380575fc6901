"""The frame cache: decoded once, resumable after a kill at any moment, never of other frames."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError

from eaglenet.core.errors import DatasetError
from eaglenet.core.progress import ProgressUpdate
from eaglenet.core.types import FrameSpec
from eaglenet.research.data import frame_cache
from eaglenet.research.data import frame_cache as frame_journal
from eaglenet.research.data.frame_cache import FrameCache, estimate
from eaglenet.research.data.records import RetrievalProtocol, Split, VideoRecord, make_split
from eaglenet.video.decoding import decode, write_video
from processes import is_running, kill, start, wait

SPEC = FrameSpec(num_frames=3, size=32)
ROW_BYTES = 3 * 3 * 32 * 32
NUM_VIDEOS = 5


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Short videos of one colour each."""
    folder = tmp_path_factory.mktemp("videos")
    generator = torch.Generator().manual_seed(0)
    paths = []
    for number in range(NUM_VIDEOS):
        colour = torch.randint(0, 256, (1, 3, 1, 1), generator=generator)
        ramp = torch.arange(8).view(8, 1, 1, 1) * 10
        frames = ((colour + ramp) % 256).expand(8, 3, 48, 64).to(torch.uint8)
        path = folder / f"v{number}.mp4"
        write_video(path, frames.contiguous(), fps=4)
        paths.append(path)
    return paths


def split_of(paths: list[Path | None], window: tuple[float, float] | None = None) -> Split:
    records = [
        VideoRecord(f"v{number}", (f"caption {number}",), path, window)
        for number, path in enumerate(paths)
    ]
    return make_split("toy", "train", RetrievalProtocol("toy"), records)


@pytest.fixture
def split(videos: list[Path]) -> Split:
    """The videos with their captions."""
    return split_of(list(videos))


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids in the order in which they were really decoded."""
    from eaglenet.video import decoding

    seen: list[str] = []
    real = decoding.decode_many

    def counted(items: Any, spec: Any, **options: Any) -> Iterator[Any]:
        for result in real(items, spec, **options):
            seen.append(result.request.video_id)
            yield result

    monkeypatch.setattr(decoding, "decode_many", counted)
    return seen


def test_cached_frames_equal_decoded_ones_and_the_second_epoch_never_decodes(
    split: Split, tmp_path: Path, decodings: list[Any]
) -> None:
    cache = FrameCache.build(split, SPEC, tmp_path)
    assert decodings == split.video_ids
    clips = cache.clips([4, 0])
    for place, index in enumerate((4, 0)):
        video = decode(split.videos[index].path, SPEC)
        assert torch.equal(clips.frames[place], video.frames)
        assert torch.equal(clips.mask[place], video.mask)
        # Seconds are kept to a tenth of a millisecond.
        torch.testing.assert_close(
            clips.seconds[place].double(), video.seconds.double(), atol=1e-4, rtol=0
        )
    FrameCache.build(split, SPEC, tmp_path).clips(torch.arange(NUM_VIDEOS))
    assert len(decodings) == NUM_VIDEOS


def test_the_size_is_told_exactly_beforehand(split: Split, tmp_path: Path) -> None:
    expected = estimate(split, SPEC)
    cache = FrameCache.build(split, SPEC, tmp_path)
    assert expected == cache.num_bytes == NUM_VIDEOS * ROW_BYTES


def test_worker_processes_give_the_same_cache(split: Split, tmp_path: Path) -> None:
    here = FrameCache.build(split, SPEC, tmp_path / "here")
    there = FrameCache.build(split, SPEC, tmp_path / "there", workers=1)
    every = torch.arange(NUM_VIDEOS)
    assert torch.equal(here.clips(every).frames, there.clips(every).frames)


def test_jpeg_frames_are_near_and_smaller(split: Split, tmp_path: Path) -> None:
    cache = FrameCache.build(split, SPEC, tmp_path, encoding="jpeg")
    video = decode(split.videos[2].path, SPEC)
    difference = (cache.clips([2]).frames[0].int() - video.frames.int()).abs()
    # One-coloured frames: only rounding of the colour space is left.
    assert difference.max() <= 3
    assert cache.num_bytes < NUM_VIDEOS * ROW_BYTES


def test_short_videos_are_padded_behind_a_mask(split: Split, tmp_path: Path) -> None:
    spec = FrameSpec(num_frames=11, size=32, short="mask")
    clips = FrameCache.build(split, spec, tmp_path).clips([1])
    assert clips.frames.shape == (1, 11, 3, 32, 32)
    assert clips.mask.sum() == 8


def test_missing_and_broken_videos_are_skipped_with_reasons(
    videos: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, decodings: list[Any]
) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video")
    split = split_of([videos[0], None, broken, videos[3]])
    cache = FrameCache.build(split, SPEC, tmp_path / "cache")
    assert cache.cached_mask.tolist() == [True, False, False, True]
    assert cache.skip_reasons["v1"] == "no file found"
    assert cache.skip_reasons["v2"]
    assert "2 of 4 videos cached, 2 skipped" in caplog.text
    with pytest.raises(DatasetError, match="no frames of 'v1': no file found"):
        cache.clips([0, 1])
    # A broken file is not tried again, one that has appeared is.
    del decodings[:]
    FrameCache.build(split_of([videos[0], videos[1], broken, videos[3]]), SPEC, tmp_path / "cache")
    assert decodings == ["v1"]
    FrameCache.build(split, SPEC, tmp_path / "cache", retry_skipped=True)
    assert decodings == ["v1", "v2"]


def test_a_changed_file_or_window_is_decoded_again(
    videos: list[Path], tmp_path: Path, decodings: list[Any]
) -> None:
    FrameCache.build(split_of([videos[0]]), SPEC, tmp_path)
    FrameCache.build(split_of([videos[1]]), SPEC, tmp_path)
    assert len(decodings) == 2
    part = split_of([videos[1]], window=(0.0, 1.0))
    assert FrameCache.open(tmp_path, part).cached_mask.tolist() == [False]
    cache = FrameCache.build(part, SPEC, tmp_path)
    assert len(decodings) == 3
    assert cache.clips([0]).seconds.max() < 1.0


def test_a_file_is_recognised_by_its_ends_if_its_time_has_changed(
    videos: list[Path], tmp_path: Path, decodings: list[Any]
) -> None:
    """Two files of one name and size, as of a fixed bit rate, are not the same; a copy is."""
    path = tmp_path / "v0.mp4"
    content = videos[0].read_bytes()
    path.write_bytes(content)
    split = split_of([path])
    FrameCache.build(split, SPEC, tmp_path / "cache")
    os.utime(path, ns=(1, 1))
    FrameCache.build(split, SPEC, tmp_path / "cache")
    assert len(decodings) == 1
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(2, 2))
    FrameCache.build(split, SPEC, tmp_path / "cache")
    assert len(decodings) == 2
    # Caches of earlier versions know only the size.
    index = tmp_path / "cache" / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    old = [{k: v for k, v in line.items() if k not in ("modified", "sample")} for line in lines]
    index.write_text("".join(json.dumps(line) + "\n" for line in old))
    FrameCache.build(split, SPEC, tmp_path / "cache")
    assert len(decodings) == 2


def test_a_broken_file_that_was_replaced_is_tried_again(
    videos: list[Path], tmp_path: Path, decodings: list[Any]
) -> None:
    path = tmp_path / "v0.mp4"
    content = videos[0].read_bytes()
    path.write_bytes(bytes(len(content)))  # A download that has only reserved its space.
    split = split_of([path, videos[1]])
    assert FrameCache.build(split, SPEC, tmp_path / "cache").cached_mask.tolist() == [False, True]
    FrameCache.build(split, SPEC, tmp_path / "cache")
    assert len(decodings) == 2
    path.write_bytes(content)
    assert FrameCache.build(split, SPEC, tmp_path / "cache").cached_mask.all()
    assert len(decodings) == 3


def test_other_frames_datasets_or_encodings_are_refused(split: Split, tmp_path: Path) -> None:
    FrameCache.build(split, SPEC, tmp_path)
    with pytest.raises(DatasetError, match=r"built with frame_spec .*, not"):
        FrameCache.build(split, FrameSpec(num_frames=3, size=16), tmp_path)
    with pytest.raises(DatasetError, match="frame_spec"):
        FrameCache.open(tmp_path, split, FrameSpec())
    with pytest.raises(DatasetError, match="encoding raw, not jpeg"):
        FrameCache.build(split, SPEC, tmp_path, encoding="jpeg")
    foreign = make_split("other", "train", RetrievalProtocol("toy"), split.videos)
    with pytest.raises(DatasetError, match="dataset toy, not other"):
        FrameCache.build(foreign, SPEC, tmp_path)
    with pytest.raises(DatasetError, match="has no frame cache"):
        FrameCache.open(tmp_path / "nowhere", split)


def test_a_cache_cut_off_at_any_byte_is_completed(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_journal, "COMMIT_ROWS", 1)
    whole = FrameCache.build(split, SPEC, tmp_path / "whole").clips(torch.arange(NUM_VIDEOS))
    lines = (tmp_path / "whole" / "index.jsonl").read_bytes()
    data = (tmp_path / "whole" / "frames.bin").read_bytes()
    header = (tmp_path / "whole" / "cache.json").read_bytes()
    ends = [place + 1 for place, byte in enumerate(lines) if byte == ord("\n")]
    cuts = [0, 1, ends[0] - 1, ends[0], ends[0] + 5, ends[2] - 1, ends[3] + 40, len(lines) - 1]
    for number, cut in enumerate(cuts):
        folder = tmp_path / f"cut{number}"
        folder.mkdir()
        (folder / "cache.json").write_bytes(header)
        (folder / "index.jsonl").write_bytes(lines[:cut])
        # Bytes of a row are on disk before its line; more may be there, in part.
        rows = sum(end <= cut for end in ends)
        (folder / "frames.bin").write_bytes(data[: rows * ROW_BYTES + number * 100])
        cache = FrameCache.build(split, SPEC, folder)
        again = cache.clips(torch.arange(NUM_VIDEOS))
        assert torch.equal(again.frames, whole.frames)
        assert torch.equal(again.seconds, whole.seconds)
        assert cache.num_bytes == len(data)


def test_rows_whose_bytes_were_lost_do_not_count(
    split: Split, tmp_path: Path, decodings: list[Any]
) -> None:
    FrameCache.build(split, SPEC, tmp_path)
    data = (tmp_path / "frames.bin").read_bytes()
    (tmp_path / "frames.bin").write_bytes(data[: 3 * ROW_BYTES + 7])
    assert FrameCache.open(tmp_path, split).cached_mask.tolist() == [True] * 3 + [False] * 2
    del decodings[:]
    FrameCache.build(split, SPEC, tmp_path)
    assert decodings == ["v3", "v4"]
    assert (tmp_path / "frames.bin").read_bytes() == data


def test_a_killed_build_keeps_its_durable_rows(
    split: Split, tmp_path: Path, decodings: list[Any]
) -> None:
    def build_and_hang() -> None:
        """One durable row at a time."""
        frame_cache.COMMIT_ROWS = 1
        hang = lambda work: time.sleep(600 if work.count == 3 else 0)  # noqa: E731
        FrameCache.build(split, SPEC, tmp_path, progress=hang)

    child = start(build_and_hang)
    journal = tmp_path / "index.jsonl"
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert is_running(child)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    kill(child)
    assert wait(child) == -signal.SIGKILL
    cache = FrameCache.build(split, SPEC, tmp_path)
    assert decodings == ["v3", "v4"]
    assert cache.cached_mask.all()


def test_rows_before_an_interrupt_are_kept(
    split: Split, tmp_path: Path, decodings: list[Any]
) -> None:
    def interrupt(work: ProgressUpdate) -> None:
        if work.count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FrameCache.build(split, SPEC, tmp_path, progress=interrupt)
    del decodings[:]
    FrameCache.build(split, SPEC, tmp_path)
    assert decodings == ["v2", "v3", "v4"]


def test_a_disk_that_is_too_small_is_told_before_decoding(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decodings: list[Any]
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(frame_cache.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(DatasetError, match="5 videos need about"):
        FrameCache.build(split, SPEC, tmp_path)
    assert decodings == []


def test_a_cache_without_a_single_row_says_so(tmp_path: Path) -> None:
    cache = FrameCache.build(split_of([None, None]), SPEC, tmp_path)
    assert cache.cached_mask.tolist() == [False, False]
    with pytest.raises(DatasetError, match="no file found"):
        cache.clips([0])


def test_the_journal_is_plain_json_lines(split: Split, tmp_path: Path) -> None:
    FrameCache.build(split, SPEC, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "index.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == split.video_ids
    assert [line["offset"] for line in lines] == [n * ROW_BYTES for n in range(NUM_VIDEOS)]


@pytest.mark.parametrize("format", ["EPS", "PNG"])
def test_frames_of_other_formats_are_not_read(format: str) -> None:
    """An EPS would start Ghostscript."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, format)
    with pytest.raises(UnidentifiedImageError):
        frame_cache.decode_jpeg(np.frombuffer(file.getvalue(), np.uint8))
