"""Reels: moments of several files in one MP4, encoded in a confined process."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
from test_saving import FPS, TONES, film, tone

from eaglenet.core.errors import EagleNetError, UsageError, VideoDecodeError
from eaglenet.video import confinement, reel
from eaglenet.video.reel import MAX_SEGMENTS, Segment, open_segments, save_reel
from small_videos import colour_video


def middle_colours(path: Path) -> list[tuple[float, list[int]]]:
    """Return the time and the centre pixel of every frame."""
    with av.open(str(path)) as container:
        frames = [
            (float(frame.time), frame.to_ndarray(format="rgb24"))
            for frame in container.decode(video=0)
        ]
    return [
        (time, image[image.shape[0] // 2, image.shape[1] // 2].tolist()) for time, image in frames
    ]


def test_a_reel_has_the_frames_and_the_audio_of_its_moments_in_order(tmp_path: Path) -> None:
    grey = film(tmp_path / "grey.mp4", 60)
    red = colour_video(tmp_path / "red.mp4", ["red"])
    target = tmp_path / "reel.mp4"
    save_reel(
        [Segment(str(grey), 2.0, 4.0), Segment(str(red), 1.0, 2.0), Segment(str(grey), 0.0, 1.0)],
        target,
    )
    frames = middle_colours(target)
    with av.open(str(target)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == (64, 48)
        assert float(container.duration / av.time_base) == pytest.approx(4.0, abs=0.1)
    # The brightness of a frame of the grey video is four times its number.
    expected = [4 * number for number in range(2 * FPS, 4 * FPS)]
    first = [pixel[0] for time, pixel in frames if time < 2 - 1e-3]
    assert np.allclose(first, expected, atol=4)
    second = [pixel for time, pixel in frames if 2 - 1e-3 <= time < 3 - 1e-3]
    assert second
    assert all(pixel[0] > 200 and max(pixel[1:]) < 60 for pixel in second)
    assert frames[-1][1][0] == pytest.approx(4 * (FPS - 1), abs=4)
    assert tone(target, 0.2, 0.8) == pytest.approx(TONES[2], abs=5)
    assert tone(target, 1.2, 1.8) == pytest.approx(TONES[3], abs=5)
    assert tone(target, 3.2, 3.8) == pytest.approx(TONES[0], abs=5)
    with av.open(str(target)) as container:
        wave = np.concatenate([f.to_ndarray()[0] for f in container.decode(audio=0)])
    assert np.abs(wave[int(2.2 * 48_000) : int(2.8 * 48_000)]).max() < 0.02  # the silent one


def test_images_and_wide_videos_are_fitted(tmp_path: Path) -> None:
    from PIL import Image

    tall = tmp_path / "tall.png"
    Image.new("RGB", (20, 80), (0, 255, 0)).save(tall)
    red = colour_video(tmp_path / "red.mp4", ["red"])
    save_reel([Segment(str(red), 0.0, 1.0), Segment(str(tall), 0.0, 0.0)], tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert not container.streams.audio
        *_, last = container.decode(video=0)
        image = last.to_ndarray(format="rgb24")
    assert image.shape == (24, 40, 3)
    assert image[12, 20, 1] > 200
    assert image[12, 2].max() < 40  # a black border
    assert float(last.time) == pytest.approx(5.0)


def test_what_cannot_be_joined_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    red = colour_video(tmp_path / "red.mp4", ["red"])
    (tmp_path / "broken.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + b"x" * 200)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "reel.mp4"
    good = Segment(str(red), 0.0, 1.0)
    cases: list[tuple[list[Segment], str]] = [
        ([], "no results"),
        ([good] * (MAX_SEGMENTS + 1), "at most 40"),
        ([Segment(str(red), 0.0, 1e6)], "at most 1200 s"),
        ([Segment(str(red), 0.0, float("nan"))], "at most 1200 s"),
        ([Segment(str(red), 50.0, 60.0)], "outside the video"),
        ([Segment(str(red), 2.0, 1.0)], "start must be before the end"),
        ([Segment(str(tmp_path / "broken.mp4"), 0.0, 1.0)] * 2, "broken.mp4"),
        ([Segment(str(tmp_path / "none.mp4"), 0.0, 1.0)], "[Nn]o such file"),
        ([Segment(str(tmp_path), 0.0, 1.0)], "regular|directory"),
    ]
    for segments, message in cases:
        with pytest.raises(EagleNetError, match=message):
            save_reel(segments, target)
    with pytest.raises(UsageError, match=r"\.mp4"):
        save_reel([good], tmp_path / "out" / "reel.mkv")
    with pytest.raises((UsageError, VideoDecodeError), match="cannot be written"):
        save_reel([good], tmp_path / "missing" / "reel.mp4")
    assert not os.listdir(tmp_path / "out")


def test_moments_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    red = colour_video(tmp_path / "red.mp4", ["red"] * 3)
    (tmp_path / "broken.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + b"x" * 200)
    segments = [
        Segment(str(tmp_path / "none.mp4"), 0.0, 1.0),
        Segment(str(red), 0.0, 1.0),
        Segment(str(tmp_path / "broken.mp4"), 0.0, 1.0),
        Segment(str(red), 50.0, 60.0),
        Segment(str(red), 1.0, 2.0),
    ]
    errors = save_reel(segments, tmp_path / "reel.mp4")
    assert [error.path.name for error in errors] == ["none.mp4", "broken.mp4", "red.mp4"]
    with av.open(str(tmp_path / "reel.mp4")) as container:
        assert container.duration / av.time_base == pytest.approx(2.0, abs=0.3)


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"{}\n",
        b"[1]\n",
        b'{"bytes": -1}\n',
        b'{"bytes": 99}\nshort',
        b'{"bytes": 9e99}\n',
        b"x" * 9999,
        b'{"error": "x", "segment": 7}\n',
    ],
)
def test_a_hostile_process_gives_an_error(output: bytes) -> None:
    code = f"import sys; sys.stdout.buffer.write({output!r})"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    with pytest.raises(UsageError, match="crashed"):
        reel.copy_reel(process, io.BytesIO(), ["a.mp4"])
    reel.end_reel(process)


@pytest.mark.skipif(not confinement.is_supported(), reason="this system confines no process")
def test_the_process_is_confined(tmp_path: Path) -> None:
    red = colour_video(tmp_path / "red.mp4", ["red"] * 20)
    with open_segments([Segment(str(red), 0.0, 60.0)]) as segments:
        process = reel.start_reel(segments)
        deadline = time.monotonic() + 30
        status = ""
        # A process that has ended still has a status until it is waited for.
        while "Seccomp:\t2" not in status and time.monotonic() < deadline:
            status = Path(f"/proc/{process.pid}/status").read_text()
            time.sleep(0.005)
        reel.end_reel(process)
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
