"""Access to PyAV, the containers it may open, and recognised file extensions."""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import re
import stat
from pathlib import Path
from typing import Any, Self

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.input_file import EMPTY_FILE, file_status, open_input_file

CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,mxf,nut,rm,"
    "ivf,obu,h264,hevc,h263,h261,m4v,vc1,dv,wtv,yuv4mpegpipe,mjpeg,nuv,swf,amv,gxf,"
    "mp3,wav,flac,aac,aiff,ac3"
)
"""Formats that may be opened. Playlists are missing because the decoder would open any file or
address that they name. Text and images are missing because they would decode as video. Audio is
listed so that the error message can name the content of the file."""


def pyav() -> Any:
    """Import PyAV on first use; training on stored features does not need it."""
    try:
        import av
    except ImportError as error:
        raise UsageError(
            "decoding video needs PyAV, which is not installed; run: pip install av"
        ) from error
    return av


FFMPEG_FLOOR = (8, 1)
"""Oldest FFmpeg without known vulnerabilities in its demuxers: earlier ones have CVE-2026-40962."""


def ffmpeg_version() -> tuple[int, ...]:
    """Return the version of PyAV's FFmpeg; empty for a build without a version number."""
    numbers = re.match(r"n?(\d+(?:\.\d+)*)", str(pyav().ffmpeg_version_info))
    return tuple(int(number) for number in numbers[1].split(".")) if numbers else ()


def load_pyav() -> None:
    """Import all modules of PyAV, which otherwise imports some of them with the first stream."""
    av = pyav()
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if module.name not in ("av.__main__", "av.datasets"):
            importlib.import_module(module.name)
    av.logging.set_level(None)


def open_input(file: Any, hwaccel: Any = None) -> Any:
    """Open a file object for reading; every protocol is refused, so no other file is opened.

    Metadata in any encoding must not prevent decoding: PyAV 18 needs an argument to accept it,
    PyAV 19 always does and has no such argument.
    """
    av = pyav()
    is_before_19 = int(av.__version__.partition(".")[0]) < 19
    encoding = {"metadata_errors": "replace"} if is_before_19 else {}
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "none"}
    return av.open(file, options=options, hwaccel=hwaccel, **encoding)


class Container:
    """PyAV's container, and the file that it reads from, which PyAV does not close."""

    def __init__(self, inner: Any, file: io.RawIOBase) -> None:
        self._inner = inner
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._inner.close()
        self._file.close()


def open_container(path: Path, hwaccel: Any = None) -> Container:
    """Open a file; raise ``VideoDecodeError`` if that fails.

    hwaccel: PyAV's settings for a hardware decoder.
    """
    try:
        status = file_status(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise VideoDecodeError(path, "no such file") from error
    if stat.S_ISDIR(status.st_mode):
        raise VideoDecodeError(path, "is a folder, not a video file")
    if status.st_size == 0:
        raise VideoDecodeError(path, EMPTY_FILE)
    av = pyav()
    file = None
    try:
        file = open_input_file(path)
        return Container(open_input(file, hwaccel), file)
    except (av.FFmpegError, OSError, ValueError) as error:
        is_incomplete = file is not None and _lacks_index(file)
        if file is not None:
            file.close()
        if is_incomplete:
            reason = "incomplete: cut off before the list of its frames; copy or record it again"
            raise VideoDecodeError(path, reason) from error
        cause = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"not a video file that can be read ({cause})") from error


MAX_BOXES = 64


def _lacks_index(file: io.RawIOBase) -> bool:
    """Return whether a file is an MP4 or MOV without ``moov`` whose last box ends past its end."""
    try:
        position, size = 0, file.seek(0, os.SEEK_END)
        for _ in range(MAX_BOXES):
            file.seek(position)
            head = file.read(16) or b""
            if len(head) < 8 or (position == 0 and head[4:8] != b"ftyp") or head[4:8] == b"moov":
                return position > 0 and len(head) < 8
            length = int.from_bytes(head[:4], "big")
            if length == 1:
                length = int.from_bytes(head[8:16], "big")
            if length < 8:
                return False
            position += length
            if position > size:
                return True
    except (OSError, ValueError):
        pass
    return False


