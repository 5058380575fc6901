"""Frames of files for people, assistants and vision models, and decoding of queries.

:func:`read_frame_images` and :func:`decode_sheet` run in a confined worker and return pixels.
:func:`draw_sheet` runs in the calling process, so a file cannot choose the bytes of the JPEG.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.containers import is_image
from eaglenet.video.decoding import (
    QueryRequest,
    check_query,
    decode_query,
    decode_windows,
)
from eaglenet.video.images import (
    encode_jpeg,
    open_image,
    pixels_to_image,
    scale_short_side,
    tile_images,
)
from eaglenet.video.input_file import SharedFile, share_file
from eaglenet.video.inputs import FrameBatch
from eaglenet.video.limits import MAX_PIXELS, Limits
from eaglenet.video.pixels import MAX_ASPECT, Pixels
from eaglenet.video.sampling import Window
from eaglenet.video.source import open_video
from eaglenet.video.windows import frame_at
from eaglenet.video.worker import IsolatedProcess

COLUMNS, ROWS = 3, 2
FRAME_SIDE = 256
"""Shorter side of a frame in pixels."""
IMAGE_SIDE = 512
"""Shorter side of an image, which is alone on its sheet."""
MAX_SHAPE = 4
"""Maximum longer side of a frame, as a multiple of the shorter side above."""
MIN_SECONDS = 1.0
"""Minimum length of the span from which a sheet takes frames."""
_SPEC = FrameSpec(num_frames=1, size=16)


class FramesRequest(NamedTuple):
    """Times in a file, in seconds, and the size of their frames.

    side: maximum longer side in pixels; with ``is_short_side``, the shorter side.
    """

    path: str
    seconds: tuple[float, ...]
    side: int
    is_short_side: bool = False


def read_frame_images(request: FramesRequest) -> list[Pixels]:
    """Return the frames shown at the times, upright, ``[3, height, width]``; an image once."""
    if is_image(request.path):
        image = open_image(request.path)
        return [scale_short_side(image, _short_side(image.width, image.height, request))]
    with open_video(request.path, threads=1) as source:
        frames = []
        for seconds in request.seconds:
            frame = frame_at(source, seconds)
            short_side = _short_side(frame.width, frame.height, request)
            frames.append(source.scaled_pixels(frame, short_side))
        return frames


def _short_side(width: int, height: int, request: FramesRequest) -> int:
    """Return the shorter side of a frame; frames smaller than requested keep their size."""
    if request.is_short_side:
        return request.side
    longer = max(width, height)
    return max(1, min(width, height) * min(request.side, longer) // longer)


def check_frame_images(request: FramesRequest, frames: Sequence[Pixels]) -> None:
    """Raise ``ValueError`` if the frames of a worker do not fit the request."""
    if not 1 <= len(frames) <= len(request.seconds):
        raise ValueError(f"{len(frames)} frames for {len(request.seconds)} times")
    # On display, a frame whose pixels are not square may be longer than its stored sides. A shorter
    # side does not limit the longer one of a panorama.
    limit = (MAX_ASPECT if request.is_short_side else 4) * request.side
    for frame in frames:
        if frame.ndim != 3 or frame.shape[0] != 3 or not all(0 < n <= limit for n in frame.shape):
            raise ValueError(f"a frame of shape {frame.shape}")


def segment_middles(start: float, end: float, count: int) -> tuple[float, ...]:
    """Return the middles of ``count`` equal segments of a span.

    >>> segment_middles(0.0, 6.0, 3)
    (1.0, 3.0, 5.0)
    """
    step = (end - start) / count
    return tuple(start + step * (number + 0.5) for number in range(count))


@dataclass(frozen=True)
class Span:
    """Seconds ``start`` to ``end`` of a file."""

    path: str
    start: float
    end: float


def decode_sheet(span: Span) -> list[Pixels]:
    """Return evenly spaced, uncropped frames of a span; of an image, the image."""
    if is_image(span.path):
        count, side = 1, IMAGE_SIDE
    else:
        count, side = COLUMNS * ROWS, FRAME_SIDE
    # A short span is extended at its start, since a window must begin before the end of the file.
    start = max(min(span.start, span.end - MIN_SECONDS), 0.0)
    step = (span.end - start) / count
    windows = [(start + number * step, start + (number + 1) * step) for number in range(count)]
    videos = decode_windows(
        span.path, _SPEC, windows, threads=1, skip_damaged=True, thumbnail_size=side
    )
    return [video.thumbnail for video in videos if video.thumbnail is not None]


def check_sheet(_request: object, frames: Sequence[Pixels]) -> None:
    """Raise ``ValueError`` if the frames of a worker do not fit a sheet."""
    if len(frames) > COLUMNS * ROWS:
        raise ValueError(f"{len(frames)} frames for a sheet")
    check_frame_pixels(frames)


def check_frame_pixels(frames: Sequence[Pixels]) -> None:
    """Raise ``ValueError`` if frames of a worker are not images of an allowed size."""
    for pixels in frames:
        if pixels.ndim != 3 or len(pixels) != 3 or not 0 < pixels[0].size <= MAX_PIXELS:
            raise ValueError(f"frames of shape {pixels.shape}")


def draw_sheet(frames: Sequence[Pixels]) -> bytes:
    """Return a JPEG of frames in rows; raise ``ValueError`` if there are none."""
    if not frames or any(frame.ndim != 3 or 0 in frame.shape for frame in frames):
        raise ValueError("no frames")
    images = [pixels_to_image(frame) for frame in frames[: COLUMNS * ROWS]]
    side = IMAGE_SIDE if len(images) == 1 else FRAME_SIDE
    for image in images:
        image.thumbnail((MAX_SHAPE * side, MAX_SHAPE * side))
    return encode_jpeg(tile_images(images, min(COLUMNS, len(images))), quality=85)


class QueryDecoder:
    """Decodes queries in confined processes, which start on first use and end with ``close``."""

    def __init__(self) -> None:
        limits = Limits()
        self._clips = IsolatedProcess(decode_query, limits.memory, limits.seconds, check_query)
        self._frames = IsolatedProcess(
            read_frame_images, limits.memory, limits.seconds, check_frame_images
        )

    def start(self) -> None:
        """Start the process for images and videos; do not wait until it is ready."""
        self._clips.start()

    def close(self) -> None:
        self._clips.close()
        self._frames.close()

    def decode_image(self, path: str | Path, spec: FrameSpec) -> FrameBatch:
        """Decode an image, regardless of its file name, to a clip that repeats it."""
        try:
            with _open_file(path) as file:
                return FrameBatch.of(
                    self._clips(QueryRequest(file.path, spec, is_image=True), file)
                )
        except UsageError as error:
            if str(path) in str(error):
                raise
            raise UsageError(f"{path}: {error}") from None

    def decode_video(
        self, video: str | Path | SharedFile, spec: FrameSpec, window: Window | None = None
    ) -> FrameBatch:
        """Decode a video, or a window of it, to a clip; an image is a video of one frame."""
        with _open_file(video) as file:
            request = QueryRequest(file.path, spec, is_image=False, window=window)
            try:
                return FrameBatch.of(self._clips(request, file))
            except UsageError as error:
                raise VideoDecodeError(file.path, str(error)) from None

    def read_frame(self, video: str | Path | SharedFile, seconds: float, side: int) -> Pixels:
        """Return the frame at a time, upright, with the shorter side ``side``."""
        with _open_file(video) as file:
            request = FramesRequest(file.path, (seconds,), side, is_short_side=True)
            try:
                (frame,) = self._frames(request, file)
            except UsageError as error:
                raise VideoDecodeError(file.path, str(error)) from None
        pixels: Pixels = frame
        return pixels


@contextlib.contextmanager
def _open_file(file: str | Path | SharedFile) -> Iterator[SharedFile]:
    """Yield an open file; close it unless it was open already."""
    if isinstance(file, SharedFile):
        yield file
        return
    with contextlib.closing(share_file(file)) as own_file:
        yield own_file
