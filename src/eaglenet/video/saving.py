"""Save a moment of a file as a video with audio, a GIF, or a sheet of frames."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.files import atomic_write
from eaglenet.video.containers import DecodingClock, is_image, pyav
from eaglenet.video.images import pixels_to_image, tile_images
from eaglenet.video.input_file import InputFile, SharedFile
from eaglenet.video.limits import Limits
from eaglenet.video.pixels import Pixels
from eaglenet.video.reader import decode_through
from eaglenet.video.sampling import clip_window
from eaglenet.video.source import VideoSource, open_video
from eaglenet.video.worker import IsolatedProcess
from eaglenet.video.writing import frames_between, open_mp4, write_clip

MAX_EARLY_START = 0.25
"""Maximum seconds by which a copied clip, which is not re-encoded, may begin too early."""
COPIED_VIDEO = ("h264", "hevc", "av1", "mpeg4")
COPIED_AUDIO = ("aac", "mp3", "ac3", "eac3", "opus")
"""Codecs that players accept in an MP4."""
COPIED_FROM = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
"""Containers whose packets have display times."""
IN_BAND_TAGS = ("hev1", "dvhe")
"""Tags of HEVC whose parameter sets may be among the frames instead of in the header."""
GIF_RATE, GIF_SIDE = 8, 240
"""Frames per second, and shorter side in pixels."""
SHEET_COLUMNS, SHEET_ROWS, SHEET_SIDE = 4, 3, 180
BROWSER_SIZE = (1280, 720)
"""Maximum longer and shorter side in pixels of a moment for browsers."""
MAX_BYTES = 10**9
"""Maximum bytes of a saved moment."""
MAX_SECONDS = 3600.0
"""Time limit for encoding a moment, in seconds."""
MAX_STEM_BYTES = 180
"""Maximum bytes of a file's name in that of its moments; systems limit names to 255 bytes."""


class MomentRequest(NamedTuple):
    """Seconds ``[start, end)`` of a file, to save in a format."""

    path: str
    start: float
    end: float
    format: str = "video"


def encode_moment(request: MomentRequest) -> Pixels:
    """Return the bytes of a file with the moment; runs in a worker."""
    return _content(request, FORMATS[request.format][1])


def encode_for_browsers(request: MomentRequest) -> Pixels:
    """Return the bytes of an MP4 that every browser plays; runs in a worker."""
    span = request.start, request.end
    return _content(
        request, lambda _, output: write_clip(request.path, output, *span, max_size=BROWSER_SIZE)
    )


def _content(request: MomentRequest, encode: Callable[[MomentRequest, io.BytesIO], None]) -> Pixels:
    output = io.BytesIO()
    encode(request, output)
    if output.getbuffer().nbytes > MAX_BYTES:
        raise VideoDecodeError(request.path, "the moment takes more than 1 GB; save a shorter one")
    return np.frombuffer(output.getbuffer(), np.uint8)


def encode_video(request: MomentRequest, output: io.BytesIO) -> None:
    """Write a moment with audio as an MP4.

    Streams are copied if an MP4 can hold them and a keyframe lies at most ``MAX_EARLY_START``
    before the start. Otherwise they are re-encoded and begin exactly at the start.
    """
    with open_video(request.path) as video:
        first, last = clip_window(video, (request.start, request.end))
        keyframe = _near_keyframe(video, first)
        if keyframe is not None:
            with contextlib.suppress(pyav().FFmpegError, ValueError):
                with open_mp4(output) as container:
                    _copy(video, container, keyframe, last)
                return
            output.seek(0)
            output.truncate()
    write_clip(request.path, output, request.start, request.end)


def _near_keyframe(source: VideoSource, first: Fraction) -> int | None:
    """Return the time of the keyframe to copy from; None if copying is not possible."""
    codec, container = source.stream.codec_context.name, source.container.format.name
    audio = source.container.streams.audio
    if codec not in COPIED_VIDEO or container not in COPIED_FROM:
        return None
    if audio and audio[0].codec_context.name not in COPIED_AUDIO:
        return None
    keyframes = [time for time in source.keyframes() or () if time <= first]
    if not keyframes or (first - keyframes[-1]) * source.tick > MAX_EARLY_START:
        return None
    # Some files mark frames as keyframes that cannot be decoded without earlier ones.
    time, _ = next(decode_through(source, keyframes[-1]), (None, None))
    return keyframes[-1] if time == keyframes[-1] else None


