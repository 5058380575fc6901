"""The decoder (PyAV), and which kinds of file it may open. Imports nothing heavy by itself."""

from __future__ import annotations

from typing import Any

from eaglenet.errors import UsageError

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
