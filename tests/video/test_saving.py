"""Saved moments: audio, exact times, file names, GIFs and sheets."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from eaglenet.core.errors import UsageError
from eaglenet.video import saving
from eaglenet.video.decoding import probe
from eaglenet.video.input_file import share_file
from eaglenet.video.saving import MomentRequest, MomentSaver, encode_moment, moment_name

RATE, FPS, SECONDS = 16_000, 10, 6
TONES = [300, 500, 700, 900, 1100, 1300]
"""Hertz, one for each second."""


def film(path: Path, keyframes: int, b_frames: int = 0) -> Path:
    """Write a video that gets lighter, with another tone in every second and some keyframes."""
    with av.open(str(path), "w") as container:
        options = {"g": str(keyframes), "bf": str(b_frames), "b_strategy": "0", "sc_threshold": "0"}
        pictures = container.add_stream("libx264", rate=FPS, options=options)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("aac", rate=RATE, layout="mono")
        for number in range(SECONDS * FPS):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 4 * number, np.uint8), "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(pictures.encode(frame))
        times = np.arange(SECONDS * RATE) / RATE
        wave = 0.5 * np.sin(2 * np.pi * np.repeat(TONES, RATE) * times)
        for start in range(0, len(wave), 1024):
            part = wave[None, start : start + 1024].astype(np.float32)
            piece = av.AudioFrame.from_ndarray(part, "fltp", "mono")
            piece.sample_rate, piece.pts, piece.time_base = RATE, start, Fraction(1, RATE)
            container.mux(sound.encode(piece))
        container.mux(pictures.encode(None))
        container.mux(sound.encode(None))
    return path


def tone(path: Path, start: float, end: float) -> float:
    """Return the loudest frequency of a file between two times."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        parts = [frame.to_ndarray()[0] for frame in container.decode(stream)]
        wave = np.concatenate(parts)[int(start * stream.rate) : int(end * stream.rate)]
        return float(np.abs(np.fft.rfft(wave)).argmax() * stream.rate / len(wave))


def packets(file: Path | io.BytesIO) -> list[tuple[str, int | None]]:
    """Return the stream and time of each packet."""
    with av.open(file) as container:
        return [(each.stream.type, each.pts) for each in container.demux() if each.size]


@pytest.mark.parametrize(("keyframes", "is_copied"), [(60, False), (5, True)])
def test_saved_clip_has_video_and_audio(
    tmp_path: Path, keyframes: int, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams are copied if a keyframe is near, and encoded otherwise."""
    calls: list[object] = []
    original = saving.write_clip
    monkeypatch.setattr(
        saving, "write_clip", lambda *given: (calls.append(given), original(*given))
    )
    source = film(tmp_path / "film.mp4", keyframes)
    target = tmp_path / "clip.mp4"
    content = encode_moment(MomentRequest(str(source), 2.2, 4.1)).tobytes()
    assert content.index(b"moov") < content.index(b"mdat")
    assert bool(calls) != is_copied
    with MomentSaver() as saver:
        saver.save(share_file(source), target, 2.2, 4.1)
    # With AVX-512, x264 chooses slightly other quantisers from run to run.
    assert packets(target) == packets(io.BytesIO(content))
    assert (target.read_bytes() == content) or not is_copied
    early = 0.2 if is_copied else 0.0  # Back to the keyframe at 2.0 s.
    assert probe(target).duration == pytest.approx(1.9 + early, abs=0.15)
    assert tone(target, 0.1, 0.7) == pytest.approx(TONES[2], abs=20)
    assert tone(target, 1.1 + early, 1.7 + early) == pytest.approx(TONES[3], abs=20)


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv"])
@pytest.mark.parametrize("b_frames", [1, 3])
def test_a_copied_clip_has_all_frames(tmp_path: Path, name: str, b_frames: int) -> None:
    """Matroska has no decoding times, and the demuxer invents none for the first packets."""
    source = film(tmp_path / name, 20, b_frames)
    for start, end, first in ((0.0, 2.0, 0), (2.2, 4.0, 20)):  # Copied from 0 and 2 s.
        content = encode_moment(MomentRequest(str(source), start, end)).tobytes()
        with av.open(io.BytesIO(content)) as container:
            frames = list(container.decode(video=0))
        times = [number / FPS for number in range(20)]
        assert [frame.time for frame in frames] == pytest.approx(times)
        greys = [4 * number for number in range(first, first + 20)]
        means = [frame.to_ndarray(format="gray").mean() for frame in frames]
        assert means == pytest.approx(greys, abs=3)


@pytest.mark.parametrize("keyframes", [5, 10, 30])
def test_a_clip_of_a_transport_stream_has_all_frames(tmp_path: Path, keyframes: int) -> None:
    """A seek may land after its target, since transport streams have no index."""
    source = film(tmp_path / "film.ts", keyframes)
    for start in (0.0, 1.0, 2.0, 3.3):
        content = encode_moment(MomentRequest(str(source), start, start + 1.5)).tobytes()
        with av.open(io.BytesIO(content)) as container:
            frames = list(container.decode(video=0))
        assert len(frames) >= 15
        # The audio may begin a frame before the video.
        grey = frames[0].to_ndarray(format="gray").mean()
        assert grey == pytest.approx(4 * FPS * start, abs=8)


@pytest.mark.parametrize("name", ["film.mov", "film.mkv"])
def test_a_copied_hevc_clip_plays_on_devices_of_apple(tmp_path: Path, name: str) -> None:
    """Telephones write hvc1; FFmpeg's default is hev1, which QuickTime and Safari refuse."""
    source = tmp_path / name
    with av.open(str(source), "w") as container:
        stream = container.add_stream("libx265", rate=FPS)
        stream.options = {"x265-params": "log-level=none"}
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        if name.endswith(".mov"):
            stream.codec_context.codec_tag = "hvc1"
        for number in range(2 * FPS):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 4 * number, np.uint8), "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    content = encode_moment(MomentRequest(str(source), 0.0, 1.0)).tobytes()
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.codec_tag) == ("hevc", "hvc1")
        assert len(list(container.decode(stream))) >= 8


