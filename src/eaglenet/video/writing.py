"""Encode frames and audio into open output containers."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.containers import pyav
from eaglenet.video.picking import decode_through
from eaglenet.video.pixels import Pixels
from eaglenet.video.sampling import BORDER_TOLERANCE
from eaglenet.video.source import VideoSource

QUIET = {"libx265": {"x265-params": "log-level=none"}}
"""Options for encoders that would write to the terminal."""

FRAME_DURATION = 1 << 8
"""AV_CODEC_FLAG_FRAME_DURATION: write frame durations to the container."""

CLIP_OPTIONS = {"crf": "20", "preset": "veryfast"}


def encode(
    container: Any,
    frames: Any,
    fps: Fraction,
    codec: str,
    options: Mapping[str, str] | None,
    frame_type: Any,
) -> None:
    """Encode uint8 ``frames`` into an open output container."""
    images = channels_last(frames)
    height, width = images.shape[1:3]
    stream = container.add_stream(codec, rate=fps)
    stream.options = {**QUIET.get(codec, {}), **(options or {})}
    # 4:2:0 chroma needs even sides.
    stream.width, stream.height = width - width % 2, height - height % 2
    stream.pix_fmt = "yuv420p"
    for number, image in enumerate(images):
        even = np.ascontiguousarray(image[: stream.height, : stream.width])
        frame = frame_type.from_ndarray(even, format="rgb24")
        frame.pts = number
        frame.time_base = 1 / fps
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def channels_last(frames: Any) -> Pixels:
    """Convert [frames, 3, height, width] to [frames, height, width, 3].

    Input of the latter shape may be any object that yields one frame after the other.
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


class _Content(io.RawIOBase):
    """Reads a buffer that is being written, from a position of its own."""

    def __init__(self, buffer: io.BytesIO) -> None:
        self._buffer = buffer
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        end = None if size < 0 else self._position + size
        with self._buffer.getbuffer() as content:
            chunk = bytes(content[self._position : end])
        self._position += len(chunk)
        return chunk

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        sizes = {os.SEEK_CUR: self._position, os.SEEK_END: self._buffer.getbuffer().nbytes}
        self._position = offset + sizes.get(whence, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


@contextlib.contextmanager
def open_mp4(target: str | Path | io.BytesIO) -> Iterator[Any]:
    """Open an MP4 for writing, with its index at the front; a file is removed if the block fails.

    FFmpeg opens what it has written a second time, to move it behind the index.
    """
    options = {"movflags": "+faststart"}
    if isinstance(target, io.BytesIO):
        arguments = {"io_open": lambda url, flags, options: _Content(target)}
        with pyav().open(target, "w", format="mp4", options=options, **arguments) as container:
            yield container
        return
    try:
        with pyav().open(str(target), "w", format="mp4", options=options) as container:
            yield container
    except BaseException:
        Path(target).unlink(missing_ok=True)
        raise


def encode_clip(
    source: VideoSource,
    container: Any,
    first: Fraction,
    last: Fraction,
    add_audio: Callable[[Any], Callable[[], None]] | None = None,
) -> None:
    """Re-encode the ticks ``[first, last)``, so that the clip begins exactly at its first frame.

    ``add_audio`` adds a stream to the container and returns a function that fills it.
    """
    stream = fill = None
    begin = 0
    for time, duration, frame in frames_between(source, first, last):
        pixels = source.scaled_pixels(frame, min(frame.width, frame.height)).transpose(1, 2, 0)
        if stream is None:
            height, width = (side - side % 2 for side in pixels.shape[:2])
            stream = _clip_stream(container, source, height, width)
            # All streams must exist before the first packet.
            fill = add_audio(container) if add_audio is not None else None
            begin = time
        pixels = np.ascontiguousarray(pixels[: stream.height, : stream.width])
        output = type(frame).from_ndarray(pixels, format="rgb24")
        output.pts, output.duration, output.time_base = time - begin, duration, source.tick
        container.mux(stream.encode(output))
    if stream is None:
        raise VideoDecodeError(source.path, "no frame between the start and the end of the clip")
    container.mux(stream.encode(None))
    if fill is not None:
        fill()


def _clip_stream(container: Any, source: VideoSource, height: int, width: int) -> Any:
    rate = source.stream.average_rate or 25
    stream = container.add_stream("libx264", rate=rate, options=dict(CLIP_OPTIONS))
    stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
    stream.time_base = stream.codec_context.time_base = source.tick
    # Otherwise the last frame of a clip has no duration.
    stream.codec_context.flags |= FRAME_DURATION
    return stream


def frames_between(
    source: VideoSource, first: Fraction, last: Fraction
) -> Iterator[tuple[int, int, Any]]:
    """Yield time, duration and frame for the frame shown at ``first`` and all later ones."""
    tolerance = BORDER_TOLERANCE / source.tick
    shown: tuple[int, Any] | None = None
    for time, frame in decode_through(source, int(first)):
        if time >= last - tolerance:
            break
        if shown is not None and time > first + tolerance:
            yield shown[0], time - shown[0], shown[1]
        shown = (time, frame)
    if shown is not None:
        yield shown[0], max(round(last) - shown[0], 1), shown[1]


RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
"""Sample rates that are kept; others become the last."""
AUDIO_FRAME = 1024
"""Samples per AAC frame."""
Samples = NDArray[np.float32]
"""``[channels, samples]``."""


class ClipAudio:
    """Audio samples of a clip."""

    def __init__(self, samples: Samples, rate: int, layout: str) -> None:
        self.samples = samples
        self.rate = rate
        self.layout = layout

    def write(self, container: Any) -> Callable[[], None]:
        """Add an audio stream and return a function that fills it."""
        stream = container.add_stream("aac", rate=self.rate, layout=self.layout)

        def fill() -> None:
            for start in range(0, self.samples.shape[1], AUDIO_FRAME):
                chunk = np.ascontiguousarray(self.samples[:, start : start + AUDIO_FRAME])
                frame = pyav().AudioFrame.from_ndarray(chunk, format="fltp", layout=self.layout)
                frame.sample_rate, frame.pts = self.rate, start
                frame.time_base = Fraction(1, self.rate)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))

        return fill


