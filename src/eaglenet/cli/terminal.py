"""Text for a terminal: names of files may hold signs that would move its cursor or colour it."""

from __future__ import annotations

import logging


def one_line(text: str) -> str:
    """Line breaks and other signs that upset a terminal, shown as escapes.

    >>> one_line("two\\nlines, \\x1b[31mred")
    'two\\\\nlines, \\\\x1b[31mred'
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def counted(number: int, thing: str, several: str = "") -> str:
    """A number and what it counts.

    >>> counted(1, "clip"), counted(1200, "copy", "copies")
    ('1 clip', '1,200 copies')
    """
    return f"{number:,} {thing if number == 1 else several or thing + 's'}"


def lines(text: str) -> str:
    """:func:`one_line` for each line."""
    return "\n".join(map(one_line, text.split("\n")))


class SafeFormatter(logging.Formatter):
    """Log lines that name files of others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the library's name)
        return lines(super().formatMessage(record))
