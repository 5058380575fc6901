"""Subtitles inside a video file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eaglenet.video.text_streams import TextPacket, TextStream, read_text_streams
from eaglenet.words.beside import short_language
from eaglenet.words.lines import Line, clean_lines
from eaglenet.words.subtitles import event_text, plain_text

ASS_FIELDS = 8
"""Before the text of an event in Matroska: its number, layer, style, name, margins, effect."""


def read_inner_subtitles(path: str | Path) -> list[Line]:
    """Every line of every text stream, with its stream's language."""
    streams, packets = read_text_streams(path)
    return clean_lines(_lines({stream.number: stream for stream in streams}, packets))


def _lines(streams: dict[int, TextStream], packets: Iterator[TextPacket]) -> Iterator[Line]:
    for packet in packets:
        stream = streams[packet.stream]
        if stream.codec in ("ass", "ssa"):
            fields = packet.text.split(",", ASS_FIELDS)
            text = event_text(fields[-1]) if len(fields) > ASS_FIELDS else ""
        else:
            text = plain_text(packet.text)
        yield Line(packet.start, packet.end, text, short_language(stream.language))