def read_audio(source: VideoSource, first: Fraction, last: Fraction) -> ClipAudio | None:
    """Read the first audio stream between two ticks of the video; None if there is none.

    Samples are placed by their times, so that gaps stay silent and audio does not drift.
    """
    begin, end = first * source.tick, last * source.tick
    with contextlib.closing(source.reopened()) as again:
        streams = again.container.streams.audio
        if not streams or streams[0].codec_context is None:
            return None
        stream = streams[0]
        rate = stream.rate if stream.rate in RATES else RATES[-1]
        layout = "mono" if stream.channels == 1 else "stereo"
        samples = np.zeros((1 if layout == "mono" else 2, int((end - begin) * rate)), np.float32)
        resampler = pyav().AudioResampler(format="fltp", layout=layout, rate=rate)
        # Damaged audio must not prevent saving the video.
        with contextlib.suppress(pyav().FFmpegError):
            again.container.seek(int(max(begin - 1, Fraction(0)) * 10**6))
            for frame in again.container.decode(stream):
                if frame.pts is None:
                    continue
                if frame.pts * Fraction(frame.time_base) >= end:
                    break
                for chunk in resampler.resample(frame):
                    offset = int((chunk.pts * Fraction(chunk.time_base) - begin) * rate)
                    _copy_samples(samples, chunk.to_ndarray(), offset)
        return ClipAudio(samples, rate, layout)


def _copy_samples(samples: Samples, chunk: Samples, offset: int) -> None:
    """Copy ``chunk`` to ``samples`` from ``offset`` on, clipped at both ends."""
    chunk = chunk[:, max(0, -offset) :]
    target = samples[:, max(0, offset) : max(0, offset) + chunk.shape[1]]
    target[:] = chunk[:, : target.shape[1]]
