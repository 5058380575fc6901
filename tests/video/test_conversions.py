"""Conversions of decoded frames to RGB: every pixel is written, with the right value.

The reference is swscale's plain conversion to packed ``rgb24``. Buffers are filled with a sentinel
before each conversion, in two runs with different sentinels, so unwritten pixels are noticed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from eaglenet.video import pixels
from eaglenet.video.pixels import ACCURATE, SCALING, Orientation, Pixels, to_short_side, to_square
from sampling import one_in

FORMATS = [
    *("yuv420p", "yuvj420p", "yuv422p", "yuv444p", "nv12", "gray", "rgb24", "bgra", "gbrp"),
    *("yuv420p10le", "yuv422p10le", "yuv444p10le", "p010le", "gray10le", "pal8"),
]
COMMON_SIZES = [(854, 480), (360, 640), (406, 720), (600, 338), (426, 240), (178, 100), (466, 262)]
SENTINELS = (0x00, 0xAB)


def make_frame(width: int, height: int, name: str) -> Any:
    """Return a frame of smooth colours and some noise, in the format ``name``."""
    generator = np.random.default_rng(width * height)
    rows, columns = np.mgrid[0:height, 0:width]
    ramps = [255 * columns / width, 255 * rows / height, 255 * (rows + columns) / (width + height)]
    image = np.stack(ramps, 2) * 0.8 + generator.uniform(0, 50, (height, width, 3))
    frame = av.VideoFrame.from_ndarray(image.clip(0, 255).astype(np.uint8), format="rgb24")
    if name == "pal8":
        indices = generator.integers(0, 256, (height, width), dtype=np.uint8)
        palette = generator.integers(0, 256, (256, 4), dtype=np.uint8)
        palette[:, 0] = 255  # Opaque.
        return av.VideoFrame.from_ndarray((indices, palette), format="pal8")
    return frame if name == "rgb24" else frame.reformat(format=name, interpolation=SCALING)


def poison(width: int, height: int, sentinel: int) -> None:
    """Free buffers of the size of the converted frame that are filled with ``sentinel``."""
    frames = [av.VideoFrame(width, height, "gbrp") for _ in range(3)]
    for frame in frames:
        for plane in frame.planes:
            plane.update(bytes([sentinel]) * plane.buffer_size)


def reference(frame: Any, width: int, height: int) -> Pixels:
    plain = VideoReformatter().reformat(
        frame, width, height, "rgb24", interpolation=SCALING | ACCURATE, threads=1
    )
    rows = np.frombuffer(plain.planes[0], np.uint8).reshape(height, -1)[:, : 3 * width]
    return rows.reshape(height, width, 3).transpose(2, 0, 1)


def convert(frame: Any, short_side: int, size: tuple[int, int], square: bool = False) -> Pixels:
    """Convert with poisoned memory for each sentinel; the results must be equal."""
    results = []
    for sentinel in SENTINELS:
        reformatter = VideoReformatter()
        poison(*size, sentinel)
        if square:
            results.append(to_square(frame, short_side, "crop", reformatter))
        else:
            results.append(to_short_side(frame, short_side, reformatter))
    np.testing.assert_array_equal(*results)
    return results[0]


def assert_close(actual: Pixels, expected: Pixels) -> None:
    assert actual.shape == expected.shape
    difference = np.abs(actual.astype(int) - expected)
    assert difference.max() <= 2, f"columns {np.unique(np.nonzero(difference > 2)[2])}"


@pytest.mark.parametrize("name", one_in(2, FORMATS))
def test_frames_that_keep_their_size(name: str) -> None:
    for width in range(16, 65):
        frame = make_frame(width, 72, name)
        size = (width, 72)
        assert_close(convert(frame, width, size), reference(frame, *size))


@pytest.mark.parametrize("name", one_in(2, FORMATS))
@pytest.mark.parametrize(("width", "height"), COMMON_SIZES)
def test_common_sizes(name: str, width: int, height: int) -> None:
    frame = make_frame(width, height, name)
    expected = reference(frame, width, height)
    assert_close(convert(frame, min(width, height), (width, height)), expected)


@pytest.mark.parametrize("name", one_in(2, FORMATS))
def test_scaled_and_cropped_frames(name: str) -> None:
    for width in range(16, 65, 3):
        for height, size in ((40, 24), (90, 56)):
            frame = make_frame(width, height, name)
            scaled_shape = pixels.scaled_size(width, height, Fraction(1), size)
            expected = reference(frame, *scaled_shape)
            assert_close(convert(frame, size, scaled_shape), expected)
            top, left = (round((side - size) / 2) for side in expected.shape[1:])
            square = expected[:, top : top + size, left : left + size]
            assert_close(convert(frame, size, scaled_shape, square=True), square)


def test_rotated_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = make_frame(40, 24, "yuv420p")
    upright = reference(frame, 40, 24)
    orientation = Orientation(is_transposed=True, flipped_columns=True)
    monkeypatch.setattr(Orientation, "of", lambda frame: orientation)
    assert_close(convert(frame, 24, (40, 24)), orientation.apply(upright))
