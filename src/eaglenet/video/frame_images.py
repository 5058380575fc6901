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
    """Times in seconds of a file, and the longer side of the frames in pixels."""

    path: str
    seconds: tuple[float, ...]
    side: int


def read_frame_images(request: FramesRequest) -> list[Pixels]:
    """Decode the frames shown at some times, upright, ``[3, height, width]``; an image once."""
    if is_image(request.path):
        image = open_image(request.path)
        return [scale_short_side(image, _short_side(image.width, image.height, request.side))]
    with open_video(request.path, threads=1) as source:
        frames = []
        for seconds in request.seconds:
            frame = frame_at(source, seconds)
            short_side = _short_side(frame.width, frame.height, request.side)
            frames.append(source.scaled_pixels(frame, short_side))
        return frames


def _short_side(width: int, height: int, side: int) -> int:
    """Shorter side of a frame whose longer side becomes ``side``, or stays if it is less."""
    return max(1, min(width, height) * min(side, max(width, height)) // max(width, height))


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
