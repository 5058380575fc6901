"""Which file names say that they are a video's or a photograph's."""

from __future__ import annotations

from pathlib import Path

# fmt: off
VIDEO_SUFFIXES = frozenset({
    ".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp",
    ".3g2", ".3gpp", ".mts", ".m2ts", ".ts", ".ogv", ".qt", ".asf", ".divx", ".vob", ".f4v",
    ".mxf",
})
# fmt: on
"""Endings in small letters, with their dot."""


PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})
"""Of photographs, which are videos of one frame; GIF files move, and are videos."""

INDEXED_SUFFIXES = VIDEO_SUFFIXES | PICTURE_SUFFIXES | {".gif"}
"""Files of these names are told of where they cannot be indexed."""

SIGNATURES: tuple[tuple[int, bytes], ...] = (
    *((4, kind) for kind in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip")),
    (0, b"\x1aE\xdf\xa3"),  # Matroska, WebM
    (8, b"AVI "),
    (0, b"\x00\x00\x01\xba"),  # MPEG program stream
    (0, b"\x00\x00\x01\xb3"),
    (0, b"FLV"),
    (0, b"0&\xb2u\x8ef\xcf\x11"),  # ASF, WMV
    (0, b"OggS"),
    (0, b"GIF8"),
    (0, b"DKIF"),  # IVF
    (0, b".RMF"),
    (0, b"\x06\x0e+4"),  # MXF
    (0, b"YUV4MPEG2"),
    (0, b"nut/multimedia container"),
    (0, b"\xb7\xd8\x00 "),  # WTV
)


def may_be_video(path: Path) -> bool:
    """Whether a file begins as videos do; nothing of it is decoded."""
    try:
        with path.open("rb") as stream:
            head = stream.read(400)
    except OSError:
        return False
    is_transport = any(
        len(head) > start + 188 and head[start] == head[start + step] == 0x47
        for start, step in ((0, 188), (4, 192))
    )
    return is_transport or any(head.startswith(sign, place) for place, sign in SIGNATURES)


def is_picture(path: str | Path) -> bool:
    """Whether a file's name says that it is a photograph, and its first bytes nothing else."""
    return Path(path).suffix.lower() in PICTURE_SUFFIXES and not may_be_video(Path(path))
