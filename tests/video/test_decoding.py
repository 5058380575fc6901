"""Decoded frames are those shown at the sampled times, for every codec and container."""

from __future__ import annotations

import contextlib
import math
import os
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import videos
from PIL import Image
from videos import expected_numbers, read_numbers, write_numbered

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.types import FrameSpec
from eaglenet.video import decoding
from eaglenet.video.decoding import decode, decode_windows, is_video, probe

SPEC = FrameSpec(num_frames=7, size=64)

KINDS = {
    "h264.mp4": {},
    "h264.mov": {},
    "h264.mkv": {},
    "h264.ts": {},
    "h264.flv": {},
    "h264.avi": {},
    "h264.h264": {},
    "hevc.mp4": {"code": "hevc"},
    "vp9.webm": {"code": "vp9"},
    "vp9.mkv": {"code": "vp9"},
    "av1.mp4": {"code": "av1"},
    "av1.webm": {"code": "av1"},
    "mpeg4.mp4": {"code": "mpeg4"},
    "mpeg4.avi": {"code": "mpeg4"},
    "intra.mkv": {"code": "intra"},
    "sound.mp4": {"with_audio": True},
    "fragmented.mp4": {"container_options": {"movflags": "frag_keyframe+empty_moov"}},
    "no_duration.mkv": {"container_options": {"live": "1"}},
    "no_duration.webm": {"code": "vp9", "container_options": {"live": "1"}},
    "open_gop.mp4": {"options": {"x264-params": "open-gop=1:keyint=20:bframes=3"}},
    "intra_refresh.mp4": {"options": {"x264-params": "intra-refresh=1:keyint=20"}},
    "b_pyramid.mp4": {"options": {"x264-params": "bframes=8:b-pyramid=normal:keyint=50"}},
    "one_gop.mp4": {"options": {"g": "1000"}},
    "no_b_frames.mp4": {"options": {"bf": "0"}},
    "late.mp4": {"times": [5000 + 40 * i for i in range(60)], "time_base": Fraction(1, 1000)},
    "late.ts": {"times": [5000 + 40 * i for i in range(60)], "time_base": Fraction(1, 1000)},
    "portrait.mp4": {"width": 48, "height": 112},
    "wide.mp4": {"width": 176, "height": 64},
}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of 60 numbered frames, 25 per second, of each kind."""
    folder = tmp_path_factory.mktemp("videos")
    for name, options in KINDS.items():
        write_numbered(folder / name, 60, **options)
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_samples_the_middles_of_equal_segments(files: Path, name: str) -> None:
    video = decode(files / name, SPEC)
    assert read_numbers(video.frames) == expected_numbers(60, 7)
    assert video.frames.shape == (7, 3, 64, 64)
    assert video.frames.dtype == torch.uint8
    assert video.largest_error == 0
    assert video.mask.all()
    expected = torch.tensor(expected_numbers(60, 7)) / 25
    torch.testing.assert_close(video.seconds, expected, atol=1e-3, rtol=0)  # Matroska rounds to ms


@pytest.mark.parametrize("name", KINDS)
def test_samples_a_window(files: Path, name: str) -> None:
    video = decode(files / name, SPEC, window=(0.5, 1.5))
    assert read_numbers(video.frames) == expected_numbers(60, 7, Fraction(25, 2), Fraction(75, 2))


@pytest.mark.parametrize("name", KINDS)
def test_windows_in_one_pass_equal_single_windows(files: Path, name: str) -> None:
    windows = [(0.0, 0.8), (0.4, 1.2), (0.8, 1.6), (1.7, 9.0)]
    together = list(decode_windows(files / name, SPEC, windows))
    assert [video.window for video in together] == windows
    for window, video in zip(windows, together, strict=True):
        alone = decode(files / name, SPEC, window=window)
        assert torch.equal(video.frames, alone.frames)
        assert torch.equal(video.seconds, alone.seconds)


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "hevc.mp4", "vp9.webm", "open_gop.mp4"])
def test_any_sampling_equals_picking_from_all_frames(files: Path, name: str) -> None:
    generator = random.Random(name)
    with av.open(str(files / name)) as container:
        stream = container.streams.video[0]
        pictures = {
            (frame.pts - (stream.start_time or 0)) * frame.time_base: frame.to_ndarray(
                format="rgb24", width=64, height=64
            )
            for frame in container.decode(stream)
        }
    times = sorted(pictures)
    for _ in range(15):
        num_frames = generator.randint(1, 23)
        start = Fraction(generator.randint(0, 200), 100)
        end = start + Fraction(generator.randint(2, 150), 100)
        window = (float(start), float(end))
        video = decode(files / name, replace(SPEC, num_frames=num_frames), window=window)
        end = min(Fraction(window[1]), Fraction(60, 25))
        length = (end - Fraction(window[0])) / (2 * num_frames)
        for place in range(num_frames):
            target = Fraction(window[0]) + (2 * place + 1) * length
            # Times of frames are exact to half a millisecond only.
            allowed_numbers = {
                max((time for time in times if time <= target + shift), default=times[0])
                for shift in (-Fraction(1, 1999), Fraction(1, 1999))
            }
            image = video.frames[place].permute(1, 2, 0).numpy().astype(int)
            differences = [
                np.abs(pictures[time].astype(int) - image).mean() for time in allowed_numbers
            ]
            assert min(differences) < 4


def test_samples_variable_frame_rate_by_time(tmp_path: Path) -> None:
    generator = random.Random(3)
    times = [0]
    for _ in range(59):
        times.append(times[-1] + generator.randint(3, 160))
    for ending in ("mp4", "mkv"):
        path = tmp_path / f"varying.{ending}"
        write_numbered(path, 60, times=times, time_base=Fraction(1, 1000))
        duration = probe(path).duration
        video = decode(path, SPEC)
        targets = [(i + 0.5) * duration / 7 for i in range(7)]
        expected = [max(n for n in range(60) if times[n] / 1000 <= target) for target in targets]
        assert read_numbers(video.frames) == expected
        torch.testing.assert_close(
            video.seconds, torch.tensor([times[n] / 1000 for n in expected]), atol=2e-3, rtol=0
        )


@pytest.mark.parametrize("rotation", [90, 180, 270])
@pytest.mark.parametrize("ending", ["mp4", "mov"])
def test_rotated_videos_are_upright(tmp_path: Path, rotation: int, ending: str) -> None:
    path = write_numbered(tmp_path / f"r.{ending}", 30, width=64, height=96, rotation=rotation)
    assert read_numbers(decode(path, SPEC).frames) == expected_numbers(30, 7)
    info = probe(path)
    assert info.rotation == rotation
    assert (info.width, info.height) == ((96, 64) if rotation % 180 else (64, 96))


@pytest.mark.parametrize(
    ("name", "code"), [("a.mp4", "h264"), ("a.mkv", "h264"), ("a.webm", "vp9")]
)
def test_a_single_frame_is_repeated(tmp_path: Path, name: str, code: str) -> None:
    path = write_numbered(tmp_path / name, 1, code=code)
    video = decode(path, SPEC)
    assert read_numbers(video.frames) == [0] * 7
    assert video.mask.all()
    assert video.seconds.tolist() == [0] * 7


def test_short_videos_repeat_mask_or_blank(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "three.mp4", 3)
    with_repeats = decode(path, SPEC)
    assert read_numbers(with_repeats.frames) == [0, 0, 1, 1, 1, 2, 2]
    assert with_repeats.mask.all()
    last = decode(path, replace(SPEC, short="repeat_last"))
    assert read_numbers(last.frames) == [0, 1, 2, 2, 2, 2, 2]
    with_spacing = decode(path, replace(SPEC, short="spread"))
    assert read_numbers(with_spacing.frames) == [0, 0, 0, 1, 1, 1, 2]
    assert last.mask.all()
    assert with_spacing.mask.all()
    with_mask = decode(path, replace(SPEC, short="mask"))
    assert read_numbers(with_mask.frames) == [0, 1, 2, 2, 2, 2, 2]
    assert with_mask.mask.tolist() == [True] * 3 + [False] * 4
    blank = decode(path, replace(SPEC, short="zeros"))
    assert blank.mask.all()
    assert read_numbers(blank.frames)[:3] == [0, 1, 2]
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
    assert (blank.frames[3:] / 255 - mean).abs().max() < 0.003  # zero once normalised


def test_short_option_does_not_change_long_videos(files: Path) -> None:
    plain = decode(files / "h264.mp4", SPEC)
    for short in ("repeat_last", "spread", "mask", "zeros"):
        other = decode(files / "h264.mp4", replace(SPEC, short=short))
        assert torch.equal(plain.frames, other.frames)
        assert other.mask.all()


def test_per_second_sampling(
    tmp_path: Path,
) -> None:
    path = write_numbered(tmp_path / "a.mp4", 230)  # 9.2 s: seconds 0 to 9
    spec = replace(SPEC, sampling="per_second", short="mask")
    assert read_numbers(decode(path, replace(spec, num_frames=10)).frames) == [
        25 * second for second in range(10)
    ]
    positions = np.linspace(0, 9, 4, dtype=int)
    subset = decode(path, replace(spec, num_frames=4))
    assert read_numbers(subset.frames) == [25 * second for second in positions]
    short = decode(path, replace(spec, num_frames=12))
    assert short.mask.tolist() == [True] * 10 + [False] * 2
    inside = decode(path, replace(spec, num_frames=3), window=(2.0, 5.0))
    assert read_numbers(inside.frames) == [50, 75, 100]


def test_whole_rate_sampling(
    tmp_path: Path,
) -> None:
    """At 29.97 frames per second, n is 29, so frames drift from whole seconds."""
    times = [1001 * number for number in range(300)]
    path = write_numbered(
        tmp_path / "a.mp4", 300, fps=30, times=times, time_base=Fraction(1, 30000)
    )
    spec = replace(SPEC, sampling="whole_rate", short="zeros")
    assert read_numbers(decode(path, replace(spec, num_frames=11)).frames) == [
        29 * second for second in range(11)
    ]
    positions = np.linspace(0, 10, 4, dtype=int)
    subset = decode(path, replace(spec, num_frames=4))
    assert read_numbers(subset.frames) == [29 * second for second in positions]
    # A window of whole seconds includes its last second: 0 to 3 are four frames.
    inside = decode(path, replace(spec, num_frames=6), window=(0.0, 3.0))
    assert read_numbers(inside.frames)[:4] == [0, 29, 58, 87]
    assert inside.mask.all()  # zeros count as real
    by_time = decode(path, replace(spec, num_frames=11, sampling="per_second"))
    assert read_numbers(by_time.frames)[:3] == [0, 30, 60]
    by_rounded_rate = decode(path, replace(spec, num_frames=10, sampling="rounded_rate"))
    assert read_numbers(by_rounded_rate.frames) == [30 * second for second in range(10)]


def test_sampling_by_counted_frames(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "a.mp4", 60)
    for sampling, everything, inside in (
        ("middle_frames", [7, 22, 37, 52], [27, 33, 39, 46]),
        ("first_to_last", [0, 19, 39, 59], [25, 33, 41, 49]),
        ("rounded_rate", [0, 25, 50, None], [25, None, None, None]),
    ):
        spec = replace(SPEC, num_frames=4, sampling=sampling, short="mask")
        for window, expected in ((None, everything), ((1.0, 2.0), inside)):
            video = decode(path, spec, window=window)
            numbers = [number for number in expected if number is not None]
            assert read_numbers(video.frames)[: len(numbers)] == numbers, sampling
            assert video.mask.sum() == len(numbers)


def test_fast_sampling_reports_its_error(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.mkv", "a.ts"):
        path = write_numbered(tmp_path / name, 250, options={"x264-params": "keyint=40:scenecut=0"})
        fast = decode(path, replace(SPEC, fast=True))
        exact = decode(path, SPEC)
        numbers = read_numbers(fast.frames)
        assert all(number % 40 == 0 for number in numbers)
        off = max(abs(a - b) for a, b in zip(numbers, read_numbers(exact.frames), strict=True))
        assert 0 < off / 25 <= fast.largest_error + 1 / 25
        assert fast.largest_error <= 0.8 + 1 / 25  # half a group of pictures


def test_pixels_are_close_to_a_bicubic_resize_of_the_full_frame(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:270, 0:480]
    waves = [np.sin(columns / 17 + rows / 29), np.cos(rows / 23), np.sin(columns / 41)]
    picture = (np.stack(waves, axis=-1) * 90 + 128).astype(np.uint8)
    path = tmp_path / "smooth.mp4"
    decoding.write_video(path, picture[None].repeat(3, axis=0), 25, options={"crf": "10"})
    with av.open(str(path)) as container:
        full = next(container.decode(video=0)).to_image()
    crop = decode(path, FrameSpec(num_frames=1, size=112)).frames[0].permute(1, 2, 0).numpy()
    scaled_image = full.resize((112 * 480 // 270, 112), Image.Resampling.BICUBIC)
    left = round((scaled_image.width - 112) / 2)
    reference = np.asarray(scaled_image.crop((left, 0, left + 112, 112)))
    # Plain RGB conversion rounds down, by about one grey value; ours rounds to nearest.
    assert np.abs(crop.astype(int) - reference).mean() < 2
    spec = FrameSpec(num_frames=1, size=112, resize="stretch")
    stretched_pixels = decode(path, spec).frames[0].permute(1, 2, 0).numpy()
    reference = np.asarray(full.resize((112, 112), Image.Resampling.BICUBIC))
    assert np.abs(stretched_pixels.astype(int) - reference).mean() < 2


def test_respects_pixel_aspect_ratio(tmp_path: Path) -> None:
    path = tmp_path / "anamorphic.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(2)
        image = Image.fromarray(videos.picture(5, 128, 64)).resize((64, 64))
        frame = av.VideoFrame.from_image(image)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert read_numbers(decode(path, replace(SPEC, num_frames=1)).frames) == [5]
    stored_pixels = decode(path, replace(SPEC, num_frames=1, square_pixels=True)).frames[0]
    squeezed_pixels = torch.from_numpy(np.array(image.resize((SPEC.size, SPEC.size)))).permute(
        2, 0, 1
    )
    assert (
        stored_pixels.int() - squeezed_pixels.int()
    ).abs().float().mean() < 8  # the codec and no crop


def test_window_outside_the_video_is_refused(files: Path) -> None:
    whole = decode(files / "h264.mp4", SPEC)
    wider = decode(files / "h264.mp4", SPEC, window=(-3, 99))
    assert torch.equal(whole.frames, wider.frames)
    with pytest.raises(VideoDecodeError, match="outside the video"):
        decode(files / "h264.mp4", SPEC, window=(10, 20))
    with pytest.raises(UsageError, match="before the end"):
        decode(files / "h264.mp4", SPEC, window=(2, 1))


def test_probe_reads_properties(files: Path) -> None:
    info = probe(files / "h264.mp4")
    assert math.isclose(info.duration, 2.4)
    assert (info.fps, info.width, info.height) == (25, 64, 64)
    assert (info.codec, info.rotation, info.num_frames) == ("h264", 0, 60)
    assert probe(files / "no_duration.mkv").num_frames is None
    assert math.isclose(probe(files / "no_duration.mkv").duration, 2.4, abs_tol=0.002)


def test_recognises_videos_by_content(files: Path, tmp_path: Path) -> None:
    text_file = tmp_path / "holiday.txt"
    text_file.write_bytes((files / "h264.mp4").read_bytes())
    assert is_video(text_file)
    text = tmp_path / "film.mp4"
    text.write_text("not a film\n" * 50)
    assert not is_video(text)
    Image.new("RGB", (32, 32)).save(tmp_path / "still.png")
    assert not is_video(tmp_path / "still.png")
    assert not is_video(tmp_path)
    assert not is_video(tmp_path / "missing.mp4")


def test_long_file_is_exact_without_decoding_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_numbered(tmp_path / "long.mp4", 4500, options={"preset": "ultrafast", "g": "250"})
    spec = replace(SPEC, num_frames=12)
    num_packets = 0
    original = decoding.VideoSource.send

    def counting(source: decoding.VideoSource, packet: Any, *, keep: bool = True) -> list[object]:
        nonlocal num_packets
        num_packets += packet is not None
        return original(source, packet, keep=keep)

    monkeypatch.setattr(decoding.VideoSource, "send", counting)
    video = decode(path, spec)
    assert read_numbers(video.frames) == expected_numbers(4500, 12)
    assert num_packets < 4500 / 2
    num_packets = 0
    fast = decode(path, replace(spec, fast=True))
    assert num_packets <= 12
    assert fast.largest_error <= 5.04


def test_nothing_is_written_to_the_terminal(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = bytearray((files / "h264.mkv").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 50] = os.urandom(50)
    path = files / "noise.mkv"
    path.write_bytes(content)
    with contextlib.suppress(VideoDecodeError):
        decode(path, SPEC)
    assert capfd.readouterr() == ("", "")


def test_overlapping_windows_decode_no_packet_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_numbered(tmp_path / "long.mp4", 750)
    windows = [(start / 2, start / 2 + 2.0) for start in range(56)]
    sent_packets = []
    original = decoding.VideoSource.send

    def counting(source: decoding.VideoSource, packet: Any, *, keep: bool = True) -> list[object]:
        sent_packets.append(packet.pts if packet is not None else None)
        return original(source, packet, keep=keep)

    monkeypatch.setattr(decoding.VideoSource, "send", counting)
    for window, video in zip(windows, decode_windows(path, SPEC, windows), strict=True):
        start, end = (Fraction(second) * 25 for second in window)
        assert read_numbers(video.frames) == expected_numbers(750, 7, start, end)
    packets = [time for time in sent_packets if time is not None]
    assert len(packets) == len(set(packets)) <= 750


def test_yields_windows_before_decoding_the_rest(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "long.mp4", 750)
    windows = [(float(second), second + 1.0) for second in range(30)]
    videos_of_windows = decode_windows(path, SPEC, windows)
    assert next(videos_of_windows).window == windows[0]
    videos_of_windows.close()
    order = [video.window for video in decode_windows(path, SPEC, [windows[9], windows[2]])]
    assert order == [windows[2], windows[9]]


def test_impossible_specs_are_refused() -> None:
    for changes in ({"num_frames": 0}, {"size": 0}):
        with pytest.raises(UsageError, match="expected a whole number"):
            replace(SPEC, **changes)
