"""Subtitle files: SubRip (.srt), WebVTT (.vtt), SubStation Alpha (.ass, .ssa).

Others made them, so nothing of them is trusted: sizes are bounded, what cannot be read is passed
over, and a file without one line that can be read is an error.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from eaglenet.core import untrusted
from eaglenet.transcripts.lines import TranscriptLine, clean_lines
from eaglenet.video.containers import open_container, pyav
from eaglenet.video.limits import MAX_PACKETS

MAX_BYTES = 16 * 2**20
"""Of a subtitle file; those of a long film have some hundred thousand."""
_CLOCK = r"(?:([0-9]{1,3}):)?([0-9]{1,2}):([0-9]{1,2})[.,]([0-9]{1,3})"
_TIMES = re.compile(rf"\s*{_CLOCK}\s*-->\s*{_CLOCK}")
_ASS_CLOCK = re.compile(r"([0-9]{1,3}):([0-9]{1,2}):([0-9]{1,2})[.:]([0-9]{1,3})")
_TAG = re.compile(r"<[^<>]{0,200}>")
_STYLE = re.compile(r"\{\\[^{}]{0,500}\}")
_DRAWING = re.compile(r"\\p[1-9]")
ASS_FORMAT = "Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text"
"""Where a file does not name its columns."""


def read_subtitles(path: Path) -> list[TranscriptLine]:
    """The lines of a subtitle file; ``ValueError`` or ``OSError`` says why there are none."""
    text = decode(untrusted.read_bytes(path, MAX_BYTES))
    lines = clean_lines(READERS[path.suffix.lower()](text))
    if not lines and text.strip():
        raise ValueError("no line with its times could be read in it")
    return lines


def decode(content: bytes) -> str:
    """Text in the encoding its first bytes name, else UTF-8, UTF-16 or Windows' Latin-1.

    >>> decode("Gr\u00fc\u00dfe".encode("latin-1"))
    'Gr\u00fc\u00dfe'
    """
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16")):
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    if content.startswith(b"\xfe\xff"):
        return content.decode("utf-16", "replace")
    head = content[:4096]
    # In UTF-16 every other byte of digits, signs and Latin letters is zero.
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if head[first::2].count(0) > len(head) // 8:
            return content.decode(encoding, "replace")
    for encoding in ("utf-8", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1")


def plain_text(text: str) -> str:
    """Without tags, styles and entities.

    >>> plain_text("<i>Tom &amp; Jerry</i>{\\\\an8}")
    'Tom & Jerry'
    """
    return html.unescape(_STYLE.sub("", _TAG.sub("", text)))


def cues(text: str) -> Iterator[TranscriptLine]:
    """Lines of SubRip and WebVTT: times with an arrow, then text up to an empty line."""
    times: tuple[float, float] | None = None
    words: list[str] = []
    for line in _split(text):
        match = _TIMES.match(line) if "-->" in line else None
        if match is None:
            if not line.strip():
                if times is not None:
                    yield TranscriptLine(*times, plain_text("\n".join(words)))
                times, words = None, []
            elif times is not None and len(words) < 64:
                words.append(line)
            continue
        if times is not None:
            # No empty line between two cues: the last line was the number of this one.
            kept = words[:-1] if words and words[-1].strip().isdigit() else words
            yield TranscriptLine(*times, plain_text("\n".join(kept)))
        groups = match.groups()
        times, words = (_seconds(groups[:4]), _seconds(groups[4:])), []
    if times is not None:
        yield TranscriptLine(*times, plain_text("\n".join(words)))


def events(text: str) -> Iterator[TranscriptLine]:
    """Lines of SubStation Alpha: ``Dialogue:`` with the columns that ``Format:`` names."""
    columns = _columns(ASS_FORMAT)
    section = "[events]"
    for line in _split(text):
        name, _, rest = line.partition(":")
        key = name.strip().lower()
        if line.startswith("["):
            section = line.strip().lower()
        elif section != "[events]":
            continue
        elif key == "format" and {"start", "end", "text"} <= set(_columns(rest)):
            columns = _columns(rest)
        elif key == "dialogue":
            values = dict(zip(columns, rest.split(",", len(columns) - 1), strict=False))
            start, end = (
                _ASS_CLOCK.match(values.get(name, "").strip()) for name in ("start", "end")
            )
            if start is not None and end is not None:
                words = event_text(values.get("text", ""))
                yield TranscriptLine(_seconds(start.groups()), _seconds(end.groups()), words)


def event_text(text: str) -> str:
    """The words of an event; none where it is a drawing."""
    if _DRAWING.search(text):
        return ""
    return plain_text(text.replace("\\N", "\n").replace("\\n", "\n").replace("\\h", " "))


READERS: dict[str, Callable[[str], Iterator[TranscriptLine]]] = {
    ".srt": cues,
    ".vtt": cues,
    ".ass": events,
    ".ssa": events,
}
"""By the ending of a file's name."""


