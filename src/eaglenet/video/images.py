"""Images (Pillow): decoding as videos of one frame, image queries, EXIF, and JPEG encoding."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.containers import has_image_brand, is_raw
from eaglenet.video.input_file import EMPTY_FILE, file_status, open_input_file
from eaglenet.video.pixels import MAX_ASPECT, Pixels, pad_to_square, padded_size, scaled_size
from eaglenet.video.sampling import Window
from eaglenet.video.windows import DecodedVideo

if TYPE_CHECKING:
    from PIL.Image import Exif, Image


JPEG_QUALITY = 85
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Formats that may be opened. Others start another program (EPS) or have unmaintained decoders."""
HEIF = "HEIF"
"""HEIC, the format of phones, if ``pillow-heif`` is installed."""
NEEDS_HEIF = "HEIC needs pillow-heif: pip install 'eaglenet[heic]'"
BROKEN_HEIF = "damaged or incomplete; copy it again"
NEEDS_RAW = "RAW photographs need rawpy: pip install 'eaglenet[raw]'"
RAW_TURNS = {3: 180, 5: 90, 6: 270}
"""Counter-clockwise degrees by which to rotate a preview, by LibRaw's value of ``flip``."""
ORIENTATION = 0x0112
MAX_PIXELS = 100_000_000
EXIF_IFD, GPS_IFD = 0x8769, 0x8825
"""EXIF directories with camera settings and with the GPS position."""


@cache
def image_formats() -> tuple[str, ...]:
    """Return the formats that can be opened here."""
    from PIL import features

    formats = [name for name in FORMATS if name != "AVIF" or features.check("avif")]
    if "AVIF" in formats:
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # A confined process may start no thread.
    try:
        import pillow_heif
    except ImportError:
        return tuple(formats)
    pillow_heif.register_heif_opener(decode_threads=1)
    return (*formats, HEIF)


@cache
def _rawpy() -> Any:
    """Return the module rawpy; None if it is not installed."""
    try:
        import rawpy
    except ImportError:
        return None
    return rawpy


def decoding_needs_threads() -> bool:
    """Return whether a decoder starts threads, as the HEIC decoder does."""
    return HEIF in image_formats()


def load_image_formats() -> None:
    """Import the decoders, which Pillow otherwise imports with the first image of a format."""
    from PIL import Image, ImageCms, ImageOps, MpoImagePlugin  # noqa: F401

    _rawpy()
    image = Image.new("RGB", (8, 8))
    image.getexif()[ORIENTATION] = 6  # Pillow reads EXIF like a TIFF file.
    for format in image_formats():
        buffer = io.BytesIO()
        options = {} if format in ("GIF", "BMP") else {"exif": image.getexif()}
        # A build of Pillow or libheif may lack a format; each of its files is reported.
        with contextlib.suppress(OSError, KeyError, RuntimeError, ValueError):
            image.save(buffer, format, **options)
            with Image.open(buffer, formats=image_formats()) as sample:
                scale_short_side(_upright(sample), 4)


