"""Audio whose format changes within a stream, as in recordings of broadcasts."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from eaglenet.core.errors import VideoDecodeError
from eaglenet.video import audio
from eaglenet.video.audio import AudioFormat, Resampler, decode_audio

PARTS = {
    "stereo": (48_000, "stereo", 440.0),
    "mono": (48_000, "mono", 1320.0),
    "low": (24_000, "mono", 1320.0),
}
"""Rate, layout and frequency of a tone."""
SECONDS = 1.0


def tone(rate: int, layout: str, frequency: float, format: str = "fltp") -> Any:
    """Make a frame of one second."""
    wave = np.sin(2 * np.pi * frequency * np.arange(int(rate * SECONDS)) / rate) * 0.5
    values = np.repeat(wave[None].astype(np.float32), 1 if layout == "mono" else 2, axis=0)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(values), format=format, layout=layout)
    frame.sample_rate = rate
    frame.time_base = Fraction(1, rate)
    frame.pts = 0
    return frame


def frequency_of(samples: NDArray[np.float32], rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * rate / len(samples)


def write_adts(path: Path, rate: int, layout: str, frequency: float) -> None:
    with av.open(str(path), "w", format="adts") as target:
        stream = target.add_stream("aac", rate=rate)
        stream.layout = layout
        target.mux(stream.encode(tone(rate, layout, frequency)))
        target.mux(stream.encode(None))


@pytest.mark.parametrize("order", [("stereo", "mono"), ("mono", "stereo")], ids="-".join)
@pytest.mark.parametrize(
    "format", [AudioFormat(16_000, "mono"), AudioFormat(48_000, "stereo")], ids=lambda f: f.layout
)
def test_both_parts_are_heard(order: tuple[str, str], format: AudioFormat, tmp_path: Path) -> None:
    # One stream, since each AAC frame names its layout.
    content = b""
    for name in order:
        write_adts(tmp_path / f"{name}.aac", *PARTS[name])
        content += (tmp_path / f"{name}.aac").read_bytes()
    path = tmp_path / "both.aac"
    path.write_bytes(content)
    samples = decode_audio(path, 0.0, 3.0, format)
    assert samples is not None
    assert samples.shape[0] == format.channels
    assert 1.9 < samples.shape[1] / format.rate < 2.3
    result = [
        frequency_of(
            samples[0, int(begin * format.rate) : int((begin + 0.6) * format.rate)], format.rate
        )
        for begin in (0.2, 1.3)
    ]
    assert result == pytest.approx([PARTS[name][2] for name in order], abs=5)


def test_what_remains_of_the_old_format_comes_first() -> None:
    """A change of the rate loses no samples, and samples of the target format pass through."""
    resampler = Resampler(AudioFormat(48_000, "stereo"))
    outputs = [
        chunk
        for name in ("stereo", "low", "stereo")
        for chunk in resampler.convert(tone(*PARTS[name]))
    ] + resampler.convert(None)
    assert {(chunk.sample_rate, chunk.layout.name) for chunk in outputs} == {(48_000, "stereo")}
    assert sum(chunk.samples for chunk in outputs) == pytest.approx(3 * 48_000, abs=64)


def test_a_frame_that_cannot_be_converted_is_left_out() -> None:
    resampler = Resampler(AudioFormat(16_000, "mono"))
    damaged_frame = tone(*PARTS["mono"])
    damaged_frame.sample_rate = 0
    assert resampler.convert(damaged_frame) == []
    assert sum(chunk.samples for chunk in resampler.convert(tone(*PARTS["stereo"]))) > 15_000


def test_a_very_low_rate_is_not_converted() -> None:
    """One second at 1 Hz would become 16,000 samples, with a filter of gigabytes."""
    resampler = Resampler(AudioFormat(16_000, "mono"))
    slow = tone(*PARTS["mono"])
    slow.sample_rate = 1
    assert resampler.convert(slow) == resampler.convert(None) == []


def test_an_error_at_the_end_of_a_format_loses_only_its_end() -> None:
    resampler = Resampler(AudioFormat(16_000, "mono"))
    resampler.convert(tone(*PARTS["stereo"]))

    class Broken:
        def resample(self, frame: Any) -> None:
            raise av.error.MemoryError(12, "Cannot allocate memory")

    resampler._resampler = Broken()
    assert sum(chunk.samples for chunk in resampler.convert(tone(*PARTS["low"]))) > 15_000
    resampler._resampler = Broken()
    assert resampler.convert(None) == []


MANY_CHANNELS = """
import sys
from pathlib import Path
from eaglenet.video import audio
from eaglenet.video.audio import AudioFormat, decode_audio
from eaglenet.video.saving import MomentRequest, encode_moment
from eaglenet.video.streaming import stream

