"""The decoder (PyAV), and which kinds of file it may open. Imports nothing heavy by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaglenet.core.errors import UsageError, VideoDecodeError

CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,mxf,nut,rm,"
    "ivf,obu,h264,hevc,h263,h261,m4v,vc1,dv,wtv,yuv4mpegpipe,mjpeg,nuv,swf,amv,gxf,"
    "mp3,wav,flac,aac,aiff,ac3"
)
"""Formats that are opened. Playlists are not among them: they would make the decoder open whatever
other file or address they name. Text and still images are not, which would read as video; sound is,
so that the error can say so."""


def pyav() -> Any:
    """PyAV, imported on first use: machines that only train on features do not have it."""
    try:
        import av
    except ImportError as error:
        raise UsageError(
            "decoding video needs PyAV, which is not installed: pip install av"
        ) from error
    return av


def open_container(path: Path) -> Any:
    """A file, opened by the decoder; a ``VideoDecodeError`` says why it cannot be."""
    if path.is_dir():
        raise VideoDecodeError(path, "is a folder, not a video file")
    if not path.exists():
        raise VideoDecodeError(path, "no such file")
    if path.stat().st_size == 0:
        raise VideoDecodeError(path, "the file is empty (0 bytes)")
    av = pyav()
    try:
        # Names and comments inside files come in any encoding; they must not stop decoding. The
        # prefix keeps a colon in a name from being taken for a protocol.
        options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
        return av.open(f"file:{path.absolute()}", metadata_errors="replace", options=options)
    except (av.FFmpegError, OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"not a video file that can be read ({cause})") from error


def video_stream(path: Path, container: Any) -> Any:
    """The first stream of pictures that is not a cover."""
    cover = pyav().stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        kinds = sorted({stream.type for stream in container.streams})
        raise VideoDecodeError(
            path, f"no video stream in it (only {', '.join(kinds) or 'nothing'})"
        )
    if streams[0].codec_context is None:
        raise VideoDecodeError(path, "its video codec is not known to the decoder")
    return streams[0]


# Which file names say that they are a video's or a photograph's.

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
