"""Convert decoded frames to upright RGB pixels, scaled and cropped."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.frame_spec import Resize

Pixels = NDArray[np.uint8]

SCALING = 4 | 0x2000
"""swscale's BICUBIC | FULL_CHR_H_INT. Without the second flag, chroma has half its width and every
channel is about one grey value too dark."""

ACCURATE = 0x40000
"""swscale's ACCURATE_RND, which disables its special converters for frames that keep their size. On
x86, the one from YUV to planar RGB (libswscale 9.5) does not write the last columns if the width
modulo 16 is 2 to 8, so they contain old memory."""

BLANK = (123, 117, 104)
"""CLIP's mean colour: a blank frame is 0 after normalisation, as in the released code."""


@dataclass(frozen=True)
class Orientation:
    """Rotation and mirroring of a stored frame for display, from its display matrix."""

    is_transposed: bool = False
    flipped_rows: bool = False
    flipped_columns: bool = False

    @classmethod
    def of(cls, frame: Any) -> Orientation:
        """Read the display matrix ``[[a, b], [c, d]]``, which shows (x, y) at (ax + cy, bx + dy).

        Angles are rounded to quarter turns.
        """
        data = frame.side_data.get("DISPLAYMATRIX")
        if data is None:
            return cls()
        a, b, _, c, d = np.frombuffer(bytes(data), dtype=np.int32)[:5].tolist()
        if abs(b) > abs(a):
            return cls(is_transposed=True, flipped_rows=b < 0, flipped_columns=c < 0)
        return cls(flipped_rows=d < 0, flipped_columns=a < 0)

    @property
    def rotation(self) -> int:
        """Clockwise degrees by which the stored frame is rotated; 0 for mirror images."""
        turns = {
            (False, False, False): 0,
            (True, False, True): 90,
            (False, True, True): 180,
            (True, True, False): 270,
        }
        return turns.get((self.is_transposed, self.flipped_rows, self.flipped_columns), 0)

    def apply(self, pixels: Pixels) -> Pixels:
        """Rotate and mirror pixels [3, height, width]."""
        if self.is_transposed:
            pixels = pixels.transpose(0, 2, 1)
        if self.flipped_rows:
            pixels = pixels[:, ::-1]
        if self.flipped_columns:
            pixels = pixels[:, :, ::-1]
        return pixels


def pixel_aspect(frame: Any) -> Fraction:
    """Return the aspect ratio of stored pixels; 1 if it is unknown or implausible."""
    ratio = getattr(frame, "sample_aspect_ratio", None)
    if not ratio or not Fraction(1, 4) <= Fraction(ratio) <= 4:
        return Fraction(1)
    return Fraction(ratio)


MAX_ASPECT = 64
"""Maximum ratio of the sides of a scaled frame; narrower frames are compressed, to limit memory."""


def scaled_size(width: int, height: int, aspect: Fraction, short_side: int) -> tuple[int, int]:
    """Return the width and height with ``short_side`` as the shorter side on display."""
    display_width = width * aspect
    limit = MAX_ASPECT * short_side
    if display_width <= height:
        return short_side, min(limit, max(short_side, int(short_side * height / display_width)))
    return min(limit, max(short_side, int(short_side * display_width / height))), short_side


def padded_size(width: int, height: int, aspect: Fraction, long_side: int) -> tuple[int, int]:
    """Return the width and height with ``long_side`` as the longer side on display.

    The shorter side is rounded down in floating point, as in ClipBERT.
    """
    display_width = float(width * aspect)
    if height >= display_width:
        return max(1, int(long_side * (display_width / height))), long_side
    return long_side, max(1, int(long_side * (height / display_width)))


def to_square(
    frame: Any, size: int, resize: Resize, reformatter: Any, aspect: Fraction = Fraction(1)
) -> Pixels:
    """Return upright RGB pixels [3, size, size] of a frame; scaling is bicubic, antialiased."""
    if resize == "pad":
        width, height = padded_size(frame.width, frame.height, aspect, size)
        return pad_to_square(_scale(frame, width, height, reformatter), size)
    if resize == "stretch":
        width, height = size, size
    else:
        width, height = scaled_size(frame.width, frame.height, aspect, size)
    pixels = _scale(frame, width, height, reformatter)
    y = round((pixels.shape[1] - size) / 2)
    x = round((pixels.shape[2] - size) / 2)
    return pixels[:, y : y + size, x : x + size]


def pad_to_square(pixels: Pixels, size: int) -> Pixels:
    """Add black on the right and below, up to [3, size, size]."""
    return np.pad(pixels, ((0, 0), (0, size - pixels.shape[1]), (0, size - pixels.shape[2])))


def to_short_side(
    frame: Any, short_side: int, reformatter: Any, aspect: Fraction = Fraction(1)
) -> Pixels:
    """Return upright RGB pixels [3, height, width] of an uncropped frame."""
    width, height = scaled_size(frame.width, frame.height, aspect, short_side)
    return _scale(frame, width, height, reformatter)


def _scale(frame: Any, width: int, height: int, reformatter: Any) -> Pixels:
    """Scale a stored frame to ``width`` x ``height`` and return its upright pixels."""
    is_scaled = (width, height) != (frame.width, frame.height)
    scaled_frame = reformatter.reformat(
        # Planar output is twice as fast as packed RGB and gives the same pixels.
        frame,
        width=width,
        height=height,
        format="gbrp",
        interpolation=SCALING if is_scaled else SCALING | ACCURATE,
        threads=1,
    )
    green, blue, red = (
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width]
        for plane in scaled_frame.planes
    )
    # Reading the side data of a frame makes it refer to itself, so that its megabytes stay until
    # Python's cyclic garbage collector runs. Read the side data of the scaled copy instead.
    return Orientation.of(scaled_frame).apply(np.stack([red, green, blue]))
