"""Files that stay open between chunks: the frames are equal, and each byte is read few times."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import multiprocessing
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chunks import FRAMES, WINDOWS, assert_equal, decode_in_chunks, open_files, write_damaged
from videos import read_numbers, write_numbered

from eaglenet.video import input_file
from eaglenet.video import source as sources
from eaglenet.video.decoding import write_video
from eaglenet.video.frame_images import FramesRequest, read_frame_images
from eaglenet.video.input_file import share_indexed_file
from eaglenet.video.reader import OPEN_FILES
from eaglenet.video.sampling import BORDER_TOLERANCE, frames_within
from eaglenet.video.source import VideoSource, open_video
from eaglenet.video.worker_host import next_request
from sampling import one_in, slow


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    """Close files that a test left open."""
    yield
    OPEN_FILES.close()


def open_group(path: Path) -> Path:
    options = {"x264-params": "open-gop=1:keyint=60:bframes=3"}
    return write_numbered(path, FRAMES, options=options, with_audio=True)


def write_fragmented(path: Path) -> Path:
    container = {"movflags": "frag_keyframe+empty_moov"}
    return write_numbered(path, FRAMES, container_options=container)


def edit_list(path: Path) -> Path:
    """Write reordered frames that begin late, for which MP4 has an edit list."""
    times = [number + 7 for number in range(FRAMES)]
    return write_numbered(path, FRAMES, times=times, time_base=Fraction(1, 25), with_audio=True)


def restarting_times(path: Path) -> Path:
    half = write_numbered(path.with_name(f"half {path.name}"), FRAMES // 2, with_audio=True)
    path.write_bytes(half.read_bytes() * 2)
    return path


@functools.cache
def plain_content(suffix: str) -> bytes:
    """Return the content of a file whose sound takes a second to encode."""
    with tempfile.TemporaryDirectory() as folder:
        film = write_numbered(Path(folder) / f"plain{suffix}", FRAMES, with_audio=True)
        return film.read_bytes()


def plain(path: Path) -> Path:
    path.write_bytes(plain_content(path.suffix))
    return path


def vp9(path: Path) -> Path:
    return write_numbered(path, FRAMES // 2, code="vp9")


def hevc(path: Path) -> Path:
    return write_numbered(path, FRAMES // 2, code="hevc", with_audio=True)


FILMS: dict[str, Callable[[Path], Path]] = {
    "plain.mkv": plain,
    "plain.ts": plain,
    "plain.flv": plain,
    "plain.nut": plain,
    "open group.mkv": open_group,
    "open group.ts": open_group,
    "fragments.mp4": write_fragmented,
    "edits.mp4": edit_list,
    "twice.ts": restarting_times,
    "vp9.webm": vp9,
    "hevc.mkv": hevc,
}


@pytest.fixture(scope="module", params=one_in(2, FILMS))
def film(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a video in each container."""
    return FILMS[request.param](tmp_path_factory.mktemp("films") / request.param)