def encode_jpeg(image: Image, *, quality: int = JPEG_QUALITY, subsampling: int = -1) -> bytes:
    """Encode an image as JPEG; ``subsampling`` 0 keeps full chroma, -1 is Pillow's default."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


def pixels_to_image(pixels: Pixels) -> Image:
    """Convert an array [3, height, width] to an image."""
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def pixels_to_jpeg(pixels: Pixels, *, quality: int = JPEG_QUALITY, subsampling: int = -1) -> bytes:
    """Encode an array [3, height, width] as JPEG."""
    return encode_jpeg(pixels_to_image(pixels), quality=quality, subsampling=subsampling)


def tile_images(images: Sequence[Image], columns: int) -> Image:
    """Arrange images in rows of ``columns``, in tiles of the largest size."""
    from PIL import Image

    width, height = (max(image.size[axis] for image in images) for axis in (0, 1))
    num_rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * width, num_rows * height))
    for number, image in enumerate(images):
        sheet.paste(image, (number % columns * width, number // columns * height))
    return sheet


def decode_image(path: str | Path, size: int, resize: str = "crop") -> Pixels:
    """Decode an image file to an upright uint8 array [3, size, size], like a frame."""
    try:
        return square_array(read_image(Path(path)), size, resize)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such image file") from error
    except UnreadableImageError as error:
        raise UsageError(
            f"{path}: not an image that can be read ({error}); use a JPEG, PNG, WebP, AVIF or "
            "HEIC file"
        ) from error


def needs_installed_extra(reason: str) -> bool:
    """Return whether an image failed because of a missing package that is now installed."""
    return (NEEDS_HEIF in reason and HEIF in image_formats()) or (
        NEEDS_RAW in reason and _rawpy() is not None
    )


class UnreadableImageError(ValueError):
    """An image file cannot be read; the message says why."""


def read_image(path: Path) -> Image:
    """Read an image file, upright and in RGB; of several pages or frames, the first.

    Raises only ``FileNotFoundError`` or ``UnreadableImageError``.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Sizes are checked below.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if is_raw(path):
                return _read_preview(path)
            with (
                io.BufferedReader(open_input_file(path)) as file,
                Image.open(file, formats=image_formats()) as image,
            ):
                return _upright(image)
    except (FileNotFoundError, UnreadableImageError):
        raise
    # Pillow raises exceptions of any type for damaged files.
    except Exception as error:
        if file_status(path).st_size == 0:
            raise UnreadableImageError(EMPTY_FILE) from error
        if has_image_brand(path):
            is_readable = HEIF in image_formats()
            raise UnreadableImageError(BROKEN_HEIF if is_readable else NEEDS_HEIF) from error
        raise UnreadableImageError(_cause(error)) from error


def _read_preview(path: Path) -> Image:
    """Return the preview of a RAW image, upright and in RGB."""
    preview, degrees = _open_preview(path)
    has_orientation = ORIENTATION in preview.getexif()
    upright = _upright(preview)
    return upright if has_orientation else upright.rotate(degrees, expand=True)


def _open_preview(path: Path) -> tuple[Image, int]:
    """Return the stored preview of a RAW image, and the degrees by which to rotate it."""
    from PIL import Image

    rawpy = _rawpy()
    if rawpy is None:
        raise UnreadableImageError(NEEDS_RAW)
    try:
        with open_input_file(path) as file, rawpy.imread(io.BytesIO(file.read())) as raw:
            preview, degrees = raw.extract_thumb(), RAW_TURNS.get(raw.sizes.flip, 0)
    except rawpy.LibRawNoThumbnailError:
        raise UnreadableImageError("a RAW photograph without a preview") from None
    except rawpy.LibRawError as error:
        cause = error.args[0] if error.args else error
        text = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        raise UnreadableImageError(f"not a RAW photograph that LibRaw reads: {text}") from error
    if preview.format == rawpy.ThumbFormat.BITMAP:
        return Image.fromarray(preview.data), degrees
    return Image.open(io.BytesIO(preview.data), formats=("JPEG",)), degrees


def read_exif(path: Path) -> Exif:
    """Read the EXIF of an image file without decoding its pixels."""
    from PIL import Image

    if is_raw(path):
        return _read_raw_exif(path)
    with (
        io.BufferedReader(open_input_file(path)) as file,
        Image.open(file, formats=image_formats()) as image,
    ):
        exif = image.getexif()
        for part in (EXIF_IFD, GPS_IFD):
            exif.get_ifd(part)  # Pillow reads it on demand, and the file is about to be closed.
        return exif


def _read_raw_exif(path: Path) -> Exif:
    """Read the EXIF of a RAW image: most are TIFF files, others have it in their preview."""
    from PIL import Image

    exif = Image.Exif()
    with open_input_file(path) as raw, io.BufferedReader(raw) as file:
        if file.read(4) in (b"II*\0", b"MM\0*"):
            file.seek(0)
            exif.load_from_fp(file)
            for part in (EXIF_IFD, GPS_IFD):
                exif.get_ifd(part)
            return exif
    return _open_preview(path)[0].getexif()


