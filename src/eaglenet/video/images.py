"""Still images: photographs, queries that are pictures, and thumbnails of frames (Pillow)."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.pixels import Pixels, scaled_size
from eaglenet.video.sampling import Window
from eaglenet.video.windows import DecodedVideo

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


JPEG_QUALITY = 85
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""What is opened as a picture. Others would start another program (EPS) or decoders of old."""
MAX_PIXELS = 100_000_000


def jpeg_of(image: Image, *, quality: int = JPEG_QUALITY, subsampling: int = -1) -> bytes:
    """A picture as a JPEG file; ``subsampling`` 0 keeps all colours, -1 is Pillow's default."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


def to_jpeg(picture: Pixels, *, quality: int = JPEG_QUALITY, subsampling: int = -1) -> bytes:
    """``picture``: [3, height, width]."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    return jpeg_of(image, quality=quality, subsampling=subsampling)


def decode_image(path: Path, size: int, resize: str = "crop") -> Tensor:
    """Uint8 [3, size, size], upright; bicubic, then centre cropped or stretched as frames are."""
    try:
        return to_square_picture(read_picture(path), size, resize)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such image file") from error
    except UnreadablePictureError as error:
        raise UsageError(
            f"{path}: not an image that can be read ({error}); give a JPEG, PNG or WebP file"
        ) from error


class UnreadablePictureError(ValueError):
    """Says in a few words why a file is no picture that can be shown."""


def read_picture(path: Path) -> Image:
    """A picture file, upright and in RGB; of one that moves or has pages the first.

    Raises FileNotFoundError or UnreadablePictureError, whatever the file holds.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes that are refused, or not, below.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as opened:
                return _upright(opened)
    except (FileNotFoundError, UnreadablePictureError):
        raise
    # A damaged picture can fail in any way; some of Pillow's decoders raise what they like.
    except Exception as error:
        raise UnreadablePictureError(_cause(error)) from error


def _cause(error: Exception) -> str:
    """Why, without the path, which whoever shows it adds."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "its content is of no known kind"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]


def _upright(opened: Image) -> Image:
    from PIL import Image, ImageOps

    if opened.width * opened.height > MAX_PIXELS:
        raise UnreadablePictureError(
            f"{opened.width} x {opened.height} pixels; {MAX_PIXELS} at most"
        )
    turned = ImageOps.exif_transpose(opened)
    if turned.mode.startswith("I"):
        # Whole numbers above 255, of scanners and cameras, would all become white.
        values = np.asarray(turned)
        turned = Image.fromarray((values >> 8 if values.max() > 255 else values).astype(np.uint8))
    return turned.convert("RGB")


def to_short_side(picture: Image, short_side: int) -> Pixels:
    """[3, height, width] of a whole picture, its shorter side ``short_side``."""
    from PIL import Image

    size = scaled_size(picture.width, picture.height, Fraction(1), short_side)
    return np.asarray(picture.resize(size, Image.Resampling.BICUBIC)).transpose(2, 0, 1)


def to_square_picture(opened: Image, size: int, resize: str = "crop") -> Tensor:
    """An opened picture as uint8 [3, size, size]; see :func:`decode_image`."""
    import torch  # Only here: processes that decode do without it.

    return torch.from_numpy(square_pixels(opened, size, resize))


def square_pixels(opened: Image, size: int, resize: str = "crop") -> Pixels:
    """:func:`to_square_picture` as an array."""
    from PIL import Image

    try:
        image = _upright(opened)
    except UnreadablePictureError as error:
        raise UsageError(str(error)) from error
    if resize == "stretch":
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    else:
        width, height = scaled_size(image.width, image.height, Fraction(1), size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


# Photographs as videos of one frame: no length, one window, the same picture in every place.

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