@pytest.mark.parametrize(
    ("is_whole", "scan_limit"),
    [(True, 0), (False, sources.SCAN_BYTES), slow((True, sources.SCAN_BYTES)), slow((False, 0))],
)
def test_open_file_gives_the_same_frames_as_a_reopened_one(
    film: Path,
    is_whole: bool,
    scan_limit: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order and backwards, including files that are too large to be scanned."""
    monkeypatch.setattr(sources, "SCAN_BYTES", scan_limit)
    path = film if is_whole else write_damaged(film, tmp_path / film.name)
    if film.name == "edits.mp4" and not is_whole:
        pytest.skip("an MP4 whose index is cut off cannot be opened")
    if film.name == "fragments.mp4" and not is_whole and not scan_limit:
        pytest.skip("which fragments a seek finds depends on where it starts; none is kept open")
    expected = decode_in_chunks(path, keep_open=False)
    assert len(expected) > 3
    assert_equal(decode_in_chunks(path, keep_open=True), expected)
    assert_equal(decode_in_chunks(path, keep_open=True, windows=WINDOWS[::-1]), expected)


def test_truncated_file_gives_the_right_frames(tmp_path: Path) -> None:
    path = plain(tmp_path / "a.mkv")
    path.write_bytes(path.read_bytes()[:-5000])  # with its index
    for video in decode_in_chunks(path, keep_open=True).values():
        assert read_numbers(video.frames) == (video.seconds * 25).round().int().tolist()


@pytest.mark.parametrize(
    ("name", "is_whole"), one_in(2, itertools.product(["a.mkv", "a.ts", "a.flv"], [True, False]))
)
def test_all_chunks_together_read_the_file_a_few_times(
    tmp_path: Path, name: str, is_whole: bool
) -> None:
    """Reading each of 24 chunks from the start would read more than 12 times the file."""
    path = write_busy(tmp_path / name, 48)
    if not is_whole:
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])
    before = bytes_read()
    decoded_videos = decode_in_chunks(
        path, keep_open=True, windows=[(at, at + 1.0) for at in range(48)]
    )
    assert len(decoded_videos) > 40
    assert bytes_read() - before < 8 * path.stat().st_size


def write_busy(path: Path, seconds: int) -> Path:
    """Write a video of a few megabytes: a noisy scene that moves."""
    generator = np.random.default_rng(0)
    count = seconds * 25
    scene = generator.integers(0, 256, (3, 48, 64 + count), dtype=np.uint8)
    frames = np.stack([scene[:, :, step : step + 64] for step in range(count)])
    write_video(path, frames, 25, options={"preset": "ultrafast", "bf": "2", "g": "50"})
    return path


def bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(lines[0].removeprefix("rchar: "))


def test_keeps_at_most_two_readers_of_one_file(tmp_path: Path) -> None:
    first, second = plain(tmp_path / "first.mkv"), plain(tmp_path / "second.ts")
    decode_in_chunks(first, keep_open=False)
    assert open_files(first.name) == 0
    decode_in_chunks(write_damaged(first, tmp_path / "damaged.mkv"), keep_open=True)
    assert 1 <= open_files("damaged.mkv") <= 2
    decode_in_chunks(second, keep_open=True)
    assert open_files("damaged.mkv") == 0
    assert 1 <= open_files(second.name) <= 2
    OPEN_FILES.close()
    assert open_files(second.name) == 0


def test_replaced_file_is_reopened(tmp_path: Path) -> None:
    """Even a file of the same size and modification time."""
    path, other = plain(tmp_path / "a.mkv"), hevc(tmp_path / "b.mkv")
    decode_in_chunks(path, keep_open=True)
    status = path.stat()
    content = other.read_bytes().ljust(status.st_size, b"\0")
    other.write_bytes(content[: status.st_size])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert_equal(decode_in_chunks(path, keep_open=True), decode_in_chunks(path, keep_open=False))


def test_failed_file_is_closed(tmp_path: Path) -> None:
    path = plain(tmp_path / "a.mkv")
    decode_in_chunks(path, keep_open=True)
    with pytest.raises(MemoryError), open_video(path, threads=1, keep_open=True):
        raise MemoryError
    assert open_files(path.name) == 0


def test_idle_worker_closes_its_file(tmp_path: Path) -> None:
    path = plain(tmp_path / "a.mkv")
    decode_in_chunks(path, keep_open=True)
    ours, theirs = multiprocessing.Pipe()
    ours.send_bytes(b"at once")
    assert next_request(theirs, 0.01) == b"at once"
    assert open_files(path.name) > 0
    threading.Timer(0.3, ours.send_bytes, [b"later"]).start()
    assert next_request(theirs, 0.01) == b"later"
    assert open_files(path.name) == 0


def test_unexpected_times_after_a_seek_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some containers count frames from where a seek lands, which gives other times."""
    path = plain(tmp_path / "a.ts")
    expected = decode_in_chunks(path, keep_open=False)
    rejections = []

    def is_expected(self: VideoSource, packet: Any) -> bool:
        rejections.append(packet.pts)
        return len(rejections) % 50 != 0

    monkeypatch.setattr(VideoSource, "is_expected", is_expected)
    assert_equal(decode_in_chunks(path, keep_open=True), expected)
    assert len(rejections) > 50


def test_late_frame_is_found_by_seeking(tmp_path: Path) -> None:
    path = write_busy(tmp_path / "a.mkv", 48)
    before = bytes_read()
    read_frame_images(FramesRequest(str(path), (45.0,), 64))
    assert bytes_read() - before < path.stat().st_size / 2


def test_frames_within_a_window(tmp_path: Path) -> None:
    chance = random.Random(0)
    with open_video(write_numbered(tmp_path / "a.mkv", 10)) as source:
        for _ in range(200):
            times = sorted(chance.randrange(5000) for _ in range(chance.randrange(1, 40)))
            start = Fraction(chance.randrange(6000))
            end = start + chance.randrange(1, 2000)
            tolerance = BORDER_TOLERANCE / source.tick
            first = max(sum(time <= start + tolerance for time in times) - 1, 0)
            expected_times = [time for time in times[first:] if time < end - tolerance] or [
                times[first]
            ]
            assert frames_within(source, times, start, end) == expected_times


class Emptied(dict[Any, Any]):
    """A table that another thread empties after every call."""

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        value = super().get(key, default)
        self.clear()
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.clear()


def test_tables_that_threads_share_may_be_emptied_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ts"
    write_numbered(path, 10)
    monkeypatch.setattr(sources, "_TABLES", Emptied())
    with open_video(path) as source:
        assert len(source.table().times) == 10
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    for table in (Emptied(), {}):
        monkeypatch.setattr(input_file, "_digests", table)
        for _ in range(2):
            file = share_indexed_file(str(path), path.stat().st_size, 0.0, digest, [])
            assert file.error is None
            file.close()


def test_a_thread_gets_no_open_file_of_another() -> None:
    """Another thread may be between looking at the file and taking its container."""
    container, identity = io.BytesIO(), ("/a.mp4", 0, 0, 0, 0, 0)
    OPEN_FILES.put(identity, container)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(OPEN_FILES.take, identity).result() is None
        threads.submit(OPEN_FILES.close).result()
    assert not container.closed
    assert OPEN_FILES.take(identity) is container
