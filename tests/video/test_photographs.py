"""Photographs of phones: complete and upright; errors name the file."""

from __future__ import annotations

import contextlib
import io
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video import images
from eaglenet.video.containers import is_image, looks_like_video
from eaglenet.video.decoding import probe
from eaglenet.video.frame_images import FramesRequest, check_frame_images, read_frame_images
from eaglenet.video.images import decode_image, decode_image_windows, image_pixels, open_image
from eaglenet.video.pixels import MAX_ASPECT
from eaglenet.video.recording import read_recording
from raw_file import write_dng

WIDTH, HEIGHT = 1536, 1040  # More than one tile of 512 pixels in both directions.
ORIENTATION = 0x0112
STORED = {
    1: lambda picture: picture,
    2: lambda picture: picture[:, ::-1],
    3: lambda picture: picture[::-1, ::-1],
    4: lambda picture: picture[::-1],
    5: lambda picture: picture.swapaxes(0, 1),
    6: lambda picture: np.rot90(picture),
    7: lambda picture: picture[::-1, ::-1].swapaxes(0, 1),
    8: lambda picture: np.rot90(picture, -1),
}
"""How the sensor stored an upright picture, by the value of EXIF's orientation."""


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """Return an image with a colour per corner, so that rotations and mirror images differ."""
    corners = np.array([[[220, 30, 30], [30, 200, 30]], [[30, 30, 220], [230, 230, 40]]], np.uint8)
    return corners.repeat(HEIGHT // 2, axis=0).repeat(WIDTH // 2, axis=1)


def corners(image: Image.Image) -> list[tuple[int, ...]]:
    width, height = image.size
    return [
        image.getpixel((x, y))  # type: ignore[misc]
        for y in (height // 4, 3 * height // 4)
        for x in (width // 4, 3 * width // 4)
    ]


def assert_alike(actual: Image.Image, picture: np.ndarray) -> None:
    assert actual.size == (picture.shape[1], picture.shape[0])
    expected = np.array(corners(Image.fromarray(picture)), int)
    assert np.abs(np.array(corners(actual), int) - expected).max() <= 12


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tiff"])
def test_every_orientation_is_turned_upright(
    tmp_path: Path, picture: np.ndarray, suffix: str, orientation: int
) -> None:
    small = picture[::8, ::8]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = tmp_path / f"photo{suffix}"
    Image.fromarray(np.ascontiguousarray(STORED[orientation](small))).save(path, exif=exif)
    assert_alike(open_image(path), small)


@pytest.mark.parametrize("name", ["photo.heic", "photo.HEIF", "renamed.jpg", "renamed.mp4"])
def test_a_photograph_of_a_phone_is_read_whole(
    tmp_path: Path, picture: np.ndarray, name: str
) -> None:
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / name
    buffer = io.BytesIO()
    heif.from_pillow(Image.fromarray(picture)).save(buffer, quality=90)
    path.write_bytes(buffer.getvalue())
    assert is_image(path)
    assert not looks_like_video(path)
    assert_alike(open_image(path), picture)
    info = probe(path)
    assert (info.width, info.height, info.duration) == (WIDTH, HEIGHT, 0)
    assert image_pixels(path, 130).shape == (3, 130, 192)


def test_avif_is_read_whole(tmp_path: Path, picture: np.ndarray) -> None:
    if "AVIF" not in images.image_formats():
        pytest.skip("this build of Pillow has no AVIF")
    path = tmp_path / "photo.avif"
    Image.fromarray(picture).save(path, quality=80)
    assert is_image(path)
    assert_alike(open_image(path), picture)


SPARE_TAG = 0x0103
"""Like the orientation a number of 16 bits, which writers copy and nothing reads."""


def rename_tag(content: bytes, old: int, new: int) -> bytes:
    """Rename an EXIF tag in little or big endian."""
    for order in ("little", "big"):
        rest = (3).to_bytes(2, order) + (1).to_bytes(4, order)
        content = content.replace(old.to_bytes(2, order) + rest, new.to_bytes(2, order) + rest)
    return content


def write_turned(
    path: Path, picture: np.ndarray, orientation: int, *, with_boxes: bool, with_exif: bool
) -> None:
    """Write HEIC or AVIF that is rotated by `irot` and `imir`, by EXIF, or by both."""
    exif = Image.Exif()
    if with_boxes:
        exif[ORIENTATION] = orientation
    if with_exif:
        exif[SPARE_TAG] = orientation
    Image.fromarray(np.ascontiguousarray(picture)).save(path, exif=exif.tobytes())
    # Writers convert the orientation to boxes, and may keep it in EXIF.
    content = rename_tag(path.read_bytes(), ORIENTATION, 0x0104)
    path.write_bytes(rename_tag(content, SPARE_TAG, ORIENTATION))


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("suffix", [".heic", ".avif"])
def test_the_boxes_of_heic_and_avif_turn_an_image_and_exif_does_not(
    tmp_path: Path, picture: np.ndarray, suffix: str, orientation: int
) -> None:
    """As in the standard and in browsers. Phones write both, which must not rotate twice."""
    if suffix == ".heic":
        pytest.importorskip("pillow_heif")
    if not {"HEIF" if suffix == ".heic" else "AVIF"} & set(images.image_formats()):
        pytest.skip("this build cannot read the format")
    small = picture[::8, ::8]
    stored_pixels = STORED[orientation](small)
    path = tmp_path / f"photo{suffix}"
    for with_exif in (False, True):
        write_turned(path, stored_pixels, orientation, with_boxes=True, with_exif=with_exif)
        assert_alike(open_image(path), small)
        assert (probe(path).width, probe(path).height) == (small.shape[1], small.shape[0])
        has_exif = rename_tag(path.read_bytes(), ORIENTATION, 0) != path.read_bytes()
        assert has_exif == with_exif
    write_turned(path, stored_pixels, orientation, with_boxes=False, with_exif=True)
    assert b"irot" not in path.read_bytes()
    assert b"imir" not in path.read_bytes()
    assert rename_tag(path.read_bytes(), ORIENTATION, 0) != path.read_bytes()
    assert_alike(open_image(path), stored_pixels)


def test_a_missing_decoder_is_named(
    tmp_path: Path, picture: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "photo.heic"
    heif.from_pillow(Image.fromarray(picture)).save(path)
    monkeypatch.setattr(images, "image_formats", lambda: images.FORMATS)
    with pytest.raises(VideoDecodeError, match=r"pip install 'eaglenet\[heic\]'"):
        open_image(path)


def test_damaged_photographs_are_errors(tmp_path: Path, picture: np.ndarray) -> None:
    heif = pytest.importorskip("pillow_heif")
    whole = tmp_path / "photo.heic"
    heif.from_pillow(Image.fromarray(picture)).save(whole)
    data = whole.read_bytes()
    for size in (40, len(data) // 2):
        part = tmp_path / f"cut{size}.heic"
        part.write_bytes(data[:size])
        with pytest.raises(VideoDecodeError, match="damaged or incomplete; copy it again"):
            open_image(part)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_preview_of_a_raw_photograph_is_turned_upright(
    tmp_path: Path, picture: np.ndarray, orientation: int
) -> None:
    pytest.importorskip("rawpy")
    stored_pixels = Image.fromarray(np.ascontiguousarray(STORED[orientation](picture[::4, ::4])))
    path = write_dng(tmp_path / "a.DNG", stored_pixels, orientation=orientation)
    assert is_image(path)
    assert_alike(open_image(path), picture[::4, ::4])
    recording = read_recording(path)
    assert recording.camera == "Nikon Z 6"
    assert recording.recorded == datetime(2022, 8, 9, 10, 11, 12).timestamp()


def test_raw_photographs_that_cannot_be_read_say_why(
    tmp_path: Path, picture: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rawpy")
    with pytest.raises(VideoDecodeError, match="without a preview"):
        open_image(write_dng(tmp_path / "a.dng", None))
    path = write_dng(tmp_path / "b.dng", Image.fromarray(picture[::8, ::8]))
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(40):
        damaged_content = bytearray(content[: generator.integers(1, len(content))])
        for place in generator.integers(0, len(damaged_content), 8):
            damaged_content[place] ^= int(generator.integers(1, 256))
        path.write_bytes(damaged_content)
        with contextlib.suppress(VideoDecodeError):
            open_image(path)
        with contextlib.suppress(VideoDecodeError):
            read_recording(path)
    path.write_bytes(b"no photograph")
    with pytest.raises(VideoDecodeError, match="not a RAW photograph"):
        open_image(path)
    monkeypatch.setattr(images, "_rawpy", lambda: None)
    with pytest.raises(VideoDecodeError, match=r"need rawpy: pip install 'eaglenet\[raw\]'"):
        open_image(path)


@pytest.mark.parametrize("size", [(1300, 200), (200, 1300)])
def test_frames_of_panoramas_fit_their_request(size: tuple[int, int], tmp_path: Path) -> None:
    """A shorter side leaves the longer one free; a longer side limits both."""
    path = tmp_path / "panorama.png"
    Image.new("RGB", size).save(path)
    for is_short_side, long_side in ((True, 260), (False, 40)):
        request = FramesRequest(str(path), (0.0,), 40, is_short_side)
        (frame,) = frames = read_frame_images(request)
        check_frame_images(request, frames)
        assert max(frame.shape) == pytest.approx(long_side, abs=1)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
def test_a_line_is_scaled_from_its_middle(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow refuses to scale a line of 67 million pixels, which Atheris found."""
    path = tmp_path / "line.png"
    line = Image.new("RGB", size)
    left, top = (max(side // 2 - 100, 0) for side in size)
    line.paste((255, 255, 255), (left, top, left + 200, top + 200))
    line.save(path)
    scaled: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def recording(self: Image.Image, *arguments: Any, **others: Any) -> Image.Image:
        scaled.append(self.size)
        return resize(self, *arguments, **others)

    monkeypatch.setattr(Image.Image, "resize", recording)
    assert decode_image(path, 16).min() > 250
    (video,) = decode_image_windows(path, FrameSpec(num_frames=1, size=16), [None], 20)
    assert video.pixels.min() > 250
    assert scaled
    assert all(max(size) <= MAX_ASPECT for size in scaled)