path = sys.argv[1]
print(decode_audio(path, 0.0, 1.0, AudioFormat(16_000, "mono")).shape)
assert len(encode_moment(MomentRequest(path, 0.0, 1.0)))
with open(path, "rb") as file, open(sys.argv[2], "wb") as output:
    stream(file, 0.0, output)
"""


@pytest.mark.parametrize(("channels", "samples"), [(8, 16_000), (64, 0)])
def test_many_planar_channels_end_no_process(tmp_path: Path, channels: int, samples: int) -> None:
    """PyAV crashes when it reads the planes of such a frame; FFmpeg can mix down 24 channels."""
    path, rate = tmp_path / "many.mkv", 48_000
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("mpeg4", rate=10)
        video.width, video.height = 64, 48
        audio: Any = container.add_stream("wavpack", rate=rate)
        audio.layout = f"{channels} channels"
        assert audio.format.is_planar
        resampler = av.AudioResampler(audio.format.name, audio.layout, rate, audio.frame_size)
        for number in range(10):
            picture = av.VideoFrame(64, 48, "yuv420p")
            picture.pts = number
            container.mux(video.encode(picture))
            sound = av.AudioFrame("flt", audio.layout, rate // 10)
            sound.sample_rate, sound.pts = rate, number * rate // 10
            sound.planes[0].update(bytes(sound.planes[0].buffer_size))
            for frame in resampler.resample(sound):
                container.mux(audio.encode(frame))
        for stream in (video, audio):
            container.mux(stream.encode(None))
    run = subprocess.run(
        [sys.executable, "-c", MANY_CHANNELS, str(path), str(tmp_path / "stream.mp4")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    result = int(run.stdout.split(",")[1].strip(" )\n"))
    assert result == pytest.approx(samples, abs=100)
    assert (tmp_path / "stream.mp4").stat().st_size > 1000


def test_a_container_that_breaks_off_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sound.aac"
    write_adts(path, 48_000, "mono", 440.0)
    header_of_an_empty_frame = bytes.fromhex("fff14c40001ffc")
    path.write_bytes(path.read_bytes() + header_of_an_empty_frame * 2)
    format = AudioFormat(16_000, "mono")
    with pytest.raises(VideoDecodeError, match=r"sound\.aac: decoding of the audio failed"):
        decode_audio(path, 0.0, 3.0, format)
    samples = decode_audio(path, 0.0, 3.0, format, accept_damage=True)
    assert samples is not None
    assert samples.shape[1] > 8_000


def test_sound_goes_on_after_many_broken_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only so many broken packets in a row end it: reception comes and goes."""
    monkeypatch.setattr(audio, "MAX_FAILURES", 20)
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=8000, layout="mono")
        for second in range(10):
            frame = tone(8000, "mono", 440.0)
            frame = av.AudioFrame.from_ndarray(
                (frame.to_ndarray() * 32767).astype(np.int16), format="s16", layout="mono"
            )
            frame.sample_rate, frame.time_base = 8000, Fraction(1, 8000)
            frame.pts = second * 8000
            for packet in stream.encode(frame):
                container.mux(broken(packet) if second % 2 else packet)
        container.mux(stream.encode(None))
    samples = decode_audio(path, 0.0, 10.0, AudioFormat(8000, "mono"))
    assert samples is not None
    middles = samples[0, : 9 * 8000].reshape(9, 8000)[:, 1000:7000]  # packets cross seconds
    assert (np.abs(middles).max(axis=1) > 0.1).tolist() == [n % 2 == 0 for n in range(9)]


def broken(packet: Any) -> Any:
    result = av.Packet(b"\xff\xf8" + b"\x55" * 30)
    result.stream, result.time_base = packet.stream, packet.time_base
    result.pts, result.dts, result.duration = packet.pts, packet.dts, packet.duration
    return result
