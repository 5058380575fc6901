"""Subtitles beside and inside video files: SubRip, WebVTT and SubStation Alpha.

Files are untrusted. `pysubs2` parses them, after sizes, lines and cues are limited so that every
file takes linear time. Unreadable lines are skipped; a file without a readable line is an error.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

from eaglenet.core import untrusted
from eaglenet.transcripts.lines import MAX_LINES, TranscriptLine, clean_lines
from eaglenet.video.containers import open_container, pyav
from eaglenet.video.limits import MAX_PACKETS

MAX_BYTES = 16 * 2**20
"""Maximum size of a subtitle file; that of a feature film has a few hundred kilobytes."""
MAX_CUE_LINES = 64
OLDER_ENCODINGS = {
    **dict.fromkeys(("cs", "hr", "hu", "pl", "ro", "sk", "sl"), "cp1250"),
    **dict.fromkeys(("bg", "ru", "uk"), "cp1251"),
    **dict.fromkeys(("ar", "fa"), "cp1256"),
    **dict.fromkeys(("et", "lt", "lv"), "cp1257"),
    **dict.fromkeys(("zh-TW", "zh-HK", "zh-Hant"), "big5hkscs"),
    "el": "cp1253", "tr": "cp1254", "he": "cp1255", "vi": "cp1258", "th": "cp874",
    "ja": "cp932", "ko": "cp949", "zh": "gb18030",
}  # fmt: skip
"""Encoding of subtitle files that are not Unicode, by language."""
SUFFIXES = frozenset({".srt", ".vtt", ".ass", ".ssa"})
EVENT_COLUMNS = "Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text"
"""Columns of SubStation events without a ``Format:`` line."""
_TIME = re.compile(r"(\d:\d{1,2})[.,](?=\d)")
_TAG = re.compile(r"<(?:/?[a-zA-Z]|\d{1,4}:)[^<>]{0,200}>")
_TIME_TAG = re.compile(r"<\d[\d:.]{0,20}>")
"""Time of a word in WebVTT; pysubs2 takes a row with two of them for the times of a cue."""
_CUE_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?"
_CUE_TIMES = re.compile(rf"\s*{_CUE_TIME}\s*-->\s*{_CUE_TIME}(?![\d:.,])")
_STYLE = re.compile(r"\{\\[^{}]{0,500}\}")
_DRAWING = re.compile(r"\\p[1-9]")


def read_subtitles(
    path: Path, descriptor: int | None = None, language: str = ""
) -> list[TranscriptLine]:
    """Read a subtitle file; raise ``ValueError`` or ``OSError`` if it cannot be read.

    descriptor: the open file, if it is open already; it is closed. language: that of its name.
    """
    text = decode(untrusted.read_bytes(path, MAX_BYTES, descriptor), language)
    lines = clean_lines(
        parse_subtitles(text, is_substation=path.suffix.lower() in (".ass", ".ssa"))
    )
    if not lines and text.strip():
        raise ValueError("no line with start and end times")
    return lines


def decode(content: bytes, language: str = "") -> str:
    """Decode by byte-order mark, or else as the first valid encoding.

    These are UTF-16, UTF-8, the usual older encoding of the language, and Windows-1252.

    >>> decode("Gr\u00fc\u00dfe".encode("latin-1"))
    'Gr\u00fc\u00dfe'
    >>> decode("\u043c\u0438\u0440".encode("cp1251"), "ru")
    '\u043c\u0438\u0440'
    """
    for mark, encoding in (
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    head = content[:4096]
    # In UTF-16, every other byte of digits, punctuation and Latin letters is zero.
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if head[first::2].count(0) > len(head) // 8:
            return content.decode(encoding, "replace")
    older = OLDER_ENCODINGS.get(language) or OLDER_ENCODINGS.get(language.partition("-")[0])
    for encoding in ("utf-8", older or "cp1252", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1")


def parse_subtitles(text: str, *, is_substation: bool = False) -> Iterator[TranscriptLine]:
    """Parse SubRip and WebVTT, or SubStation Alpha."""
    from pysubs2 import SSAFile
    from pysubs2.formats.subrip import SubripFormat

    class Subrip(SubripFormat):
        # pysubs2 reads the last two digits of the hours only: "100:00:01" as 0 hours.
        TIMESTAMP = re.compile(r"(\d{1,4}):(\d{1,2}):(\d{1,2})[.,](\d{1,3})")

    # splitlines() would also split at characters that occur inside lines.
    # Programs that convert line ends twice write "\r\r\n".
    lines = re.sub("\r{1,2}\n|\r", "\n", text).split("\n")
    is_webvtt = not is_substation and text.lstrip().startswith("WEBVTT")
    bounded_lines = (
        _bounded_events(lines) if is_substation else _bounded_cues(lines, is_webvtt=is_webvtt)
    )
    bounded_text = "\n".join(bounded_lines)
    # plain_text() removes the tags, since the patterns of pysubs2 take quadratic time.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They are about lines that are not cues, which are common.
        if is_substation or is_webvtt:
            kind = "ass" if is_substation else "vtt"
            events = SSAFile.from_string(bounded_text, format_=kind, keep_html_tags=True)
        else:
            events = SSAFile()
            Subrip.from_file(events, io.StringIO(bounded_text), "srt", keep_html_tags=True)
    for event in events:
        yield TranscriptLine(event.start / 1000, event.end / 1000, event_text(event.text))


def format_subtitles(lines: Iterable[TranscriptLine], *, is_webvtt: bool = False) -> str:
    """Format lines as SubRip or WebVTT; no text can end its cue or begin another one.

    >>> print(format_subtitles([TranscriptLine(1, 2.5, "a --> b")]).strip())
    1
    00:00:01,000 --> 00:00:02,500
    a -> b
    """
    cues = ["WEBVTT\n\n"] if is_webvtt else []
    point = "." if is_webvtt else ","
    for number, line in enumerate(lines, 1):
        rows = (_cue_row(row) for row in line.text.splitlines())
        text = "\n".join(row for row in rows if row)
        if is_webvtt:
            text = html.escape(text, quote=False)
        times = (_cue_time(seconds, point) for seconds in (line.start, line.end))
        cues.append(f"{number}\n{' --> '.join(times)}\n{text}\n\n")
    return "".join(cues)


def _cue_row(text: str) -> str:
    """Change a row of text so that no reader mistakes it for the times of a cue."""
    return _without_times(" ".join(text.split()).replace("-->", "->"))


def _full_times(row: str) -> str:
    """Add the hours and milliseconds that some programs leave out of SubRip.

    >>> _full_times("01:02 --> 01:05,5")
    '0:01:02,0 --> 0:01:05,5'
    """
    match = _CUE_TIMES.match(row)
    if match is None:
        return row
    start, end = (
        f"{hours or 0}:{minutes}:{seconds},{fraction or 0}"
        for hours, minutes, seconds, fraction in (match.groups()[:4], match.groups()[4:])
    )
    return f"{start} --> {end}"


def _without_times(row: str) -> str:
    return _TIME.sub(r"\1 ", row) if len(_TIME.findall(row)) > 1 else row


def _cue_time(seconds: float, point: str) -> str:
    total, milliseconds = divmod(round(max(seconds, 0.0) * 1000), 1000)
    minutes, second = divmod(total, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{point}{milliseconds:03}"


def _bounded_cues(lines: list[str], *, is_webvtt: bool) -> Iterator[str]:
    """Yield the cues of SubRip or WebVTT: times, text up to a blank line, and a number line.

    pysubs2 reads all lines up to the next cue as text, including notes and styles, and removes a
    number from the end. In WebVTT, a line of spaces is text: captions of YouTube begin with one.
    """
    num_cues = remaining_lines = 0
    for line in (*lines, ""):
        if "-->" in line:
            num_cues, remaining_lines = num_cues + 1, MAX_CUE_LINES
            if num_cues > MAX_LINES:
                return
            yield line if is_webvtt else _full_times(line)
        elif remaining_lines and (line if is_webvtt else line.strip()):
            remaining_lines -= 1
            yield _without_times(_TIME_TAG.sub("", line))
        elif remaining_lines:
            remaining_lines = 0
            yield from ("", "0")


def _bounded_events(lines: list[str]) -> Iterator[str]:
    """Yield the dialogue of SubStation Alpha with valid times, in the default column order.

    pysubs2 ignores ``Format:`` lines, and fails at an invalid time or style.
    """
    from pysubs2.time import TIMESTAMP

    columns = _column_names(EVENT_COLUMNS)
    section = "[events]"
    num_events = 0
    for line in lines:
        name, _, value = line.partition(":")
        key = name.strip().lower()
        if line.startswith("["):
            section = line.strip().lower()
        elif section != "[events]":
            continue
        elif key == "format" and {"start", "end", "text"} <= set(_column_names(value)):
            columns = _column_names(value)
        elif key == "dialogue" and num_events < MAX_LINES:
            values = dict(zip(columns, value.split(",", len(columns) - 1), strict=False))
            start, end = (values.get(name, "").strip() for name in ("start", "end"))
            if TIMESTAMP.match(start) and TIMESTAMP.match(end):
                num_events += 1
                yield f"Dialogue: 0,{start},{end},,,0,0,0,,{values.get('text', '')}"


def _column_names(text: str) -> list[str]:
    return [name.strip().lower() for name in text.split(",")][:32]


def event_text(text: str) -> str:
    """Return the plain text of a subtitle event; empty for a drawing."""
    if _DRAWING.search(text):
        return ""
    return plain_text(text.replace("\\N", "\n").replace("\\n", "\n").replace("\\h", " "))


def plain_text(text: str) -> str:
    """Remove tags, style overrides and entities.

    >>> plain_text("<i>Tom &amp; Jerry</i>{\\\\an8}")
    'Tom & Jerry'
    """
    return html.unescape(_STYLE.sub("", _TAG.sub("", text)))


# Files beside a video: ``film.srt``, ``film.en.srt``, ``film.pt-BR.forced.vtt``.

QUALIFIERS = frozenset(
    {"forced", "sdh", "cc", "default", "foreign", "full", "signs", "auto", "orig"}
)
"""Parts of subtitle file names other than languages."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][a-z0-9]{2,8}){0,2}", re.IGNORECASE)
TWO_LETTER_CODES = {
    "eng": "en", "deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "ita": "it",
    "por": "pt", "rus": "ru", "zho": "zh", "chi": "zh", "jpn": "ja", "kor": "ko", "ara": "ar",
    "nld": "nl", "dut": "nl", "swe": "sv", "pol": "pl", "tur": "tr", "hin": "hi", "und": "",
    "bul": "bg", "cat": "ca", "ces": "cs", "cze": "cs", "dan": "da", "ell": "el", "gre": "el",
    "est": "et", "eus": "eu", "baq": "eu", "fas": "fa", "per": "fa", "fin": "fi", "gle": "ga",
    "heb": "he", "hrv": "hr", "hun": "hu", "hye": "hy", "arm": "hy", "ind": "id", "lav": "lv",
    "lit": "lt", "nep": "ne", "nno": "nn", "nob": "nb", "nor": "no", "ron": "ro", "rum": "ro",
    "slk": "sk", "slo": "sk", "slv": "sl", "srp": "sr", "tam": "ta", "tha": "th", "ukr": "uk",
    "vie": "vi", "yid": "yi",
}  # fmt: skip
"""Two-letter codes for common three-letter codes."""


