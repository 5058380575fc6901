"""Subtitle files: SubRip (.srt), WebVTT (.vtt), SubStation Alpha (.ass, .ssa).

Others made them, so nothing of them is trusted: sizes are bounded, what cannot be read is passed
over, and a file without one line that can be read is an error.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from eaglenet import foreign
from eaglenet.words.lines import Line, clean_lines

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


def read_subtitles(path: Path) -> list[Line]:
    """The lines of a subtitle file; ``ValueError`` or ``OSError`` says why there are none."""
    text = decode(foreign.read_bytes(path, MAX_BYTES))
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


def cues(text: str) -> Iterator[Line]:
    """Lines of SubRip and WebVTT: times with an arrow, then text up to an empty line."""
    times: tuple[float, float] | None = None
    words: list[str] = []
    for line in _split(text):
        match = _TIMES.match(line) if "-->" in line else None
        if match is None:
            if not line.strip():
                if times is not None:
                    yield Line(*times, plain_text("\n".join(words)))
                times, words = None, []
            elif times is not None and len(words) < 64:
                words.append(line)
            continue
        if times is not None:
            # No empty line between two cues: the last line was the number of this one.
            kept = words[:-1] if words and words[-1].strip().isdigit() else words
            yield Line(*times, plain_text("\n".join(kept)))
        groups = match.groups()
        times, words = (_seconds(groups[:4]), _seconds(groups[4:])), []
    if times is not None:
        yield Line(*times, plain_text("\n".join(words)))


def events(text: str) -> Iterator[Line]:
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
                yield Line(_seconds(start.groups()), _seconds(end.groups()), words)


def event_text(text: str) -> str:
    """The words of an event; none where it is a drawing."""
    if _DRAWING.search(text):
        return ""
    return plain_text(text.replace("\\N", "\n").replace("\\n", "\n").replace("\\h", " "))


READERS: dict[str, Callable[[str], Iterator[Line]]] = {
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
