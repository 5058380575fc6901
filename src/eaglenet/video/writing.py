"""Write videos: frames in memory to files, and moments of files as MP4, GIF or sheet of frames."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.audio import AudioFormat, Samples, decode_audio
from eaglenet.video.containers import is_image, pyav
from eaglenet.video.images import pixels_to_image, tile_images
from eaglenet.video.pixels import Pixels
from eaglenet.video.reader import decode_through
from eaglenet.video.sampling import BORDER_TOLERANCE, clip_window
from eaglenet.video.source import VideoSource, open_video

QUIET = {"libx265": {"x265-params": "log-level=none"}}
"""Options for encoders that would write to the terminal."""
FRAME_DURATION = 1 << 8
"""AV_CODEC_FLAG_FRAME_DURATION: write frame durations to the container."""
CLIP_OPTIONS = {"crf": "20", "preset": "veryfast"}
TICKS = 90_000
"""Ticks per second of the video stream of a clip."""
RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
"""Sample rates that a clip keeps; others become the last."""
AUDIO_FRAME = 1024
"""Samples per AAC frame."""
MAX_EARLY_START = 0.25
"""Seconds by which a clip that is copied, not re-encoded, may begin too early."""
COPIED_VIDEO = ("h264", "hevc", "av1", "mpeg4")
COPIED_AUDIO = ("aac", "mp3", "ac3", "eac3", "opus")
"""Codecs that players accept in an MP4."""
COPIED_FROM = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
"""Containers whose packets have display times."""
GIF_RATE, GIF_SIDE = 8, 240
"""Frames per second, and their shorter side in pixels."""
SHEET_COLUMNS, SHEET_ROWS, SHEET_SIDE = 4, 3, 180


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
            f"unknown video codec {codec!r}; give for example libx264, libx265 or libvpx-vp9"
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


def _even_sides(height: int, width: int) -> tuple[int, int]:
    """Return the even sides that 4:2:0 chroma needs."""
    return max(2, height - height % 2), max(2, width - width % 2)


class ClipEncoder:
    """Encodes spans of videos, one after the other, into an open MP4 with H.264 and AAC.

    The MP4 has the size of its first frame, at most ``max_size`` (longer and shorter side); later
    frames of another size get black borders.

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
        """Add the ticks ``[first, last)`` of a video, exactly from the frame shown at ``first``."""
        begin: int | None = None
        end = short_side = 0
        for time, duration, frame in frames_between(source, first, last):
            if begin is None:
                begin = time
                # As it is displayed: rotated, and with square pixels.
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
        """Encode RGB ``[3, height, width]``, shown from ``seconds`` of the span on."""
        if self._video is None:
            self._add_streams(pixels.shape[1], pixels.shape[2])
        height, width = self._video.height, self._video.width
        pixels = pixels[:, :height, :width]
        rows, columns = pixels.shape[1:]
        top, left = (height - rows) // 2, (width - columns) // 2
        canvas = np.zeros((height, width, 3), np.uint8)
        canvas[top : top + rows, left : left + columns] = pixels.transpose(1, 2, 0)
        tick = max(round((self._seconds + seconds) * TICKS), self._last_tick + 1)
        frame = pyav().VideoFrame.from_ndarray(canvas, format="rgb24")
        frame.pts, frame.duration = tick, max(1, round(duration * TICKS))
        frame.time_base = Fraction(1, TICKS)
        self._last_tick = tick
        self.container.mux(self._video.encode(frame))

    def fitted_side(self, width: int, height: int) -> int:
        """Return the shorter side with which a frame fits into the MP4, at first into its limit."""
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
        # Otherwise the last frame of a clip has no duration.
        self._video.codec_context.flags |= FRAME_DURATION
        # All streams must exist before the first packet.
        if self.audio_format is not None:
            rate, layout = self.audio_format
            self._audio = self.container.add_stream("aac", rate=rate, layout=layout)

    def end_span(self, seconds: Fraction, samples: Samples | None) -> None:
        """Add the audio of a span, silence where it has none; the next one begins after it."""
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
        """Encode what the encoders still hold."""
        for stream in (self._video, self._audio):
            if stream is not None:
                self.container.mux(stream.encode(None))


def frames_between(
    source: VideoSource, first: Fraction, last: Fraction
) -> Iterator[tuple[int, int, Any]]:
    """Yield time, duration and frame for the frame shown at ``first`` and all later ones."""
    tolerance = BORDER_TOLERANCE / source.tick
    previous: tuple[int, Any] | None = None
    for time, frame in decode_through(source, int(first)):
        if time >= last - tolerance:
            break
        if previous is not None and time > first + tolerance:
            yield previous[0], time - previous[0], previous[1]
        previous = (time, frame)
    if previous is not None:
        yield previous[0], max(round(last) - previous[0], 1), previous[1]


def write_clip(source: str | Path, target: str | Path, start: float, end: float) -> None:
    """Write ``[start, end)`` seconds with audio to an MP4 that plays from its first frame."""
    with open_video(source) as video:
        span = clip_window(video, (start, end))
        rate = video.stream.average_rate or 25
        with _new_mp4(Path(target)) as container:
            encoder = ClipEncoder(container, _audio_format(video), rate=rate)
            encoder.add_video(video, *span)
            encoder.finish()


def _audio_format(source: VideoSource) -> AudioFormat | None:
    """Return the format in which a clip keeps the audio of a file; None if it has none."""
    stream = next(iter(source.container.streams.audio), None)
    if stream is None or stream.codec_context is None:
        return None
    rate = stream.rate if stream.rate in RATES else RATES[-1]
    return AudioFormat(rate, "mono" if stream.channels == 1 else "stereo")


