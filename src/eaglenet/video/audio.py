"""Decode the audio of a file."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import VideoDecodeError
from eaglenet.video.containers import open_container, pyav
from eaglenet.video.limits import MAX_PACKETS

SEEK_MARGINS = (0.5, 10.0, 60.0)
"""Seconds before the start to seek to, tried in order."""
MAX_FAILURES = 1000
"""Maximum broken packets in a row to skip."""
MIN_RATE = 1000
"""Samples per second below which audio is not converted; the lowest rate in use is 4000."""
MAX_CLOCK_ERROR = 0.1
"""Maximum seconds by which the time of a frame may differ from its position in the samples."""
Samples = NDArray[np.float32]


class AudioFormat(NamedTuple):
    """Samples per second, and layout: ``mono`` or ``stereo``."""

    rate: int
    layout: str

    @property
    def channels(self) -> int:
        return 1 if self.layout == "mono" else 2


def decode_audio(
    path: str | Path,
    start: float,
    end: float,
    format: AudioFormat,
    *,
    accept_damage: bool = False,
) -> Samples | None:
    """Decode ``[start, end)`` seconds as ``[channels, samples]``, with silence in gaps.

    Returns None for a file without an audio stream, and fewer samples at the end of a file. With
    ``accept_damage``, a container that cannot be read any further counts as the end of the file;
    it raises ``VideoDecodeError`` otherwise.
    """
    damage = (pyav().FFmpegError,) if accept_damage else ()
    try:
        return _decode_span(Path(path), start, end, format, damage)
    except pyav().FFmpegError as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"decoding of the audio failed ({cause})") from error


def _decode_span(
    path: Path, start: float, end: float, format: AudioFormat, damage: tuple[type[Exception], ...]
) -> Samples | None:
    # A seek may land after the start; the next one goes farther back.
    for margin in (*(seconds for seconds in SEEK_MARGINS if seconds < start), None):
        with contextlib.closing(open_container(path)) as container:
            stream = next(iter(container.streams.audio), None)
            if stream is None or stream.codec_context is None:
                return None
            zero = (container.start_time or 0) / 1e6
            if margin is not None:
                with contextlib.suppress(pyav().FFmpegError, OverflowError):
                    container.seek(int((start + zero - margin) * 1e6))
            chunks = _decode_chunks(container, stream, format, damage)
            first = next(chunks, None)
            if margin is None or (first is not None and first[0] - zero <= start):
                chunks = itertools.chain([first] if first is not None else (), chunks)
                timed_chunks = ((seconds - zero, values) for seconds, values in chunks)
                return _assemble(timed_chunks, start, end, format)
    return None


def _assemble(
    chunks: Iterable[tuple[float, Samples]], start: float, end: float, format: AudioFormat
) -> Samples:
    """Copy chunks to their positions in ``[start, end)``."""
    samples = np.zeros((format.channels, round((end - start) * format.rate)), np.float32)
    length = 0
    for seconds, values in chunks:
        first = round((seconds - start) * format.rate)
        if first >= samples.shape[1]:
            break
        begin, skip = max(first, 0), max(-first, 0)
        values = values[:, skip : skip + samples.shape[1] - begin]
        samples[:, begin : begin + values.shape[1]] = values
        if values.size:
            length = max(length, begin + values.shape[1])
    return samples[:, :length]


def _decode_chunks(
    container: Any, stream: Any, format: AudioFormat, damage: tuple[type[Exception], ...]
) -> Iterator[tuple[float, Samples]]:
    """Yield resampled chunks with their start times, up to an error of the type ``damage``."""
    resampler: Resampler | None = None
    clock: float | None = None
    with contextlib.suppress(*damage):
        for frame in _decode_frames(container, stream):
            is_off = frame.time is not None and (
                clock is None or abs(frame.time - clock) > MAX_CLOCK_ERROR
            )
            if is_off or resampler is None:
                clock = float(frame.time or 0.0)
                resampler = Resampler(format)
            # The clock gives the times; the resampler would count its own.
            frame.pts = None
            for output in resampler.convert(frame):
                values = output.to_ndarray()
                begin = clock or 0.0
                clock = begin + values.shape[1] / format.rate
                yield begin, values


class Resampler:
    """Converts frames to planar floats of one rate and layout.

    The format of the frames may change: a broadcast switches from stereo to 5.1 and back. PyAV's
    resampler refuses such a change, or passes on samples of the wrong rate.

    Read samples of converted frames only. PyAV 18.1 counts the planes of a frame up to a null
    pointer, which frames with 8 or more planar channels do not have: their ``planes`` and
    ``to_ndarray`` read foreign memory and crash the process.
    """

    def __init__(self, format: AudioFormat) -> None:
        self.format = format
        self._input: tuple[str, str, int] | None = None
        self._resampler: Any = None

    def convert(self, frame: Any | None) -> list[Any]:
        """Return the converted frames that are ready; None as input returns the remaining ones.

        Damaged frames that FFmpeg cannot convert are left out. So are frames with less than
        ``MIN_RATE`` samples per second, of which a few become thousands.
        """
        if frame is None:
            return self._resample(None)
        if frame.sample_rate < MIN_RATE:
            return []
        remaining: list[Any] = []
        input_format = (frame.format.name, frame.layout.name, frame.sample_rate)
        if input_format != self._input:
            remaining = self._resample(None)
            self._input = input_format
            self._resampler = pyav().AudioResampler("fltp", self.format.layout, self.format.rate)
        return [*remaining, *self._resample(frame)]

    def _resample(self, frame: Any | None) -> list[Any]:
        if self._resampler is None:
            return []
        try:
            return self._resampler.resample(frame)  # type: ignore[no-any-return]
        except pyav().FFmpegError:
            self._input = self._resampler = None
            return []


def _decode_frames(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the frames of an audio stream; broken packets are skipped."""
    failures = 0
    for count, packet in enumerate(container.demux(stream)):
        if count >= MAX_PACKETS or failures > MAX_FAILURES:
            return
        try:
            frames = packet.decode()
        except pyav().FFmpegError:
            failures += 1
        else:
            failures = 0
            yield from frames