def _cause(error: Exception) -> str:
    """Return the cause of an error without the path of the file."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "unknown image format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]


def _upright(image: Image) -> Image:
    """Rotate an image upright and convert it to RGB.

    Only their boxes ``irot`` and ``imir`` rotate HEIC and AVIF: by their standard (ISO/IEC
    23008-12), viewers ignore the orientation in EXIF, which phones also write. Decoders rotate HEIC
    and hide its EXIF orientation; for AVIF, they set it from the boxes.
    """
    from PIL import Image, ImageOps

    if image.width * image.height > MAX_PIXELS:
        raise UnreadableImageError(f"{image.width} x {image.height} pixels; at most {MAX_PIXELS}")
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        # Without the shift, 16-bit values of scanners and cameras become white.
        values = np.asarray(upright)
        upright = Image.fromarray((values >> 8 if values.max() > 255 else values).astype(np.uint8))
    return upright.convert("RGB")


def _middle(image: Image) -> Image:
    """Cut an image of an extreme shape to its middle, from which Pillow can scale it."""
    limit = MAX_ASPECT * min(image.size)
    width, height = (min(side, limit) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    is_whole = (width, height) == image.size
    return image if is_whole else image.crop((left, top, left + width, top + height))


def scale_short_side(image: Image, short_side: int) -> Pixels:
    """Scale an image to the shorter side ``short_side``; return [3, height, width]."""
    from PIL import Image

    size = scaled_size(image.width, image.height, Fraction(1), short_side)
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC)).transpose(2, 0, 1)


def square_array(image: Image, size: int, resize: str = "crop") -> Pixels:
    """Convert an image to an upright uint8 array [3, size, size]."""
    from PIL import Image

    try:
        image = _upright(image)
    except UnreadableImageError as error:
        raise UsageError(str(error)) from error
    if resize == "pad":
        shape = padded_size(image.width, image.height, Fraction(1), size)
        image = image.resize(shape, Image.Resampling.BICUBIC)
        return pad_to_square(np.asarray(image).transpose(2, 0, 1), size)
    if resize == "stretch":
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    else:
        image = _middle(image)
        width, height = scaled_size(image.width, image.height, Fraction(1), size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        x, y = round((width - size) / 2), round((height - size) / 2)
        image = image.crop((x, y, x + size, y + size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


IMAGE_WINDOW: Window = (0.0, 0.0)
"""The window of an image, which has no length."""


def open_image(path: str | Path) -> Image:
    """Read an image file, upright; raise ``VideoDecodeError`` if it cannot be read."""
    try:
        return read_image(Path(path))
    except FileNotFoundError as error:
        raise VideoDecodeError(path, "no such file") from error
    except UnreadableImageError as error:
        is_empty = str(error) == EMPTY_FILE
        reason = EMPTY_FILE if is_empty else f"not an image that can be read ({error})"
        raise VideoDecodeError(path, reason) from error


def decode_image_windows(
    path: str | Path, spec: FrameSpec, windows: Sequence[Window | None], thumbnail_size: int = 0
) -> Iterator[DecodedVideo]:
    """Yield the image once per window, repeated for every frame."""
    image = open_image(path)
    frame = square_array(image, spec.size, spec.resize)
    thumbnail = scale_short_side(_middle(image), thumbnail_size) if thumbnail_size else None
    for window in windows:
        yield repeat_frame(frame, spec.num_frames, window, thumbnail)


def repeat_frame(
    frame: Pixels, num_frames: int, window: Window | None = None, thumbnail: Pixels | None = None
) -> DecodedVideo:
    """Return a video that repeats one frame."""
    return DecodedVideo(
        pixels=np.repeat(frame[None], num_frames, axis=0),
        is_real=np.ones(num_frames, np.bool_),
        times=np.zeros(num_frames, np.float32),
        largest_error=0.0,
        window=window,
        thumbnail=thumbnail,
    )


def image_pixels(path: str | Path, short_side: int) -> Pixels:
    """Return the pixels of an image file, scaled down to a shorter side of ``short_side``."""
    image = open_image(path)
    return scale_short_side(image, min(short_side, *image.size))