@contextlib.contextmanager
def _new_mp4(target: Path) -> Iterator[Any]:
    """Open an MP4 for writing; it is removed if the block fails."""
    options = {"movflags": "+faststart"}
    try:
        with pyav().open(str(target), "w", format="mp4", options=options) as container:
            yield container
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def save_video(source: str | Path, target: Path, start: float, end: float) -> None:
    """Save ``[start, end)`` seconds with audio as an MP4 that plays from its first frame.

    Streams are copied if an MP4 can hold them and a keyframe is at most ``MAX_EARLY_START`` before
    the start; otherwise they are re-encoded and begin exactly there.
    """
    with open_video(source) as video:
        first, last = clip_window(video, (start, end))
        keyframe = _near_keyframe(video, first)
        if keyframe is not None:
            with contextlib.suppress(pyav().FFmpegError, ValueError), _new_mp4(target) as container:
                _copy(video, container, keyframe, last)
                return
    write_clip(source, target, start, end)


def _near_keyframe(source: VideoSource, first: Fraction) -> int | None:
    """Return the keyframe to copy from; None if copying is not possible."""
    codec, container = source.stream.codec_context.name, source.container.format.name
    audio = source.container.streams.audio
    if codec not in COPIED_VIDEO or container not in COPIED_FROM:
        return None
    if audio and audio[0].codec_context.name not in COPIED_AUDIO:
        return None
    keyframes = [time for time in source.keyframes() or () if time <= first]
    if not keyframes or (first - keyframes[-1]) * source.tick > MAX_EARLY_START:
        return None
    return keyframes[-1]


def _copy(source: VideoSource, container: Any, begin: int, last: Fraction) -> None:
    """Copy packets from a keyframe on; times count from there."""
    with contextlib.closing(source.reopened()) as reader:
        streams = [reader.stream, *reader.container.streams.audio[:1]]
        outputs = {stream.index: container.add_stream_from_template(stream) for stream in streams}
        zero, end = begin * source.tick, last * source.tick
        reader.container.seek(begin, stream=reader.stream)
        open_streams = set(outputs)
        for packet in reader.container.demux(streams):
            if packet.dts is None or packet.pts is None:
                continue
            number, tick = packet.stream.index, Fraction(packet.time_base)
            # The first frame past the end closes its stream: later packets that are shown before it
            # refer to it.
            if packet.pts * tick >= end:
                open_streams.discard(number)
                if not open_streams:
                    break
            elif packet.pts * tick >= zero and number in open_streams:
                shift = round(zero / tick)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = outputs[number]
                container.mux(packet)


def save_gif(source: str | Path, target: Path, start: float, end: float) -> None:
    """Save ``[start, end)`` seconds as a GIF with ``GIF_RATE`` frames per second."""
    count = max(1, round((end - start) * GIF_RATE))
    first, *rest = map(pixels_to_image, _sample_frames(source, start, end, count, GIF_SIDE))
    first.save(target, "GIF", save_all=True, append_images=rest, duration=1000 // GIF_RATE, loop=0)


def save_sheet(source: str | Path, target: Path, start: float, end: float) -> None:
    """Save frames of ``[start, end)`` seconds, arranged in rows, as one JPEG."""
    count = SHEET_COLUMNS * SHEET_ROWS
    images = list(map(pixels_to_image, _sample_frames(source, start, end, count, SHEET_SIDE)))
    tile_images(images, SHEET_COLUMNS).save(target, "JPEG", quality=88)


def _sample_frames(
    source: str | Path, start: float, end: float, count: int, side: int
) -> Iterator[Pixels]:
    """Yield uncropped frames at the middles of ``count`` equal segments."""
    with open_video(source) as video:
        first, last = clip_window(video, (start, end))
        targets = [first + (last - first) * (2 * index + 1) / (2 * count) for index in range(count)]
        for time, duration, frame in frames_between(video, first, last):
            while targets and time + duration > targets[0]:
                targets.pop(0)
                yield video.scaled_pixels(frame, min(side, frame.height, frame.width))


FORMATS: dict[str, tuple[str, Callable[[str | Path, Path, float, float], None]]] = {
    "video": (".mp4", save_video),
    "gif": (".gif", save_gif),
    "sheet": (".jpg", save_sheet),
}
"""Format -> file extension and function."""


def moment_name(source: Path, start: float, end: float, format: str = "video") -> str:
    """Return a file name from the source and the time; an image keeps its name."""
    if format not in FORMATS:
        raise UsageError(f"cannot save clips as {format!r}; give {', '.join(FORMATS)}")
    if is_image(source):
        return source.name
    return f"{source.stem[:100]} {_time_label(start)}-{_time_label(end)}{FORMATS[format][0]}"


def save_moment(
    source: Path, target: Path, start: float, end: float, format: str = "video"
) -> None:
    """Save ``[start, end)`` seconds of a file; an image is copied."""
    if is_image(source):
        try:
            shutil.copyfile(source, target)
        except shutil.SameFileError:
            raise VideoDecodeError(
                source, "is already in that folder; choose another folder"
            ) from None
        except OSError as error:
            raise VideoDecodeError(source, f"cannot be copied ({error.strerror})") from error
    else:
        FORMATS[format][1](source, target, start, end)


def _time_label(seconds: float) -> str:
    """Format a time for use in a file name.

    >>> _time_label(3725.54)
    '1h02m05.5s'
    """
    minutes, rest = divmod(round(seconds * 10), 600)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m{rest / 10:04.1f}s" if hours else f"{minutes}m{rest / 10:04.1f}s"
