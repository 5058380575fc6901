"""Frames of a span of a file for people and assistants to look at; runs in a confined worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eaglenet.video.containers import is_image
from eaglenet.video.images import open_image, scale_short_side
from eaglenet.video.pixels import Pixels
from eaglenet.video.source import open_video
from eaglenet.video.windows import frame_at


class FramesRequest(NamedTuple):
    """Times in seconds of a file, and the longer side of the frames in pixels at most.

    With ``is_short_side``, ``side`` is the shorter side of the frames.
    """

    path: str
    seconds: tuple[float, ...]
    side: int
    is_short_side: bool = False


def read_frame_images(request: FramesRequest) -> list[Pixels]:
    """Decode the frames shown at some times, upright, ``[3, height, width]``; an image once."""
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
    """Shorter side of a frame; a longer side that is less than requested stays as it is."""
    if request.is_short_side:
        return request.side
    longer = max(width, height)
    return max(1, min(width, height) * min(request.side, longer) // longer)


def check_frame_images(request: FramesRequest, frames: Sequence[Pixels]) -> None:
    """Raise ``ValueError`` if a worker's frames are not what was asked for."""
    if not 1 <= len(frames) <= len(request.seconds):
        raise ValueError(f"{len(frames)} frames for {len(request.seconds)} times")
    # Pixels that are not square make a frame longer than its stored sides say.
    limit = 4 * request.side
    for frame in frames:
        if frame.ndim != 3 or frame.shape[0] != 3 or not all(0 < n <= limit for n in frame.shape):
            raise ValueError(f"a frame of shape {frame.shape}")


def spread(start: float, end: float, count: int) -> tuple[float, ...]:
    """Return the middles of ``count`` equal parts of a span.

    >>> spread(0.0, 6.0, 3)
    (1.0, 3.0, 5.0)
    """
    step = (end - start) / count
    return tuple(start + step * (number + 0.5) for number in range(count))