@dataclass(frozen=True)
class SubtitleFile:
    """A subtitle file beside a video; ``language`` comes from its name."""

    path: str
    size: int
    modified_ns: int
    language: str
    is_link: bool = False


class SubtitleFinder:
    """Finds subtitle files beside videos; lists each folder once."""

    def __init__(self) -> None:
        self._folders: dict[str, list[os.DirEntry[str]]] = {}
        self.problems: dict[str, str] = {}
        """Reasons why folders or files could not be read, by path."""

    def beside(self, video: str) -> list[SubtitleFile]:
        """Return the subtitle files of a video, by name; see :attr:`problems`."""
        folder, name = os.path.split(video)
        stem = PurePath(name).stem
        files = []
        # A folder may have thousands of both: only the names that begin with "STEM." are compared.
        entries, name_of = self._list(folder), attrgetter("name")
        first, end = (bisect_left(entries, f"{stem}{mark}", key=name_of) for mark in "./")
        for entry in entries[first:end]:
            language = language_of(entry.name, stem)
            if language is None:
                continue
            try:
                if entry.is_file():
                    status = entry.stat()
                    files.append(
                        SubtitleFile(
                            entry.path,
                            status.st_size,
                            status.st_mtime_ns,
                            language,
                            entry.is_symlink(),
                        )
                    )
            except FileNotFoundError:
                continue  # Removed since the folder was listed.
            except OSError as error:
                self.problems[entry.path] = error.strerror or str(error)
        return files

    def _list(self, folder: str) -> list[os.DirEntry[str]]:
        """Return the subtitle files in a folder by name."""
        if folder not in self._folders:
            files: list[os.DirEntry[str]] = []
            try:
                with os.scandir(folder) as entries:
                    files += (
                        entry
                        for entry in entries
                        if PurePath(entry.name).suffix.lower() in SUFFIXES
                        and untrusted.is_utf8(entry.path)
                    )
            except (FileNotFoundError, NotADirectoryError):
                files = []
            except OSError as error:
                files = []
                self.problems[folder] = error.strerror or str(error)
            self._folders[folder] = sorted(files, key=attrgetter("name"))
        return self._folders[folder]


