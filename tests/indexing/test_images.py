"""Photographs beside videos: found, indexed as one frame, searched and saved; hostile ones told."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from index_cases import run
from PIL import Image
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.types import FrameSpec
from eaglenet.indexing.decoding import THUMBNAIL_SIZE
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.methods.base import Method
from eaglenet.search.engine import Engine
from eaglenet.search.query import Query
from eaglenet.search.torch_model import load_model
from eaglenet.video.decoding import decode, probe
from small_videos import colour_video
from synthetic_store import BagMethod

ORIENTATION, TURNED = 0x0112, 6
"""The tag of EXIF, and its value for a camera held upright: shown turned by a quarter."""


def scene(number: int, width: int = 420, height: int = 280) -> Image.Image:
    """Large shapes in colours of its own: what a model tells apart."""
    draw = np.random.default_rng(number)
    small = draw.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99)))


def write_scenes(folder: Path) -> list[str]:
    """One photograph of each kind, and a film."""
    exif = Image.Exif()
    exif[ORIENTATION] = TURNED
    scene(1).transpose(Image.Transpose.ROTATE_90).save(folder / "phone.JPG", exif=exif)
    scene(2).convert("RGBA").save(folder / "drawing.png")
    scene(3).save(folder / "web.webp")
    scene(4).save(folder / "old.bmp")
    scene(5).save(folder / "scan.tiff")
    scene(6).save(folder / "still.gif")
    colour_video(folder / "film.mp4", ["red", "green"])
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def small() -> Method:
    """The model that comes with the package: 224 pixels."""
    return load_model("small")


@pytest.fixture(scope="module")
def album(small: Method, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An indexed folder."""
    base = tmp_path_factory.mktemp("album")
    (base / "album").mkdir()
    write_scenes(base / "album")
    options = IndexOptions(workers=0, precision="fp32")
    report = index_videos([base / "album"], base / "store", "small", options=options, method=small)
    assert not report.problems
    assert (report.indexed, report.images) == (7, 5)
    return base


@pytest.fixture(scope="module")
def engine(album: Path, small: Method) -> Engine:
    """The album, open for searching."""
    return Engine.open(album / "store", small)


def test_image_finds_itself_among_images_and_videos(album: Path, engine: Engine) -> None:
    """Turned as its camera says; ``test_photographs.py`` decodes every kind."""
    for name in ("phone.JPG", "scan.tiff", "still.gif"):
        first = engine.search(Query(image=album / "album" / name), k=2)[0]
        assert Path(first.path).name == name
        if name != "still.gif":
            assert (first.duration, first.moment.start, first.moment.end) == (0.0, 0.0, 0.0)


def test_thumbnails_show_the_whole_upright_image(engine: Engine) -> None:
    """The photograph lies on its side in the file; its corners are where a person sees them."""
    hit = next(hit for hit in engine.search("a picture", k=9) if hit.path.endswith("phone.JPG"))
    for content, side in (
        (engine.thumbnail(hit.clip_id), THUMBNAIL_SIZE),
        (engine.frame(hit.clip_id, 0.0, 240), 240),
    ):
        shown = Image.open(io.BytesIO(content)).convert("RGB")
        assert shown.size == (side * 3 // 2, side)
        wanted = scene(1, *shown.size)
        for corner in ((9, 9), (shown.width - 9, 9), (9, side - 9), (shown.width - 9, side - 9)):
            difference = np.subtract(shown.getpixel(corner), wanted.getpixel(corner))
            assert np.abs(difference).max() < 30


def test_second_run_reads_only_changed_images(tmp_path: Path, bag: BagMethod) -> None:
    (tmp_path / "album").mkdir()
    for number in (1, 2):
        scene(number).save(tmp_path / "album" / f"{number}.png")
    assert run(tmp_path / "album", bag).indexed == 2
    scene(9).save(tmp_path / "album" / "2.png")
    (tmp_path / "album" / "3.png").write_bytes((tmp_path / "album" / "1.png").read_bytes())
    report = run(tmp_path / "album", bag)
    assert (report.indexed, report.unchanged, report.aliases) == (1, 1, 1)
    report = run(tmp_path / "album", bag, exclude=("*.png",), drop_missing=True)
    assert (report.dropped, report.clips) == (3, 0)


def test_hostile_images_are_reported_in_one_line(tmp_path: Path, bag: BagMethod) -> None:
    """Bombs, lies, halves and nothing."""
    folder = tmp_path / "album"
    folder.mkdir()
    scene(3).save(folder / "good.jpg", quality=90)
    whole = (folder / "good.jpg").read_bytes()
    (folder / "half.jpg").write_bytes(whole[: len(whole) // 3])
    (folder / "bomb.png").write_bytes(bomb(60_000, 60_000))
    (folder / "large.png").write_bytes(bomb(12_000, 10_000))
    (folder / "lie.webp").write_text("not a picture")
    (folder / "empty.tif").write_bytes(b"")
    report = run(folder, bag)
    assert report.indexed == report.images == report.clips == 1
    reasons = {Path(problem.path).name: problem.reason for problem in report.problems}
    assert sorted(reasons) == ["bomb.png", "empty.tif", "half.jpg", "large.png", "lie.webp"]
    assert reasons.pop("empty.tif") == "the file is empty (0 bytes)"
    assert all("not an image that can be read" in reason for reason in reasons.values())
    assert all("\n" not in reason and len(reason) < 200 for reason in reasons.values())
    assert "12000 x 10000" in reasons["large.png"]


def test_video_with_an_image_suffix_is_a_video(tmp_path: Path) -> None:
    colour_video(tmp_path / "film.mp4", ["red"])
    (tmp_path / "film.mp4").rename(tmp_path / "film.jpg")
    assert probe(tmp_path / "film.jpg").duration == pytest.approx(3.0)


def test_sixteen_bit_images_are_not_white(tmp_path: Path) -> None:
    """What scanners write: 40 of 256 is dark."""
    Image.fromarray(np.full((30, 50), 40 * 256, np.uint16)).save(tmp_path / "scan.png")
    video = decode(tmp_path / "scan.png", FrameSpec(num_frames=3, size=16))
    assert video.frames.shape == (3, 3, 16, 16)
    assert video.frames.unique().tolist() == [40]


def test_search_prints_image_and_saves_a_copy(album: Path, tmp_path: Path) -> None:
    photograph = album / "album" / "web.webp"
    store = ["--store", str(album / "store"), "--device", "cpu"]
    shown = CliRunner().invoke(
        app, ["search", "--image", str(photograph), *store, "--save-clips", str(tmp_path / "out")]
    )
    assert shown.exit_code == 0, shown.output
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["image", "web.webp"] in [row[2:5:2] for row in rows]
    assert (tmp_path / "out" / "web.webp").read_bytes() == photograph.read_bytes()
