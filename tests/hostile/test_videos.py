"""Videos that lie about time and size, or take for ever: one file costs one file."""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Hashable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from campaign import CORPUS, count, keep, limits, numbers
from hostile_work import SPEC, SPLITTING, look_and_decode, never_ends, takes_memory
from mutations import mutate_bytes

from eaglenet.core.errors import VideoDecodeError
from eaglenet.indexing import inspection
from eaglenet.indexing.decoding import ClipFailure, decode_ahead, split_request, split_windows
from eaglenet.indexing.files import CandidateFile, version_of
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.inspection import inspect
from eaglenet.search.engine import Engine
from eaglenet.video import source as packet_table
from eaglenet.video.containers import looks_like_video
from eaglenet.video.decoding import decode, probe, write_video
from eaglenet.video.input_file import share_file
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Access, Budget, Failure, Success, map_ahead
from processes import descendants, is_running
from synthetic_store import BagMethod


def small_video(path: Path, frames: int = 50, size: tuple[int, int] = (24, 32)) -> Path:
    generator = np.random.default_rng(frames)
    pixels = generator.integers(0, 256, (frames, 3, *size), dtype=np.uint8)
    write_video(path, pixels, 25)
    return path


def video_with_times(path: Path, seconds: list[float]) -> Path:
    """Frames at these times, by way of a container that takes any."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        for number, second in enumerate(seconds):
            pixels = np.full((24, 32, 3), 5 * number % 256, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(second * 1000), stream.codec_context.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("suffix", ["mkv", "mp4"])
def test_one_timestamp_far_away_does_not_make_a_million_clips(tmp_path: Path, suffix: str) -> None:
    times = [number / 25 for number in range(50)] + [80_000.0]
    path = video_with_times(tmp_path / f"far.{suffix}", times)
    with limits(20):
        info = probe(path)
        windows = split_windows(path, info.spans, SPLITTING)
    assert len(windows) <= 4
    assert info.duration < 10


def test_a_jump_in_time_makes_no_clips_of_nothing(tmp_path: Path) -> None:
    times = [n / 25 for n in range(50)] + [6000 + n / 25 for n in range(50)]
    path = video_with_times(tmp_path / "jump.mkv", times)
    info = probe(path)
    windows = split_windows(path, info.spans, SPLITTING)
    assert len(windows) <= 4
    assert windows[-1][0] >= 5999
    assert bool(decode(path, SPEC, window=windows[-1]).mask.all())


def test_an_honest_video_is_one_stretch(tmp_path: Path) -> None:
    info = probe(small_video(tmp_path / "honest.mp4"))
    assert info.spans == ((0.0, pytest.approx(2.0)),)
    assert info.duration == pytest.approx(2.0)


def test_a_very_wide_video_gets_thumbnails(tmp_path: Path) -> None:
    path = small_video(tmp_path / "wide.mp4", 8, (16, 8192))
    requests = split_request("content", str(path), {0: (0.0, 0.3)})
    found = list(decode_ahead(requests, SPEC, 0))
    assert not isinstance(found[0], ClipFailure)


def test_a_header_that_claims_a_huge_picture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.y4m"
    path.write_bytes(b"YUV4MPEG2 W65500 H65500 F25:1 Ip C420\nFRAME\n" + bytes(1000))
    with limits(20), pytest.raises(VideoDecodeError):
        probe(path)


@pytest.mark.parametrize("far", [2**62, 2**59, 2**59 + 40])
def test_a_time_beyond_all_numbers_makes_no_clip(far: int, tmp_path: Path) -> None:
    """So far away that a second more is the same number: an IVF has 64 bits for it."""
    path = tmp_path / "far.ivf"
    frames = np.random.default_rng(0).integers(0, 256, (50, 3, 24, 32), dtype=np.uint8)
    write_video(path, frames, 25, codec="libvpx")
    content, place = bytearray(path.read_bytes()), 32
    for _ in range(49):
        place += 12 + struct.unpack_from("<I", content, place)[0]
    struct.pack_into("<Q", content, place + 4, far)
    path.write_bytes(content)
    windows = split_windows(path, probe(path).spans, SPLITTING)
    assert windows == [(0.0, pytest.approx(1.96, abs=0.05))]
    assert bool(decode(path, SPEC, window=windows[0]).mask.all())


def test_a_file_that_declares_millions_of_frames_stays_within_its_memory(tmp_path: Path) -> None:
    """Tables of a few bytes that stand for 85 million entries."""
    path, declared = small_video(tmp_path / "many.mov", 5), 85_000_000
    content = bytearray(path.read_bytes())
    struct.pack_into(">III", content, content.index(b"stsz") + 4, 0, 1, declared)
    struct.pack_into(">I", content, content.index(b"stts") + 12, declared)
    struct.pack_into(">I", content, content.index(b"stsc") + 16, declared)
    path.write_bytes(content)
    good = small_video(tmp_path / "good.mp4")
    files = [found_file(each) for each in (path, good)]
    bounds = Limits(memory=2**29, seconds=60)
    bad, other = inspection.inspect_ahead(files, SPLITTING, frozenset(), 1, bounds)
    assert bad.problem
    assert not bad.windows
    assert other.windows
    assert not other.problem


def found_file(path: Path) -> CandidateFile:
    status = path.stat()
    return CandidateFile(str(path), status.st_size, status.st_mtime_ns)


def test_a_file_of_too_many_packets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_table, "MAX_PACKETS", 40)
    with pytest.raises(VideoDecodeError, match="more than 40 packets"):
        probe(small_video(tmp_path / "a.mkv"))
    probe(small_video(tmp_path / "short.mkv", 30))


def budget(seconds: float, memory: int) -> Budget[int]:
    def owner(request: int) -> Hashable:
        return request % 3

    return Budget(memory, owner, lambda request: seconds)


def test_work_that_never_ends_is_ended_and_the_rest_goes_on() -> None:
    outcomes = list(map_ahead(never_ends, range(6), workers=2, budget=budget(1.5, 2**30)))
    failed = [one for one in outcomes if isinstance(one, Failure)]
    # 4 has the same owner as 1: a file is given up as a whole, once it used its time up.
    assert failed[0].request == 1
    assert {one.request for one in failed} <= {1, 4}
    assert "the limit" in failed[0].reason
    assert [one.result for one in outcomes if isinstance(one, Success)][:2] == [0, 2]


def test_work_that_takes_too_much_memory_fails_alone() -> None:
    outcomes = list(map_ahead(takes_memory, range(3), workers=1, budget=budget(60, 2**29)))
    assert [type(one) for one in outcomes] == [Success, Failure, Success]
    assert "memory" in outcomes[1].reason  # type: ignore[union-attr]


def test_a_file_exchanged_between_hashing_and_decoding_gives_no_clips(tmp_path: Path) -> None:
    path = small_video(tmp_path / "a.mp4")
    status = path.stat()
    file = CandidateFile(str(path), status.st_size, status.st_mtime_ns)
    found = inspect(file, SPLITTING, frozenset())
    small_video(tmp_path / "b.mp4", 60)
    os.replace(tmp_path / "b.mp4", path)
    requests = split_request(
        found.content, str(path), dict(enumerate(found.windows)), found.version
    )
    outcomes = list(decode_ahead(requests, SPEC, 0))
    assert all(isinstance(one, ClipFailure) for one in outcomes)
    assert "changed while" in outcomes[0].reason  # type: ignore[union-attr]


def test_a_file_written_to_while_it_is_hashed_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_video(tmp_path / "a.mp4")
    status = path.stat()
    file = CandidateFile(str(path), status.st_size, status.st_mtime_ns)
    hashed = inspection.content_hash

    def then_write(name: str) -> str:
        found = hashed(name)
        with open(name, "ab") as stream:
            stream.write(b"more")
        return found

    monkeypatch.setattr(inspection, "content_hash", then_write)
    found = inspect(file, SPLITTING, frozenset())
    assert found.is_temporary
    assert "changed while" in found.problem
    assert version_of(str(path))[1] == status.st_size + 4


def test_files_without_a_videos_name_are_told_by_their_first_bytes(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mkv", "c.avi", "d.ts"):
        path = small_video(tmp_path / name, 8) if name != "c.avi" else tmp_path / name
        if name == "c.avi":
            write_video(path, np.zeros((5, 3, 24, 32), np.uint8), 25, codec="mpeg4")
        bare = tmp_path / path.stem
        path.rename(bare)
        assert looks_like_video(bare), name
    (tmp_path / "text").write_text("hello")
    assert not looks_like_video(tmp_path / "text")


@pytest.mark.usefixtures("real_hosts")
def test_bad_files_among_good_ones_cost_themselves(tmp_path: Path) -> None:
    """Through the whole indexer, in processes: every good file is found afterwards."""
    folder = tmp_path / "videos"
    folder.mkdir()
    small_video(folder / "a good.mp4")
    video_with_times(folder / "b far.mkv", [0, 0.04, 0.08, 1e6])
    (folder / "c garbage.mp4").write_bytes(random.Random(0).randbytes(3000))
    small_video(folder / "d wide.mp4", 8, (16, 4096))
    small_video(folder / "e good.mp4", 70)
    bag = BagMethod()
    options = IndexOptions(splitting=SPLITTING, limits=Limits(2**31, 60, 2))
    report = index_videos([folder], tmp_path / "store", "bag", method=bag, options=options)
    assert [Path(problem.path).name for problem in report.problems] == ["c garbage.mp4"]
    assert report.indexed == 4
    assert len(Engine.open(tmp_path / "store", bag).search("red", k=50)) == report.clips


KINDS = {
    "mp4": "libx264",
    "mkv": "libx264",
    "ts": "libx264",
    "avi": "mpeg4",
    "webm": "libvpx",
    "flv": "libx264",
}


def damaged_videos(folder: Path) -> Iterator[str]:
    """Files of the corpus, then mutations of real small files."""
    tried = 0
    for path in sorted((CORPUS / "video").glob("*")):
        tried += 1
        yield str(path)
    sound = []
    for suffix, codec in KINDS.items():
        path = folder / f"sound.{suffix}"
        pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 24, 32), dtype=np.uint8)
        write_video(path, pixels, 25, codec=codec)
        sound.append(path)
    for number in numbers(70):
        chance = random.Random(number)
        source = chance.choice(sound)
        path = folder / f"{number}{source.suffix}"
        path.write_bytes(mutate_bytes(source.read_bytes(), chance))
        tried += 1
        yield str(path)
    count("video", tried)


def test_damaged_videos(tmp_path: Path) -> None:
    """Looked at and decoded in one process with limits: words or clips, never its death."""
    whole = refused = 0
    limits_of_one = Budget[str](2**30, lambda path: path, lambda path: 20.0)
    files = damaged_videos(tmp_path)
    access = Access[str, tuple[str, int]](share=share_file)
    for outcome in map_ahead(
        look_and_decode, files, workers=1, budget=limits_of_one, access=access
    ):
        path = Path(outcome.request)
        if isinstance(outcome, Failure):
            # A refusal in the decoder's words; not a limit, an error of ours or a crash.
            is_refused = re.search(r"Error: |limit|died|memory", outcome.reason) is None
            refused += is_refused
        else:
            problem, clips = outcome.result
            is_refused = not re.search(r"Error: ", problem)
            refused += bool(problem)
            whole += not problem
            assert clips < 20
        if not is_refused:
            keep("video", path.read_bytes())
            pytest.fail(f"{path.name}: {outcome}; mend it and keep it in {CORPUS / 'video'}")
        if path.parent == tmp_path:
            path.unlink()
    assert whole > 10
    assert refused > 10


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    script = (
        "from eaglenet.video.pool import map_ahead\n"
        "from hostile_work import sleep_long\n"
        "if __name__ == '__main__':\n"
        "    list(map_ahead(sleep_long, [0], workers=1))\n"
    )
    (tmp_path / "run.py").write_text(script)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 300
    # The host, and the process that it forks for the request.
    while len(workers := descendants(parent.pid)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker is still there"
        time.sleep(0.05)