def _copy(source: VideoSource, container: Any, begin: int, last: Fraction) -> None:
    """Copy packets from the keyframe at ``begin`` on, which gets time 0."""
    with contextlib.closing(source.reopen()) as reader:
        streams = [reader.stream, *reader.container.streams.audio[:1]]
        outputs = {stream.index: container.add_stream_from_template(stream) for stream in streams}
        context = reader.stream.codec_context
        if context.name == "hevc" and context.codec_tag not in IN_BAND_TAGS:
            # Players of Apple refuse the default of FFmpeg, hev1.
            outputs[reader.stream.index].codec_context.codec_tag = "hvc1"
        zero, end = begin * source.tick, last * source.tick
        reader.container.seek(begin, stream=reader.stream)
        open_streams = set(outputs)
        clocks = {stream.index: DecodingClock(stream) for stream in streams}
        for packet in reader.container.demux(streams):
            if packet.pts is None:
                continue
            number, tick = packet.stream.index, Fraction(packet.time_base)
            # The first frame past the end closes its stream: later packets that are shown before
            # it refer to it.
            if packet.pts * tick >= end:
                open_streams.discard(number)
                if not open_streams:
                    break
            elif packet.pts * tick >= zero and number in open_streams:
                shift, dts = round(zero / tick), clocks[number].time(packet)
                if dts is None:
                    continue
                packet.pts, packet.dts = packet.pts - shift, dts - shift
                packet.stream = outputs[number]
                container.mux(packet)


def encode_gif(request: MomentRequest, output: io.BytesIO) -> None:
    """Write a moment as a GIF with ``GIF_RATE`` frames per second."""
    count = max(1, round((request.end - request.start) * GIF_RATE))
    first, *rest = map(pixels_to_image, _sample_frames(request, count, GIF_SIDE))
    first.save(output, "GIF", save_all=True, append_images=rest, duration=1000 // GIF_RATE, loop=0)


def encode_sheet(request: MomentRequest, output: io.BytesIO) -> None:
    """Write frames of a moment, arranged in rows, as one JPEG."""
    count = SHEET_COLUMNS * SHEET_ROWS
    images = list(map(pixels_to_image, _sample_frames(request, count, SHEET_SIDE)))
    tile_images(images, SHEET_COLUMNS).save(output, "JPEG", quality=88)


def _sample_frames(request: MomentRequest, count: int, side: int) -> Iterator[Pixels]:
    """Yield uncropped frames at the middles of ``count`` equal segments."""
    with open_video(request.path) as video:
        first, last = clip_window(video, (request.start, request.end))
        targets = [first + (last - first) * (2 * index + 1) / (2 * count) for index in range(count)]
        for time, duration, frame in frames_between(video, first, last):
            while targets and time + duration > targets[0]:
                targets.pop(0)
                yield video.scaled_pixels(frame, min(side, frame.height, frame.width))


FORMATS: dict[str, tuple[str, Callable[[MomentRequest, io.BytesIO], None]]] = {
    "video": (".mp4", encode_video),
    "gif": (".gif", encode_gif),
    "sheet": (".jpg", encode_sheet),
}
"""File extension and function of each format."""


def moment_extension(format: str) -> str:
    """Return the extension of files in one of :data:`FORMATS`."""
    if format not in FORMATS:
        raise UsageError(f"cannot save clips as {format!r}; use {', '.join(FORMATS)}")
    return FORMATS[format][0]


def moment_name(source: Path, start: float, end: float, format: str = "video") -> str:
    """Return a file name made of the source and the time; an image keeps its name."""
    extension = moment_extension(format)
    if is_image(source):
        return source.name
    name = source.stem[:100].encode(errors="surrogateescape")[:MAX_STEM_BYTES]
    stem = name.decode(errors="ignore")
    return f"{stem} {_time_label(start)}-{_time_label(end)}{extension}"


class MomentSaver:
    """Saves moments of files, decoded in a confined process."""

    def __init__(
        self,
        encode: Callable[[MomentRequest], Pixels] = encode_moment,
        seconds: float = MAX_SECONDS,
    ) -> None:
        self._process = IsolatedProcess(encode, Limits().memory, seconds, threads=True)

    def __enter__(self) -> MomentSaver:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.close()

    def read(self, file: SharedFile, start: float, end: float, format: str = "video") -> bytes:
        """Return the bytes of a file with ``[start, end)`` seconds of an open video."""
        try:
            return bytes(self._process(MomentRequest(file.path, start, end, format), file))
        except UsageError as error:
            raise VideoDecodeError(file.path, str(error)) from None

    def save(
        self, source: SharedFile, target: Path, start: float, end: float, format: str = "video"
    ) -> None:
        """Save ``[start, end)`` seconds of an open file; an image is copied."""
        if is_image(source.path):
            content = _read_image(source, target)
        else:
            content = self.read(source, start, end, format)
        try:
            with atomic_write(target) as partial:
                partial.write_bytes(content)
        except OSError as error:
            raise UsageError(f"{target}: cannot be written: {error.strerror}") from error


def _read_image(source: SharedFile, target: Path) -> bytes:
    try:
        descriptor = source.require_descriptor()
        if target.exists() and os.path.samestat(target.stat(), os.fstat(descriptor)):
            raise VideoDecodeError(source.path, "is already in that folder; choose another folder")
        return InputFile(os.dup(descriptor), source.path).read()
    except OSError as error:
        raise VideoDecodeError(source.path, f"cannot be copied ({error.strerror})") from error


def _time_label(seconds: float) -> str:
    """Format a time for a file name.

    >>> _time_label(3725.54)
    '1h02m05.5s'
    """
    minutes, rest = divmod(round(seconds * 10), 600)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m{rest / 10:04.1f}s" if hours else f"{minutes}m{rest / 10:04.1f}s"
