"""Subtitles inside a video file, as packets of text: nothing is decoded but UTF-8."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.video.containers import open_container, pyav
from eaglenet.video.limits import MAX_PACKETS

TEXT_CODECS = frozenset({"subrip", "srt", "webvtt", "mov_text", "ass", "ssa", "text"})
MAX_STREAMS = 64
MAX_TEXT_BYTES = 64 * 2**20
"""Of all subtitles of one file."""


@dataclass(frozen=True)
class TextPacket:
    """One subtitle as it lies in the file; ``text`` still has the tags of its codec."""

    stream: int
    start: float
    end: float
    text: str


@dataclass(frozen=True)
class TextStream:
    """``language`` as the file names it, empty where it does not."""

    number: int
    codec: str
    language: str


def read_text_streams(path: str | Path) -> tuple[list[TextStream], Iterator[TextPacket]]:
    """The text streams of a file, and their packets in the order of the file.

    Reads the file only where there are such streams. Pictures of text (DVD, Blu-ray) are none.
    """
    container = open_container(Path(path))
    streams = [
        TextStream(stream.index, stream.codec_context.name, stream.metadata.get("language", ""))
        for stream in list(container.streams.subtitles)[:MAX_STREAMS]
        if stream.codec_context is not None and stream.codec_context.name in TEXT_CODECS
    ]
    if not streams:
        container.close()
        return [], iter(())
    return streams, _packets(container, streams)


def _packets(container: Any, streams: list[TextStream]) -> Iterator[TextPacket]:
    codecs = {stream.number: stream.codec for stream in streams}
    zero = (container.start_time or 0) / 1e6
    wanted = [stream for stream in container.streams if stream.index in codecs]
    left = MAX_TEXT_BYTES
    with contextlib.closing(container), contextlib.suppress(pyav().FFmpegError):
        for count, packet in enumerate(container.demux(*wanted)):
            if count >= MAX_PACKETS or left < 0:
                return
            if packet.pts is None or not packet.size:
                continue
            left -= packet.size
            number = packet.stream.index
            tick = float(packet.time_base)
            start = packet.pts * tick - zero
            end = start + (packet.duration or 0) * tick
            yield TextPacket(number, start, end, _text(bytes(packet), codecs[number]))


def _text(content: bytes, codec: str) -> str:
    if codec == "mov_text":
        # Two bytes of length, the text, and boxes of style after it.
        size = int.from_bytes(content[:2], "big")
        content = content[2 : 2 + size]
    return content.rstrip(b"\x00").decode("utf-8", "replace")