def language_of(name: str, stem: str) -> str | None:
    """Return the language in the name of a subtitle file; None if it belongs to another video.

    >>> language_of("film.eng.forced.srt", "film"), language_of("film.srt", "film")
    ('en', '')
    >>> language_of("film.en.hi.srt", "film"), language_of("film.hi.srt", "film")
    ('en', 'hi')
    >>> language_of("film.part2.srt", "film") is None
    True
    """
    subtitle_stem = PurePath(name).stem
    if not subtitle_stem.startswith(stem):
        return None
    suffixes = subtitle_stem[len(stem) :]
    if not suffixes:
        return ""
    if not suffixes.startswith("."):
        return None
    language = ""
    for part in suffixes[1:].split("."):
        # After a language, "hi" means hearing impaired, otherwise Hindi.
        if part.lower() in QUALIFIERS or (language and part.lower() == "hi"):
            continue
        if language or not _LANGUAGE.fullmatch(part):
            return None
        language = short_language(part)
    return language


def short_language(code: str) -> str:
    """Shorten a language code to two letters if possible, and keep its region.

    >>> short_language("eng"), short_language("pt_BR"), short_language("und")
    ('en', 'pt-BR', '')
    """
    first, *region = code.replace("_", "-").split("-")
    first = TWO_LETTER_CODES.get(first.lower(), first.lower())
    return "-".join([first, *region]) if first else ""


