"""Plain text for people: escaped lines, counts, sizes and durations."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterable


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8, by question marks.

    >>> without_surrogates("caf\\udce9")
    'caf?'
    """
    return text.encode("utf-8", "replace").decode()


_JOINERS = "\u200c\u200d"


def replace_invisible(text: str, replace: Callable[[str], str]) -> str:
    """Replace line breaks, control characters (C0 and C1) and marks that change text direction.

    All spaces stay: names on macOS contain narrow ones, Japanese names wide ones. So do joiners
    after other scripts and emoji, where they are part of the writing.

    >>> replace_invisible("two\\nlines", lambda _: "?")
    'two?lines'
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable()
        or unicodedata.category(char) == "Zs"
        or (char in _JOINERS and not text[index - 1 : index].isascii())
        else replace(char)
        for index, char in enumerate(text)
    )


def escape_line(text: str) -> str:
    """Escape what :func:`replace_invisible` replaces.

    >>> escape_line("two\\nlines, \\x1b[31mred, \\x9b31mred, \\u202egnp.exe")
    'two\\\\nlines, \\\\x1b[31mred, \\\\x9b31mred, \\\\u202egnp.exe'
    """
    return replace_invisible(text, lambda char: repr(char)[1:-1])


def escape_lines(text: str) -> str:
    """Apply :func:`escape_line` to each line."""
    return "\n".join(map(escape_line, text.split("\n")))


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun.

    >>> pluralize(1, "clip"), pluralize(1200, "copy", "copies")
    ('1 clip', '1,200 copies')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a suggestion to append to an error; empty if no name is similar.

    >>> did_you_mean("small-froze", ["small-frozen", "clip-b32"]), did_you_mean("x", ["clip-b32"])
    ("; did you mean 'small-frozen'?", '')
    """
    close_names = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close_names[0]!r}?" if close_names else ""


def list_unknown(
    names: Iterable[str], known_names: Iterable[str], advise: Callable[[str], str] | None = None
) -> str:
    """List unknown names, each with advice (from ``advise``, or the closest known name).

    >>> list_unknown(["shortlst", "x"], ["k", "shortlist"])
    "'shortlst' (did you mean 'shortlist'?), 'x'; known: k, shortlist"
    """
    known_names = list(known_names)
    entries = []
    for name in names:
        advice = (advise(name) if advise else "") or did_you_mean(name, known_names)[2:]
        entries.append(f"{name!r:.60} ({advice})" if advice else f"{name!r:.60}")
    return f"{', '.join(entries)}; known: {', '.join(known_names) or 'none'}"


def format_bytes(count: float) -> str:
    """Format a number of bytes in the largest fitting unit.

    >>> format_bytes(44_900_000), format_bytes(1_500_000_000), format_bytes(16_300_000_000)
    ('45 MB', '1.5 GB', '16 GB')
    """
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if count >= 1000:
            count, unit = count / 1000, larger
    return f"{count:.{int(count < 10 and unit != 'bytes')}f} {unit}"


def format_hours(hours: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> format_hours(1.5), format_hours(0.2), format_hours(0.02), format_hours(0)
    ('1.50 h', '12 min', '72 s', '0 s')
    """
    if hours >= 1:
        return f"{hours:.2f} h"
    return f"{hours * 60:.0f} min" if hours >= 0.1 else f"{hours * 3600:.0f} s"


def format_duration(seconds: float) -> str:
    """Format a duration as ``hours:minutes:seconds``.

    >>> format_duration(3725.4)
    '1:02:05'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def format_time(seconds: float) -> str:
    """Format a time in a video as ``minutes:seconds.tenth``, with hours where needed.

    >>> format_time(3725.5)
    '1:02:05.5'
    """
    tenths = round(seconds * 10)
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes:02}:{tenths / 10:04.1f}" if hours else f"{minutes}:{tenths / 10:04.1f}"
    return f"{hours}:{text}" if hours else text
