"""Windows decoded from keyframes alone."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from videos import read_numbers, write_numbered

from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video import decoding, source
from eaglenet.video.decoding import Window, decode_keyframe_windows, decode_windows

SPEC = FrameSpec(num_frames=6, size=64)
WINDOWS = [(0.0, 4.0), (3.0, 7.0), (6.0, 10.0)]


def numbers(
    path: Path,
    windows: Sequence[Window] = WINDOWS,
    spec: FrameSpec = SPEC,
    overlap: float = 0.0,
) -> dict[Window | None, list[int]]:
    """Return the distinct frame numbers of each window that keyframes represent."""
    videos = list(decode_keyframe_windows(path, spec, windows, thumbnail_size=32, overlap=overlap))
    assert all(video.thumbnail is not None for video in videos)
    for video in videos:
        frame_numbers = [round(float(second) * 25) for second in video.times]
        assert read_numbers(video.frames) == frame_numbers
        assert list(video.times) == sorted(video.times)
    return {video.window: sorted(set(read_numbers(video.frames))) for video in videos}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("film.mp4", "h264"),
        ("film.mkv", "h264"),
        ("film.ts", "h264"),
        ("film.mp4", "hevc"),
        ("film.webm", "vp9"),
        ("film.avi", "intra"),
    ],
)
def test_each_window_gets_the_keyframes_nearest_to_two_times(
    tmp_path: Path, name: str, code: str
) -> None:
    path = write_numbered(tmp_path / name, 250, code=code)
    if code == "intra":  # Every frame is a keyframe.
        expected = {(0.0, 4.0): [25, 75], (3.0, 7.0): [100, 150], (6.0, 10.0): [175, 225]}
    else:  # Every 30th frame is a keyframe: at 0, 1.2, 2.4, 3.6 ... 9.6 s.
        expected = {(0.0, 4.0): [30, 60], (3.0, 7.0): [90, 150], (6.0, 10.0): [180, 210]}
    assert numbers(path) == expected
    # A window does not depend on other windows of the call.
    for window in WINDOWS:
        assert numbers(path, [window]) == {window: expected[window]}


def test_overlapping_windows_share_the_keyframe_there(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "film.mp4", 250)
    windows = [*WINDOWS, (9.0, 9.8)]
    # Near 0.5, 3.5, 6.5 and 9.5 s; the last window is shorter than the overlap.
    expected = {
        (0.0, 4.0): [0, 90],
        (3.0, 7.0): [90, 150],
        (6.0, 10.0): [150, 240],
        (9.0, 9.8): [240],
    }
    assert numbers(path, windows, overlap=1.0) == expected
    for window in windows:
        assert numbers(path, [window], overlap=1.0) == {window: expected[window]}


def test_windows_far_from_a_keyframe_are_left_out(tmp_path: Path) -> None:
    options = {"g": "1500", "keyint_min": "1500", "sc_threshold": "0", "bf": "3"}
    path = write_numbered(tmp_path / "sparse.mp4", 500, options=options)
    windows = [(0.0, 4.0), (3.0, 7.0), (5.0, 9.0), (8.0, 12.0), (16.0, 20.0)]
    # The one keyframe is in the first window, 3 s from the second, and 5 s from the third.
    assert numbers(path, windows) == {(0.0, 4.0): [0]}
    near = [(0.0, 4.0), (1.5, 5.5)]
    assert numbers(path, near) == {(0.0, 4.0): [0], (1.5, 5.5): [0]}


def test_a_file_that_only_decoding_tells_the_times_of_is_left_to_it(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "film.avi", 250, code="mpeg4")
    assert numbers(path) == {}


def test_times_of_a_variable_frame_rate_are_those_of_the_file(tmp_path: Path) -> None:
    # 3 s at 25 frames per second, then 8 s at 5 frames per second.
    times = [*range(75), *range(75, 75 + 40 * 5, 5)]
    path = write_numbered(
        tmp_path / "phone.mp4",
        len(times),
        times=times,
        time_base=Fraction(1, 25),
        options={"g": "10", "sc_threshold": "0"},
    )
    windows = [(0.0, 4.0), (6.0, 10.0)]
    quick = {v.window: v for v in decode_keyframe_windows(path, SPEC, windows)}
    exact = {v.window: v for v in decode_windows(path, SPEC, windows)}
    for window in windows:
        video = quick[window]
        for number, second in zip(read_numbers(video.frames), video.times, strict=True):
            assert times[number] == round(float(second) * 25)
            assert number % 10 == 0
        # Both lie in the window; their middles are at most one group of frames apart.
        assert window[0] <= video.times.min() <= video.times.max() <= window[1]
        assert abs(video.times.mean() - exact[window].times.mean()) < 1.0


def test_masked_frames_and_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_numbered(tmp_path / "film.mp4", 250)
    spec = FrameSpec(num_frames=6, size=64, short="mask")
    (video,) = decode_keyframe_windows(path, spec, [(0.0, 4.0)])
    assert video.is_real.tolist() == [True, True, False, False, False, False]

    send = source.VideoSource.send

    def fail(self: source.VideoSource, packet: Any, **options: Any) -> list[Any]:
        if packet is not None and packet.pts == packets[150]:
            self.errors += 1
            return []
        return send(self, packet, **options)

    with decoding.open_video(path) as video_source:
        packets = dict(enumerate(sorted(packet.pts for packet in video_source.packets())))
    monkeypatch.setattr(source.VideoSource, "send", fail)
    assert list(numbers(path)) == [(0.0, 4.0), (6.0, 10.0)]


def test_only_keyframes_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_numbered(tmp_path / "film.mp4", 250)
    sent_packets = []
    send = source.VideoSource.send

    def count(self: source.VideoSource, packet: Any, **options: Any) -> list[Any]:
        if packet is not None:
            sent_packets.append(packet.is_keyframe)
        return send(self, packet, **options)

    monkeypatch.setattr(source.VideoSource, "send", count)
    overlapping = [(0.0, 4.0), (0.5, 4.5), (1.0, 5.0), (6.0, 10.0)]
    distinct = {number for each in numbers(path, overlapping).values() for number in each}
    assert all(sent_packets)
    assert len(sent_packets) == len(distinct) == 5
