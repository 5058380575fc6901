"""A small DNG with an embedded JPEG, as cameras write it: sensor data and a preview."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

SIDE = 64
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 10: 8}
_CODES = {1: "B", 3: "H", 4: "I"}
Entry = tuple[int, int, "Sequence[int] | bytes"]


def write_dng(
    path: Path,
    preview: Image.Image | None,
    *,
    orientation: int = 1,
    date: str = "2022:08:09 10:11:12",
    camera: tuple[str, str] = ("Nikon", "Nikon Z 6"),
) -> Path:
    """Write 64 x 64 pixels of a Bayer sensor, and the preview as a JPEG in an IFD of its own."""
    pixels = struct.pack(f"<{SIDE * SIDE}H", *([1000] * SIDE * SIDE))
    jpeg = b""
    if preview is not None:
        buffer = io.BytesIO()
        preview.save(buffer, "JPEG", quality=95)
        jpeg = buffer.getvalue()
    data = bytearray(struct.pack("<2sHI", b"II", 42, 0))
    pixels_at = len(data)
    data += pixels
    jpeg_at = len(data)
    data += jpeg + bytes(len(jpeg) % 2)
    exif_at = _write_ifd(data, [(0x9003, 2, date.encode() + b"\0")])
    entries: list[Entry] = [
        (254, 4, [0]),
        (256, 4, [SIDE]),
        (257, 4, [SIDE]),
        (258, 3, [16]),
        (259, 3, [1]),
        (262, 3, [32803]),
        (271, 2, camera[0].encode() + b"\0"),
        (272, 2, camera[1].encode() + b"\0"),
        (273, 4, [pixels_at]),
        (274, 3, [orientation]),
        (277, 3, [1]),
        (278, 4, [SIDE]),
        (279, 4, [len(pixels)]),
        (33421, 3, [2, 2]),
        (33422, 1, [0, 1, 1, 2]),
        (34665, 4, [exif_at]),
        (50706, 1, [1, 4, 0, 0]),
        (50708, 2, " ".join(camera).encode() + b"\0"),
        (50717, 4, [4095]),
        (50721, 10, struct.pack("<18i", *(x for v in (1, 0, 0, 0, 1, 0, 0, 0, 1) for x in (v, 1)))),
        (50778, 3, [21]),
    ]
    if preview is not None:
        width, height = preview.size
        sub = _write_ifd(
            data,
            [
                (254, 4, [1]),
                (256, 4, [width]),
                (257, 4, [height]),
                (258, 3, [8, 8, 8]),
                (259, 3, [7]),
                (262, 3, [6]),
                (273, 4, [jpeg_at]),
                (277, 3, [3]),
                (278, 4, [height]),
                (279, 4, [len(jpeg)]),
            ],
        )
        entries.append((330, 4, [sub]))
    struct.pack_into("<I", data, 4, _write_ifd(data, entries))
    path.write_bytes(data)
    return path


def _write_ifd(data: bytearray, entries: Sequence[Entry]) -> int:
    """Append a directory; returns its offset."""
    rows = []
    for tag, kind, values in sorted(entries, key=lambda entry: entry[0]):
        code = _CODES.get(kind)
        content = (
            values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{code}", *values)
        )
        count = len(content) // _SIZES[kind]
        if len(content) > 4:
            data += bytes(len(data) % 2)
            offset = len(data)
            data += content
            content = struct.pack("<I", offset)
        rows.append(struct.pack("<HHI", tag, kind, count) + content.ljust(4, b"\0"))
    data += bytes(len(data) % 2)
    start = len(data)
    data += struct.pack("<H", len(rows)) + b"".join(rows) + bytes(4)
    return start
