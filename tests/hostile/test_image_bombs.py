"""SVG, HEIC and AVIF bombs: refused or decoded within the limits, as images and as videos."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, features

from eaglenet.core.errors import UsageError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.decoding import QueryRequest, decode_query
from eaglenet.video.input_file import share_file
from eaglenet.video.worker import IsolatedProcess

SPEC = FrameSpec(num_frames=2, size=16)
LAUGHS = "".join(
    f'<!ENTITY l{number} "{f"&l{number - 1};" * 10 if number else "ha"}">' for number in range(12)
)


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content) + 8) + kind + content


def avif(width: int, height: int) -> bytes:
    """A small AVIF whose container claims another size."""
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(buffer, "AVIF")
    content = buffer.getvalue()
    assert content.count(b"ispe") >= 1
    claimed = b"ispe" + bytes(4) + struct.pack(">II", width, height)
    position = content.index(b"ispe")
    return content[:position] + claimed + content[position + len(claimed) :]


def heic_grid(rows: int) -> bytes:
    """A HEIC that claims to be a grid of ``rows`` x ``rows`` tiles of nothing."""
    brands = box(b"ftyp", b"heic" + bytes(4) + b"mif1heic")
    size = box(b"ispe", bytes(4) + struct.pack(">II", 65535 * rows, 65535 * rows))
    properties = box(b"iprp", box(b"ipco", size) + box(b"ipma", bytes(4) + bytes(4)))
    entry = box(b"infe", b"\2" + bytes(3) + struct.pack(">HH", 1, 0) + b"grid\0")
    items = box(b"iinf", bytes(4) + struct.pack(">H", 1) + entry)
    handler = box(b"hdlr", bytes(8) + b"pict" + bytes(13))
    primary = box(b"pitm", bytes(4) + struct.pack(">H", 1))
    data = bytes([0, 0, rows - 1, rows - 1]) + struct.pack(">HH", 65535, 65535)
    return (
        brands
        + box(b"meta", bytes(4) + handler + primary + items + properties)
        + box(b"mdat", data)
    )


BOMBS = {
    "svg": f'<?xml version="1.0"?><!DOCTYPE svg [{LAUGHS}]><svg>&l11;</svg>'.encode(),
    "svg-size": b'<svg xmlns="http://www.w3.org/2000/svg" width="1e9" height="1e9"/>',
    "svg-file": b'<svg xmlns:x="http://www.w3.org/1999/xlink"><image x:href="/etc/passwd"/></svg>',
    "heic": heic_grid(200),
}


@pytest.fixture(scope="module")
def decoder() -> Iterator[IsolatedProcess]:
    process = IsolatedProcess(decode_query, 2**30, 60.0)
    yield process
    process.close()


@pytest.mark.parametrize("is_image", [True, False], ids=["image", "video"])
@pytest.mark.parametrize("name", [*BOMBS, "avif", "avif-huge"])
def test_bombs_cost_little(
    name: str, is_image: bool, tmp_path: Path, decoder: IsolatedProcess
) -> None:
    if name.startswith("avif"):
        if not features.check("avif"):
            pytest.skip("this Pillow writes no AVIF")
        content = avif(64, 64) if name == "avif" else avif(2**31 - 1, 2**31 - 1)
    else:
        content = BOMBS[name]
    path = tmp_path / f"a.{name}"
    path.write_bytes(content)
    began = time.monotonic()
    shared = share_file(path)
    reason = ""
    try:
        decoder(QueryRequest(str(path), SPEC, is_image), shared)
    except UsageError as error:
        reason = str(error)
    finally:
        shared.close()
    # FFmpeg, too, reads AVIF, as a video of one frame.
    assert reason or name == "avif" or (name == "avif-huge" and not is_image)
    assert "crashed" not in reason
    assert time.monotonic() - began < 30
