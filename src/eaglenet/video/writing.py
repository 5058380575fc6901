"""Write videos from frames in memory and from spans of other videos."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.audio import AudioFormat, Samples, decode_audio
from eaglenet.video.containers import pyav
from eaglenet.video.pixels import Pixels
from eaglenet.video.sampling import BORDER_TOLERANCE, clip_window
from eaglenet.video.source import VideoSource, decode_from, open_video

QUIET = {"libx265": {"x265-params": "log-level=none"}}
"""Options that keep encoders from writing to the terminal."""
FRAME_DURATION = 1 << 8
"""AV_CODEC_FLAG_FRAME_DURATION: write frame durations to the container."""
CLIP_OPTIONS = {"crf": "20", "preset": "veryfast"}
TICKS = 90_000
"""Ticks per second of the video stream of a clip."""
RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
"""Sample rates that a clip keeps; audio of another rate is converted to the last one."""
AUDIO_FRAME = 1024
"""Samples per AAC frame."""


def write_video(
    path: str | Path,
    frames: Any,
    fps: float,
    *,
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
) -> None:
    """Write uint8 ``frames`` [frames, 3, height, width] or [frames, height, width, 3] to a file.

    The file extension selects the container.
    """
    av = pyav()
    if codec not in av.codecs_available:
        raise UsageError(
            f"unknown video codec {codec!r}; use for example libx264, libx265 or libvpx-vp9"
        )
    with av.open(str(path), "w") as container:
        images = _channels_last(frames)
        rate = Fraction(fps).limit_denominator(1001)
        stream = container.add_stream(codec, rate=rate)
        stream.options = {**QUIET.get(codec, {}), **(options or {})}
        height, width = _even_sides(*images.shape[1:3])
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for number, image in enumerate(images):
            even = np.ascontiguousarray(image[:height, :width])
            frame = av.VideoFrame.from_ndarray(even, format="rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _channels_last(frames: Any) -> Pixels:
    """Convert [frames, 3, height, width] to [frames, height, width, 3].

    Frames of the latter shape may be any object that iterates over them.
    """
    # Importing torch to recognise a tensor would take seconds.
    array = frames.numpy() if hasattr(frames, "numpy") else frames
    if array.ndim != 4 or array.dtype != np.uint8 or 3 not in (array.shape[1], array.shape[3]):
        raise UsageError(
            f"frames must be uint8 [frames, 3, height, width] or [frames, height, width, 3], "
            f"not {array.dtype} {list(array.shape)}"
        )
    if len(array) == 0 or min(array.shape[2], *array.shape[1:]) < 2:
        raise UsageError(f"frames must have at least 2x2 pixels, not {list(array.shape)}")
    images: Pixels = array if array.shape[3] == 3 else array.transpose(0, 2, 3, 1)
    return images


def _even_sides(height: int, width: int) -> tuple[int, int]:
    """Round sides down to even numbers, as 4:2:0 chroma needs them."""
    return max(2, height - height % 2), max(2, width - width % 2)


class ClipEncoder:
    """Encodes spans of videos, one after the other, into an open MP4 with H.264 and AAC.

    The MP4 has the size of its first frame, at most ``max_size`` (longer and shorter side). Frames
    of another size get black borders.

    audio: format of the audio; None for an MP4 without audio.
    """

    def __init__(
        self,
        container: Any,
        audio: AudioFormat | None,
        *,
        rate: Fraction | int = 30,
        max_size: tuple[int, int] | None = None,
    ) -> None:
        self.container = container
        self.audio_format = audio
        self.rate = rate
        self.max_size = max_size
        self._video: Any = None
        self._audio: Any = None
        self._seconds = Fraction(0)
        self._num_samples = 0
        self._last_tick = -1

    def add_video(self, source: VideoSource, first: Fraction, last: Fraction) -> None:
        """Add the ticks ``[first, last)`` of a video, from the frame shown at ``first``."""
        begin: int | None = None
        end = short_side = 0
        for time, duration, frame in frames_between(source, first, last):
            if begin is None:
                begin = time
                # The size on display: rotated, with square pixels.
                _, height, width = source.scaled_pixels(frame, min(frame.width, frame.height)).shape
                short_side = self.fitted_side(width, height)
            pixels = source.scaled_pixels(frame, short_side)
            self.add_frame(pixels, (time - begin) * source.tick, duration * source.tick)
            end = time + duration
        if begin is None:
            raise VideoDecodeError(
                source.path, "no frame between the start and the end of the clip"
            )
        samples = None
        if self.audio_format is not None:
            span = source.seconds(begin), source.seconds(end)
            # Damaged audio must not prevent saving the video.
            samples = decode_audio(source.path, *span, self.audio_format, accept_damage=True)
        self.end_span((end - begin) * source.tick, samples)

    def add_frame(self, pixels: Pixels, seconds: Fraction, duration: Fraction) -> None:
        """Encode RGB ``[3, height, width]``, shown ``seconds`` after the start of the span."""
        if self._video is None:
            self._add_streams(pixels.shape[1], pixels.shape[2])
        height, width = self._video.height, self._video.width
        pixels = pixels[:, :height, :width]
        rows, columns = pixels.shape[1:]
        y, x = (height - rows) // 2, (width - columns) // 2
        canvas = np.zeros((height, width, 3), np.uint8)
        canvas[y : y + rows, x : x + columns] = pixels.transpose(1, 2, 0)
        tick = max(round((self._seconds + seconds) * TICKS), self._last_tick + 1)
        frame = pyav().VideoFrame.from_ndarray(canvas, format="rgb24")
        frame.pts, frame.duration = tick, max(1, round(duration * TICKS))
        frame.time_base = Fraction(1, TICKS)
        self._last_tick = tick
        self.container.mux(self._video.encode(frame))

    def fitted_side(self, width: int, height: int) -> int:
        """Return the shorter side to which a frame is scaled, to fit into the MP4 or its limit."""
        if self._video is not None:
            limits = (self._video.width, self._video.height)
        elif self.max_size is None:
            return min(width, height)
        else:
            limits = self.max_size if width >= height else self.max_size[::-1]
        scale = min(Fraction(limits[0], width), Fraction(limits[1], height))
        if self._video is None:
            scale = min(scale, Fraction(1))
        return max(2, int(min(width, height) * scale))

    def _add_streams(self, height: int, width: int) -> None:
        self._video = self.container.add_stream(
            "libx264", rate=self.rate, options=dict(CLIP_OPTIONS)
        )
        self._video.height, self._video.width = _even_sides(height, width)
        self._video.pix_fmt = "yuv420p"
        self._video.time_base = self._video.codec_context.time_base = Fraction(1, TICKS)
        # Without this flag the last frame of a clip has no duration.
        self._video.codec_context.flags |= FRAME_DURATION
        # All streams must exist before the first packet.
        if self.audio_format is not None:
            rate, layout = self.audio_format
            self._audio = self.container.add_stream("aac", rate=rate, layout=layout)

    def end_span(self, seconds: Fraction, samples: Samples | None) -> None:
        """End a span: add its audio, and silence for audio that is missing."""
        self._seconds += seconds
        if self._audio is None or self.audio_format is None:
            return
        rate, layout = self.audio_format
        count = round(self._seconds * rate) - self._num_samples
        channels = np.zeros((self.audio_format.channels, max(count, 0)), np.float32)
        if samples is not None:
            channels[:, : samples.shape[1]] = samples[:, : channels.shape[1]]
        for start in range(0, channels.shape[1], AUDIO_FRAME):
            chunk = np.ascontiguousarray(channels[:, start : start + AUDIO_FRAME])
            frame = pyav().AudioFrame.from_ndarray(chunk, format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, self._num_samples
            frame.time_base = Fraction(1, rate)
            self._num_samples += chunk.shape[1]
            self.container.mux(self._audio.encode(frame))

    def finish(self) -> None:
        """Encode the frames and samples that the encoders hold back."""
        for stream in (self._video, self._audio):
            if stream is not None:
                self.container.mux(stream.encode(None))


def frames_between(
    source: VideoSource, first: Fraction, last: Fraction
) -> Iterator[tuple[int, int, Any]]:
    """Yield time, duration and frame for the frame shown at ``first`` and all later ones."""
    tolerance = BORDER_TOLERANCE / source.tick
    previous: tuple[int, Any] | None = None
    for time, frame in decode_from(source, first + tolerance):
        if time >= last - tolerance:
            break
        if previous is not None and time > first + tolerance:
            yield previous[0], time - previous[0], previous[1]
        previous = (time, frame)
    if previous is not None:
        yield previous[0], max(round(last) - previous[0], 1), previous[1]


def write_clip(
    source: str | Path,
    target: str | Path | io.BytesIO,
    start: float,
    end: float,
    *,
    max_size: tuple[int, int] | None = None,
) -> None:
    """Write ``[start, end)`` seconds with audio to an MP4 that plays from its first frame.

    max_size: maximum longer and shorter side in pixels.
    """
    with open_video(source) as video:
        span = clip_window(video, (start, end))
        rate = video.stream.average_rate or 25
        with open_mp4(target) as container:
            encoder = ClipEncoder(container, _audio_format(video), rate=rate, max_size=max_size)
            encoder.add_video(video, *span)
            encoder.finish()


def _audio_format(source: VideoSource) -> AudioFormat | None:
    """Return the audio format of a clip of a file; None if the file has no audio."""
    stream = next(iter(source.container.streams.audio), None)
    if stream is None or stream.codec_context is None:
        return None
    rate = stream.rate if stream.rate in RATES else RATES[-1]
    return AudioFormat(rate, "mono" if stream.channels == 1 else "stereo")


@contextlib.contextmanager
def open_mp4(target: str | Path | io.BytesIO) -> Iterator[Any]:
    """Open an MP4 for writing, with its index at the front; a file is removed if the block fails.

    To move the content behind the index, FFmpeg opens the output again and reads it.
    """
    options = {"movflags": "+faststart"}
    if isinstance(target, io.BytesIO):
        arguments = {"io_open": lambda url, flags, options: io.BytesIO(target.getvalue())}
        with pyav().open(target, "w", format="mp4", options=options, **arguments) as container:
            yield container
        return
    try:
        with pyav().open(str(target), "w", format="mp4", options=options) as container:
            yield container
    except BaseException:
        Path(target).unlink(missing_ok=True)
        raise
