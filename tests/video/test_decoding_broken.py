"""Broken files raise VideoDecodeError; frames are never invented."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
import torch
from videos import expected_numbers, read_numbers, write_audio_only, write_numbered

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.types import FrameSpec
from eaglenet.video.decoding import decode, decode_windows, is_video, probe
from eaglenet.video.frame_images import FramesRequest, read_frame_images
from eaglenet.video.source import open_video

SPEC = FrameSpec(num_frames=7, size=64)
CODES = {"a.mp4": "h264", "a.mkv": "h264", "b.mp4": "hevc", "c.webm": "vp9", "d.mp4": "av1"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write intact videos in several containers, for tests that damage them."""
    folder = tmp_path_factory.mktemp("whole")
    for name, code in CODES.items():
        options = {"movflags": "+faststart"} if name.endswith("mp4") else {}
        write_numbered(folder / name, 150, code=code, container_options=options)
    write_numbered(folder / "index_last.mp4", 150)
    return folder


def broken_files(folder: Path, whole: Path) -> dict[str, Path]:
    text = folder / "text.mp4"
    text.write_text("This is not a video.\n" * 400)
    empty = folder / "empty.mp4"
    empty.touch()
    noise = folder / "noise.mp4"
    noise.write_bytes(random.Random(0).randbytes(40_000))
    cut = folder / "cut.mp4"
    complete = (whole / "index_last.mp4").read_bytes()
    cut.write_bytes(complete[: len(complete) // 2])
    hollow = folder / "hollow.mp4"
    hollow.write_bytes(bytes.fromhex("00000010 66747970 69736f6d 00000000 00000008 6d6f6f76"))
    return {
        "text renamed": text,
        "no streams": hollow,
        "zero bytes": empty,
        "noise": noise,
        "truncated, index last": cut,
        "audio only": write_audio_only(folder / "audio.mp4"),
        "missing": folder / "missing.mp4",
        "folder": folder,
    }


CAUSES = {
    "text renamed": "not a video",
    "no streams": r"has no video stream \(it has no streams at all\)",
    "zero bytes": "empty",
    "noise": "not a video",
    "truncated, index last": "incomplete",
    "audio only": "no video stream",
    "missing": "no such file",
    "folder": "folder",
}


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_an_avi_that_lost_its_end_is_cut_short(tmp_path: Path, fraction: float) -> None:
    path = write_numbered(tmp_path / "a.avi", 150, code="mpeg4")
    content = path.read_bytes()
    path.write_bytes(content[: round(fraction * len(content))])
    assert probe(path).is_cut_short == (fraction < 1)


@pytest.mark.parametrize("kind", CAUSES)
def test_undecodable_file_raises_with_name_and_cause(
    tmp_path: Path, whole: Path, kind: str
) -> None:
    path = broken_files(tmp_path, whole)[kind]
    for attempt in (
        lambda: decode(path, SPEC),
        lambda: decode(path, FrameSpec(num_frames=3, size=32, fast=True)),
        lambda: list(decode_windows(path, SPEC, [(0, 1)])),
        lambda: probe(path),
        lambda: read_frame_images(FramesRequest(str(path), (0.5,), 64)),
    ):
        with pytest.raises(VideoDecodeError, match=CAUSES[kind]) as info:
            attempt()
        assert info.value.path == path
        assert str(path) in str(info.value)
    assert not is_video(path)


def test_truncated_file_is_sampled_over_its_readable_part(tmp_path: Path, whole: Path) -> None:
    for name in ("a.mp4", "a.mkv", "c.webm"):
        complete = (whole / name).read_bytes()
        path = tmp_path / name
        path.write_bytes(complete[: len(complete) * 7 // 10])
        numbers = read_numbers(decode(path, SPEC).frames)
        last = numbers[-1] + (numbers[1] - numbers[0]) // 2 + 1
        assert numbers[-1] < 150 * 0.9
        assert all(
            abs(number - target) <= 2
            for number, target in zip(numbers, expected_numbers(last, 7), strict=True)
        )
        fast = decode(path, FrameSpec(num_frames=7, size=64, fast=True))
        assert all(0 <= number <= last for number in read_numbers(fast.frames))


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("seed", range(4))
def test_corrupted_bytes_give_correct_frames_or_an_error(
    tmp_path: Path, whole: Path, name: str, seed: int
) -> None:
    generator = random.Random(seed)
    content = bytearray((whole / name).read_bytes())
    # Damaged tables at the start of an MP4 may only move frames in time, which is invisible.
    pictures = content.index(b"mdat") if name.endswith("mp4") else len(content) // 3
    for _ in range(1 + 3 * seed):
        place = generator.randrange(pictures, len(content))
        content[place : place + 4] = generator.randbytes(len(content[place : place + 4]))
    path = tmp_path / name
    path.write_bytes(content)
    for window in (None, (2.0, 4.0)):
        video = None
        with contextlib.suppress(VideoDecodeError):
            video = decode(path, SPEC, window=window)
        if video is None:
            continue
        # Times and pixels must agree. No codec notices every damage, least of all in such small
        # pictures, so most of them; H.264 is the most watchful. How much of a damaged MPEG-4 frame
        # is concealed depends on the processor.
        numbers = torch.tensor(read_numbers(video.frames))
        right = (numbers == (video.seconds * 25).round()).sum()
        assert right >= (6 if CODES[name] == "h264" else 1)
        assert video.frames.float().std(dim=(1, 2, 3)).min() > 5


def test_nearest_undamaged_frames_replace_damaged_ones(tmp_path: Path, whole: Path) -> None:
    content = bytearray((whole / "a.mp4").read_bytes())
    # The fourth group of 30 frames, somewhere in the second half of the file.
    place = len(content) * 7 // 10
    content[place : place + 40] = bytes(40)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(content)
    video = decode(path, SPEC)
    numbers = read_numbers(video.frames)
    assert numbers == (video.seconds * 25).round().int().tolist()
    target = expected_numbers(150, 7)
    off = max(abs(a - b) for a, b in zip(numbers, target, strict=True)) / 25
    assert off > 0
    assert abs(video.largest_error - off) < 1e-6


def test_skips_damaged_windows(tmp_path: Path, whole: Path) -> None:
    content = bytearray((whole / "a.mp4").read_bytes())
    start = len(content) * 6 // 10
    content[start : start + len(content) // 5] = bytes(len(content) // 5)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(content)
    windows = [(second, second + 0.8) for second in range(6)]
    with pytest.raises(VideoDecodeError, match="could be decoded"):
        list(decode_windows(path, SPEC, windows))
    remaining_videos = list(decode_windows(path, SPEC, windows, skip_damaged=True))
    assert 1 <= len(remaining_videos) < 6
    for video in remaining_videos:
        assert read_numbers(video.frames) == (video.seconds * 25).round().int().tolist()


def test_odd_metadata_does_not_stop_decoding(tmp_path: Path) -> None:
    path = tmp_path / "title.mp4"
    write_numbered(path, 30)
    import av

    with av.open(str(path)) as source, av.open(str(tmp_path / "t.mkv"), "w") as target:
        target.metadata["title"] = "TITLETITLE"
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    content = (tmp_path / "t.mkv").read_bytes().replace(b"TITLETITLE", b"\xff\xfe\xe9\xa0TITLE\xff")
    path = tmp_path / "odd.mkv"
    path.write_bytes(content)
    assert read_numbers(decode(path, SPEC).frames) == expected_numbers(30, 7)


def test_does_not_follow_playlists(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes((whole / "a.mp4").read_bytes())
    concat = tmp_path / "concat.mp4"
    concat.write_text("ffconcat version 1.0\nfile secret.mp4\n")
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(
        "#EXTM3U\n#EXT-X-TARGETDURATION:6\n#EXTINF:6,\nsecret.mp4\n#EXT-X-ENDLIST\n"
    )
    for path in (concat, playlist):
        assert not is_video(path)
        with pytest.raises(VideoDecodeError, match="not a video file"):
            decode(path, SPEC)


@pytest.mark.parametrize(
    "name", ["12:30.mp4", "concat:a|b.mp4", "100%d.mp4", "\u00e9t\u00e9 1.mp4"]
)
def test_accepts_any_file_name(tmp_path: Path, whole: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((whole / "a.mp4").read_bytes())
    assert is_video(path)
    assert read_numbers(decode(path, SPEC).frames) == expected_numbers(150, 7)


@pytest.mark.parametrize("time", [2**63, -(2**63) - 1])
def test_a_time_beyond_64_bits_is_no_error(whole: Path, time: int) -> None:
    """A damaged file may claim any time: FFmpeg cannot be asked for it."""
    with open_video(whole / "a.mkv") as source:
        source.seek(time)
        assert next(iter(source.packets())).pts == 0