def video_stream(path: Path, container: Any) -> Any:
    """Return the first video stream that is not a cover image."""
    cover = pyav().stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        kinds = sorted({stream.type for stream in container.streams})
        only = f"only {', '.join(kinds)}" if kinds else "it has no streams at all"
        raise VideoDecodeError(path, f"has no video stream ({only})")
    if streams[0].codec_context is None:
        raise VideoDecodeError(path, "its video codec is not known to the decoder")
    return streams[0]


# fmt: off
VIDEO_SUFFIXES = frozenset({
    ".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp",
    ".3g2", ".3gpp", ".mts", ".m2ts", ".ts", ".ogv", ".qt", ".asf", ".divx", ".vob", ".f4v",
    ".mxf",
})
# fmt: on
"""Lower-case extensions with their dot."""

# fmt: off
RAW_SUFFIXES = frozenset({
    ".dng", ".nef", ".nrw", ".cr2", ".cr3", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw",
})
# fmt: on
"""Sensor data of cameras, with an embedded preview."""

IMAGE_SUFFIXES = RAW_SUFFIXES | {
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"),
    *(".heic", ".heif", ".hif", ".avif"),
}
"""Extensions of images, which are videos of one frame; GIF files are videos."""

IMAGE_BRANDS = frozenset(
    {
        *(b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"),
        *(b"avif", b"avis", b"crx "),
    }
)
"""Brands of HEIC, AVIF and CR3, which use MP4's container. FFmpeg would decode only one tile."""

INDEXED_SUFFIXES = VIDEO_SUFFIXES | IMAGE_SUFFIXES | {".gif"}
"""Files with these extensions are reported if they cannot be indexed."""

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


def looks_like_video(path: Path) -> bool:
    """Return whether a file begins with the signature of a video container."""
    head = _head(path)
    if _has_image_brand(head):
        return False
    is_transport = any(
        len(head) > start + step and head[start] == head[start + step] == 0x47
        for start, step in ((0, 188), (4, 192))
    )
    return is_transport or any(head.startswith(sign, offset) for offset, sign in SIGNATURES)


def is_image(path: str | Path) -> bool:
    """Return whether a file is an image, by its extension or, for HEIC, AVIF and CR3, its content.

    A video with the extension of an image is not one.
    """
    path = Path(path)
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return not looks_like_video(path)
    return has_image_brand(path)


def is_raw(path: Path) -> bool:
    """Return whether a file has the extension of a RAW photograph."""
    return path.suffix.lower() in RAW_SUFFIXES


def has_image_brand(path: Path) -> bool:
    """Return whether a file begins like HEIC, AVIF or CR3."""
    return _has_image_brand(_head(path))


def _head(path: Path) -> bytes:
    try:
        with open_input_file(path) as stream:
            return stream.read(400) or b""
    except OSError:
        return b""


def _has_image_brand(head: bytes) -> bool:
    return head[4:8] == b"ftyp" and head[8:12] in IMAGE_BRANDS


class DecodingClock:
    """Decoding times of the packets of one stream that are copied into another container.

    Matroska has none; after a seek, the demuxer guesses them from a few frames, but not those of
    the first packets, and so not that of the keyframe, if frames are shown in another order.
    """

    def __init__(self, stream: Any) -> None:
        delay = getattr(stream.codec_context, "has_b_frames", 0) or 0
        self._lead = round(delay / (stream.average_rate or 25) / stream.time_base) if delay else 0
        self._last: int | None = None

    def time(self, packet: Any) -> int | None:
        """Return the decoding time of the next packet; None if it cannot have one."""
        time = packet.dts
        if time is None:
            time = packet.pts - self._lead if self._last is None else self._last + 1
        time = int(min(time, packet.pts))
        if self._last is not None and time <= self._last:
            return None
        self._last = time
        return time