def test_saves_a_clip_after_frames_that_are_wrongly_marked_as_keyframes(tmp_path: Path) -> None:
    """Cameras and editors write such files; players decode them from the start."""
    source, marked_file, target = (
        film(tmp_path / "film.mp4", 60),
        tmp_path / "marked.mp4",
        tmp_path / "c",
    )
    with av.open(str(source)) as reader, av.open(str(marked_file), "w") as writer:
        inputs = (reader.streams.video[0], reader.streams.audio[0])
        outputs = {stream.index: writer.add_stream_from_template(stream) for stream in inputs}
        for packet in reader.demux(inputs):
            if packet.dts is not None:
                is_late = packet.stream is inputs[0] and packet.pts * packet.time_base >= 2
                packet.is_keyframe = packet.is_keyframe or is_late
                packet.stream = outputs[packet.stream.index]
                writer.mux(packet)
    target.write_bytes(encode_moment(MomentRequest(str(marked_file), 4.0, 5.0)).tobytes())
    with av.open(str(target)) as container:
        greys = [frame.to_ndarray(format="gray").mean() for frame in container.decode(video=0)]
    assert greys == pytest.approx([4 * number for number in range(40, 50)], abs=3)


def test_saves_gif_and_sheet(tmp_path: Path) -> None:
    """A GIF has eight frames per second; a sheet has twelve frames in rows, which get lighter."""
    source = film(tmp_path / "film.mp4", 60)
    saver = MomentSaver()
    saver.save(share_file(source), tmp_path / "moving.gif", 1.0, 3.0, "gif")
    with Image.open(tmp_path / "moving.gif") as moving:
        assert moving.n_frames == 16
        assert moving.size == (64, 48)
    saver.save(share_file(source), tmp_path / "sheet.jpg", 0.0, 6.0, "sheet")
    with Image.open(tmp_path / "sheet.jpg") as sheet:
        assert sheet.size == (4 * 64, 3 * 48)
        shades = [
            sheet.convert("L").getpixel((64 * column + 32, 48 * row + 24))
            for row in range(3)
            for column in range(4)
        ]
    assert shades == sorted(shades)
    assert shades[-1] - shades[0] > 150


def test_file_names_and_copied_images(tmp_path: Path) -> None:
    """File names are readable."""
    film_path = Path("/films/My holiday.mov")
    assert moment_name(film_path, 61.23, 3725.5) == "My holiday 1m01.2s-1h02m05.5s.mp4"
    assert moment_name(film_path, 0, 1, "gif") == "My holiday 0m00.0s-0m01.0s.gif"
    assert moment_name(Path("/p/cat.JPG"), 0, 0) == "cat.JPG"
    longest = moment_name(Path("/films", "\u732b" * 83 + ".mov"), 36000.0, 36001.0)
    assert longest == "\u732b" * 60 + " 10h00m00.0s-10h00m01.0s.mp4"
    with pytest.raises(UsageError, match="video, gif, sheet"):
        moment_name(film_path, 0, 1, "mp3")
    (tmp_path / "cat.jpg").write_bytes(b"as it is")
    MomentSaver().save(share_file(tmp_path / "cat.jpg"), tmp_path / "copy.jpg", 0, 0)
    assert (tmp_path / "copy.jpg").read_bytes() == b"as it is"
