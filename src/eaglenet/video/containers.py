"""The decoder (PyAV), and which kinds of file it may open. Imports nothing heavy by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaglenet.errors import UsageError, VideoDecodeError

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


def open_input(file: Any, protocols: str) -> Any:
    """Open a path or a file object for reading, with every network protocol refused.

    Names and comments inside files come in any encoding and must not stop decoding: PyAV 18 has to
    be told so, PyAV 19 always accepts them and no longer takes the argument.
    """
    av = pyav()
    is_before_19 = int(av.__version__.partition(".")[0]) < 19
    encoding = {"metadata_errors": "replace"} if is_before_19 else {}
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": protocols}
    return av.open(file, options=options, **encoding)


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
        # The prefix keeps a colon in a name from being taken for a protocol.
        return open_input(f"file:{path.absolute()}", protocols="file")
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