# Subtitles inside a video file, which are packets of UTF-8 text.

TEXT_CODECS = frozenset({"subrip", "srt", "webvtt", "mov_text", "ass", "ssa", "text"})
MAX_STREAMS = 64
MAX_TEXT_BYTES = 64 * 2**20
"""Maximum bytes of subtitle packets per video file."""
ASS_FIELDS = 8
"""Fields before the text of an event in Matroska: number, layer, style, name, margins, effect."""


def read_embedded_subtitles(path: str | Path) -> list[TranscriptLine]:
    """Read the lines of every text stream of a video, with the language of the stream.

    Ignores image subtitles (DVD, Blu-ray), and reads no packets if there are no text streams.
    """
    with open_container(Path(path)) as container:
        streams = [
            stream
            for stream in list(container.streams.subtitles)[:MAX_STREAMS]
            if stream.codec_context is not None and stream.codec_context.name in TEXT_CODECS
        ]
        return clean_lines(_packet_lines(container, streams)) if streams else []


def _packet_lines(container: Any, streams: Sequence[Any]) -> Iterator[TranscriptLine]:
    zero = (container.start_time or 0) / 1e6
    remaining_bytes = MAX_TEXT_BYTES
    with contextlib.suppress(pyav().FFmpegError):
        for count, packet in enumerate(container.demux(*streams)):
            if count >= MAX_PACKETS or remaining_bytes < 0:
                return
            if packet.pts is None or not packet.size:
                continue
            remaining_bytes -= packet.size
            tick = float(packet.time_base)
            start = packet.pts * tick - zero
            end = start + (packet.duration or 0) * tick
            text = _packet_text(bytes(packet), packet.stream.codec_context.name)
            language = packet.stream.metadata.get("language", "")
            yield TranscriptLine(start, end, text, short_language(language))


def _packet_text(content: bytes, codec: str) -> str:
    if codec == "mov_text":
        # Two bytes of length, the text, and style boxes.
        size = int.from_bytes(content[:2], "big")
        content = content[2 : 2 + size]
    text = content.rstrip(b"\x00").decode("utf-8", "replace")
    if codec not in ("ass", "ssa"):
        return plain_text(text)
    fields = text.split(",", ASS_FIELDS)
    return event_text(fields[-1]) if len(fields) > ASS_FIELDS else ""
