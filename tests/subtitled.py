"""Small videos with subtitles inside, in the codecs that each container has."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from eaglenet.video.decoding import write_video

CODECS = {".mkv": "subrip", ".mp4": "mov_text", ".webm": "webvtt"}
Said = tuple[float, float, str]


def write_with_subtitles(
    path: Path, lines: Sequence[Said], *, language: str = "ger", seconds: int = 8
) -> Path:
    """Frames of grey; the container follows from the name's ending."""
    with av.open(str(path), "w") as container:
        name = "libvpx-vp9" if path.suffix == ".webm" else "libx264"
        video = container.add_stream(name, rate=5)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        stream = container.add_mux_stream(CODECS[path.suffix])
        stream.metadata["language"] = language
        stream.time_base = Fraction(1, 1000)
        for number in range(5 * seconds):
            grey = np.full((48, 64, 3), 5 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            frame.pts = number
            container.mux(video.encode(frame))
        for start, end, text in lines:
            content = text.encode()
            if path.suffix == ".mp4":
                content = len(content).to_bytes(2, "big") + content
            packet = av.Packet(content)
            packet.stream, packet.time_base = stream, Fraction(1, 1000)
            packet.pts = packet.dts = int(start * 1000)
            packet.duration = int((end - start) * 1000)
            container.mux(packet)
        container.mux(video.encode(None))
    return path


def write_pages(
    path: Path, texts: Sequence[str], *, seconds: int, size: tuple[int, int] = (320, 120)
) -> Path:
    """Each text in white on blue for some seconds, in H.264."""
    pages = []
    for text in texts:
        page = Image.new("RGB", size, (30, 60, 90))
        font = ImageFont.load_default(size[1] // 8)
        ImageDraw.Draw(page).text((size[0] // 10, size[1] // 3), text, font=font, fill="white")
        pages.append(np.repeat(np.asarray(page)[None], 4 * seconds, axis=0))
    write_video(path, np.concatenate(pages), 4)
    return path
