"""Contact sheets for vision models: a few frames of a span of a file in one JPEG.

:func:`decode_sheet` runs in a confined worker and returns frames; :func:`draw_sheet` makes the JPEG
outside, so that what leaves this machine was encoded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.containers import is_image
from eaglenet.video.decoding import decode_windows
from eaglenet.video.images import encode_jpeg, pixels_to_image
from eaglenet.video.pixels import Pixels

COLUMNS, ROWS = 3, 2
FRAME_SIDE = 256
"""Shorter side of a frame in pixels."""
IMAGE_SIDE = 512
"""The same for an image, which is alone on its sheet."""
MAX_SHAPE = 4
"""Longer over shorter side of a frame at most; wider ones are scaled down."""
MIN_SECONDS = 1.0
"""Shortest span that is divided into frames."""
_SPEC = FrameSpec(num_frames=1, size=16)


@dataclass(frozen=True)
class Span:
    """Seconds ``start`` to ``end`` of a file."""

    path: str
    start: float
    end: float


def decode_sheet(span: Span) -> list[Pixels]:
    """Decode evenly spaced frames of a span, uncropped; of an image, the image."""
    if is_image(span.path):
        count, side = 1, IMAGE_SIDE
    else:
        count, side = COLUMNS * ROWS, FRAME_SIDE
    # Before rather than after it: a window must not begin after the end of the file.
    start = max(min(span.start, span.end - MIN_SECONDS), 0.0)
    step = (span.end - start) / count
    windows = [(start + number * step, start + (number + 1) * step) for number in range(count)]
    videos = decode_windows(
        span.path, _SPEC, windows, threads=1, skip_damaged=True, thumbnail_size=side
    )
    return [video.thumbnail for video in videos if video.thumbnail is not None]


def draw_sheet(frames: Sequence[Pixels]) -> bytes:
    """Arrange frames in rows, in order of time; ``ValueError`` if there is none."""
    from PIL import Image

    if not frames or any(frame.ndim != 3 or 0 in frame.shape for frame in frames):
        raise ValueError("no frames")
    images = [pixels_to_image(frame) for frame in frames[: COLUMNS * ROWS]]
    side = IMAGE_SIDE if len(images) == 1 else FRAME_SIDE
    for image in images:
        image.thumbnail((MAX_SHAPE * side, MAX_SHAPE * side))
    width, height = (max(image.size[axis] for image in images) for axis in (0, 1))
    columns = min(COLUMNS, len(images))
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height))
    for number, image in enumerate(images):
        sheet.paste(image, (number % columns * width, number // columns * height))
    return encode_jpeg(sheet, quality=85)
