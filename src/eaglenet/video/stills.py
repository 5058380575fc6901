"""Photographs as videos of one frame: no length, one window, the same picture in every place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eaglenet.errors import VideoDecodeError
from eaglenet.frame_spec import FrameSpec
from eaglenet.video.pictures import (
    UnreadablePictureError,
    read_picture,
    square_pixels,
    to_short_side,
)
from eaglenet.video.pixels import Pixels
from eaglenet.video.planning import Window
from eaglenet.video.windows import DecodedVideo

if TYPE_CHECKING:
    from PIL.Image import Image

SPAN: Window = (0.0, 0.0)
"""The one window of a photograph: it is shown for no time."""


def read_still(path: str | Path) -> Image:
    """A photograph, upright; what cannot be read is a ``VideoDecodeError`` as of any video."""
    try:
        return read_picture(Path(path))
    except FileNotFoundError as error:
        raise VideoDecodeError(path, "no such file") from error
    except UnreadablePictureError as error:
        raise VideoDecodeError(path, f"not a picture that can be read ({error})") from error


def decode_still(
    path: str | Path, spec: FrameSpec, windows: Sequence[Window | None], picture_size: int = 0
) -> Iterator[DecodedVideo]:
    """The picture for each of the windows, in every place, as of a film that stands still."""
    picture = read_still(path)
    frame = square_pixels(picture, spec.size, spec.resize)
    whole = to_short_side(picture, picture_size) if picture_size else None
    for window in windows:
        yield DecodedVideo(
            pixels=np.repeat(frame[None], spec.num_frames, axis=0),
            is_real=np.ones(spec.num_frames, np.bool_),
            times=np.zeros(spec.num_frames, np.float32),
            largest_error=0.0,
            window=window,
            picture=whole,
        )


def still_pixels(path: str | Path, short_side: int) -> Pixels:
    """The whole picture, its shorter side at most ``short_side``."""
    picture = read_still(path)
    return to_short_side(picture, min(short_side, *picture.size))
