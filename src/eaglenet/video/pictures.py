"""Still images: queries that are pictures, and thumbnails of frames (Pillow)."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from eaglenet.errors import UsageError
from eaglenet.video.pixels import Pixels, scaled_size

if TYPE_CHECKING:
    from PIL.Image import Image

JPEG_QUALITY = 85
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""What is opened as a picture. Others would start another program (EPS) or decoders of old."""
MAX_PIXELS = 100_000_000


def to_jpeg(picture: Pixels) -> bytes:
    """``picture``: [3, height, width]."""
    from PIL import Image

    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def decode_image(path: Path, size: int, resize: str = "crop") -> Tensor:
    """Uint8 [3, size, size], upright; bicubic, then centre cropped or stretched as frames are."""
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as opened:
            return to_square_picture(opened, size, resize)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such image file") from error
    # A damaged picture can fail in any way; some of Pillow's decoders raise what they like.
    except Exception as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0].replace(str(path), "it")
        raise UsageError(
            f"{path}: not an image that can be read ({cause}); give a JPEG, PNG or WebP file"
        ) from error


def to_square_picture(opened: Image, size: int, resize: str = "crop") -> Tensor:
    """An opened picture as uint8 [3, size, size]; see :func:`decode_image`."""
    from PIL import Image, ImageOps

    if opened.width * opened.height > MAX_PIXELS:
        raise UsageError(f"{opened.width} x {opened.height} pixels; {MAX_PIXELS} at most")
    image = ImageOps.exif_transpose(opened).convert("RGB")
    if resize == "stretch":
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    else:
        width, height = scaled_size(image.width, image.height, Fraction(1), size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
