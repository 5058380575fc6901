"""Still images: queries that are pictures, and thumbnails of frames (Pillow)."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eaglenet.errors import UsageError
from eaglenet.video.pixels import Pixels, scaled_size

JPEG_QUALITY = 85


def to_jpeg(picture: Pixels) -> bytes:
    """``picture``: [3, height, width]."""
    from PIL import Image

    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def decode_image(path: Path, size: int, resize: str = "crop") -> Tensor:
    """Uint8 [3, size, size], upright; bicubic, then centre cropped or stretched as frames are."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such image file") from error
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(
            f"{path}: not an image that can be read ({error}); give a JPEG, PNG or WebP file"
        ) from error
    if resize == "stretch":
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    else:
        width, height = scaled_size(image.width, image.height, Fraction(1), size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
