"""A decoded frame to the square of RGB pixels a tower takes: orientation, scaling, crop."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.frame_spec import Resize

Pixels = NDArray[np.uint8]

SCALING = 4 | 0x2000
"""swscale's BICUBIC | FULL_CHR_H_INT. Without the second flag chroma is halved in width and every
channel comes out about one grey level too dark."""

ACCURATE = 0x40000
"""swscale's ACCURATE_RND, which excludes its special converters for frames that keep their size.
Trap: on x86 the one from YUV to planar RGB (libswscale 9.5) leaves the last columns unwritten where
the width modulo 16 is 2 to 8, so they show whatever the memory held before."""

BLANK = (123, 117, 104)
"""CLIP's mean colour: a blank frame is 0 after normalisation, as in the released code."""


@dataclass(frozen=True)
class Orientation:
    """How the stored picture is turned and mirrored for show, as the display matrix says."""

    transposed: bool = False
    flipped_rows: bool = False
    flipped_columns: bool = False

    @classmethod
    def of(cls, frame: Any) -> Orientation:
        """From the display matrix ``[[a, b], [c, d]]``: stored (x, y) shows at (ax + cy, bx + dy).

        Only quarter turns exist in practice; any other angle is taken as the nearest of them.
        """
        data = frame.side_data.get("DISPLAYMATRIX")
        if data is None:
            return cls()
        a, b, _, c, d = np.frombuffer(bytes(data), dtype=np.int32)[:5].tolist()
        if abs(b) > abs(a):
            return cls(transposed=True, flipped_rows=b < 0, flipped_columns=c < 0)
        return cls(flipped_rows=d < 0, flipped_columns=a < 0)

    @property
    def rotation(self) -> int:
        """Clockwise degrees by which the stored picture is turned; a mirror image counts as 0."""
        turns = {
            (False, False, False): 0,
            (True, False, True): 90,
            (False, True, True): 180,
            (True, True, False): 270,
        }
        return turns.get((self.transposed, self.flipped_rows, self.flipped_columns), 0)

    def apply(self, picture: Pixels) -> Pixels:
        """``picture``: [3, height, width]."""
        if self.transposed:
            picture = picture.transpose(0, 2, 1)
        if self.flipped_rows:
            picture = picture[:, ::-1]
        if self.flipped_columns:
            picture = picture[:, :, ::-1]
        return picture


def pixel_aspect(frame: Any) -> Fraction:
    """Width of a stored pixel over its height; 1 where unknown or absurd."""
    ratio = getattr(frame, "sample_aspect_ratio", None)
    if not ratio or not Fraction(1, 4) <= Fraction(ratio) <= 4:
        return Fraction(1)
    return Fraction(ratio)


LONGEST_SIDE = 64
"""Times the shorter side; longer pictures are squeezed, for no picture has as many pixels."""


def scaled_size(width: int, height: int, aspect: Fraction, short_side: int) -> tuple[int, int]:
    """Width and height for which the shorter side, as shown, is ``short_side``."""
    shown_width = width * aspect
    most = LONGEST_SIDE * short_side
    if shown_width <= height:
        return short_side, min(most, max(short_side, int(short_side * height / shown_width)))
    return min(most, max(short_side, int(short_side * shown_width / height))), short_side


def to_square(
    frame: Any, size: int, resize: Resize, reformatter: Any, aspect: Fraction = Fraction(1)
) -> Pixels:
    """Upright RGB pixels [3, size, size] of one frame: bicubic, antialiased."""
    if resize == "stretch":
        width, height = size, size
    else:
        width, height = scaled_size(frame.width, frame.height, aspect, size)
    picture = _scale(frame, width, height, reformatter)
    top = round((picture.shape[1] - size) / 2)
    left = round((picture.shape[2] - size) / 2)
    return picture[:, top : top + size, left : left + size]


def to_picture(
    frame: Any, short_side: int, reformatter: Any, aspect: Fraction = Fraction(1)
) -> Pixels:
    """Upright RGB pixels [3, height, width] of the whole frame, its shorter side ``short_side``."""
    width, height = scaled_size(frame.width, frame.height, aspect, short_side)
    return _scale(frame, width, height, reformatter)


def _scale(frame: Any, width: int, height: int, reformatter: Any) -> Pixels:
    """Upright pixels of a frame whose stored picture is scaled to ``width`` by ``height``."""
    is_scaled = (width, height) != (frame.width, frame.height)
    scaled = reformatter.reformat(
        # Planes are scaled on their own: more than twice as fast as into packed RGB, same pixels.
        frame,
        width=width,
        height=height,
        format="gbrp",
        interpolation=SCALING if is_scaled else SCALING | ACCURATE,
        threads=1,
    )
    green, blue, red = (
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width]
        for plane in scaled.planes
    )
    # Not of the frame itself: one that was asked for its side data refers to itself from then on,
    # and megabytes a frame wait for Python's cyclic collector.
    return Orientation.of(scaled).apply(np.stack([red, green, blue]))