def _columns(text: str) -> list[str]:
    return [name.strip().lower() for name in text.split(",")][:32]


def _split(text: str) -> list[str]:
    # Not splitlines(), which also splits at signs that stand inside lines.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _seconds(clock: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = (part or "0" for part in clock)
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole + float(f"0.{fraction}")


# Subtitle files beside a video: ``film.srt``, ``film.en.srt``, ``film.pt-BR.forced.vtt``.

NOTES = frozenset({"forced", "sdh", "cc", "default", "foreign", "full", "signs", "auto", "orig"})
"""What may stand in a name beside the language."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][a-z0-9]{2,8}){0,2}", re.IGNORECASE)
SHORT = {
    "eng": "en", "deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "ita": "it",
    "por": "pt", "rus": "ru", "zho": "zh", "chi": "zh", "jpn": "ja", "kor": "ko", "ara": "ar",
    "nld": "nl", "dut": "nl", "swe": "sv", "pol": "pl", "tur": "tr", "hin": "hi", "und": "",
}  # fmt: skip
"""Codes of three letters that are met often, as the codes of two that mean the same."""


@dataclass(frozen=True)
class SubtitleFile:
    """A file that was found; ``language`` as its name tells it."""

    path: str
    size: int
    modified_ns: int
    language: str


class SubtitleFinder:
    """Finds the files beside videos; each folder is listed once."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, os.DirEntry[str]]] = {}

    def beside(self, video: str) -> list[SubtitleFile]:
        """In order of their names; a folder that cannot be read has none."""
        folder, name = os.path.split(video)
        stem = PurePath(name).stem
        found = []
        for other, entry in self._list(folder).items():
            language = language_of(other, stem)
            if language is None:
                continue
            try:
                if entry.is_file():
                    status = entry.stat()
                    found.append(
                        SubtitleFile(entry.path, status.st_size, status.st_mtime_ns, language)
                    )
            except OSError:
                continue  # Gone since the folder was listed.
        return found

    def _list(self, folder: str) -> dict[str, os.DirEntry[str]]:
        if folder not in self._folders:
            try:
                with os.scandir(folder) as entries:
                    names = {
                        entry.name: entry
                        for entry in entries
                        if PurePath(entry.name).suffix.lower() in READERS and _is_text(entry.path)
                    }
            except OSError:
                names = {}
            self._folders[folder] = dict(sorted(names.items()))
        return self._folders[folder]


def language_of(name: str, stem: str) -> str | None:
    """The language a subtitle file's name tells; None where it is not of the video ``stem``.

    >>> language_of("film.eng.forced.srt", "film"), language_of("film.srt", "film")
    ('en', '')
    >>> language_of("film.part2.srt", "film") is None
    True
    """
    rest = PurePath(name).stem
    if not rest.startswith(stem):
        return None
    rest = rest[len(stem) :]
    if not rest:
        return ""
    language = ""
    if not rest.startswith("."):
        return None
    for part in rest[1:].split("."):
        if part.lower() in NOTES:
            continue
        if language or not _LANGUAGE.fullmatch(part):
            return None
        language = short_language(part)
    return language


def short_language(code: str) -> str:
    """A language as two letters where these are known, and its region.

    >>> short_language("eng"), short_language("pt_BR"), short_language("und")
    ('en', 'pt-BR', '')
    """
    first, *region = code.replace("_", "-").split("-")
    first = SHORT.get(first.lower(), first.lower())
    return "-".join([first, *region]) if first else ""


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# Subtitles inside a video file, as packets of text: nothing is decoded but UTF-8.

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


# Subtitles inside a video file.

ASS_FIELDS = 8
"""Before the text of an event in Matroska: its number, layer, style, name, margins, effect."""


def read_embedded_subtitles(path: str | Path) -> list[TranscriptLine]:
    """Every line of every text stream, with its stream's language."""
    streams, packets = read_text_streams(path)
    return clean_lines(_lines({stream.number: stream for stream in streams}, packets))


def _lines(streams: dict[int, TextStream], packets: Iterator[TextPacket]) -> Iterator[TranscriptLine]:
    for packet in packets:
        stream = streams[packet.stream]
        if stream.codec in ("ass", "ssa"):
            fields = packet.text.split(",", ASS_FIELDS)
            text = event_text(fields[-1]) if len(fields) > ASS_FIELDS else ""
        else:
            text = plain_text(packet.text)
        yield TranscriptLine(packet.start, packet.end, text, short_language(stream.language))
