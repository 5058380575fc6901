"""Search results in a terminal: a table that fits it, with nothing cut off."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglenet.cli.terminal import one_line
from eaglenet.cli.words import show_words

if TYPE_CHECKING:
    from eaglenet.search.hits import Answer
    from eaglenet.types import Hit

LONGEST_TITLE = 200
"""Characters of a query above its table."""
NARROWEST_FILE = 24
"""Columns; where fewer are left for the file, it gets lines of its own."""
GAP = "  "


def clock(seconds: float) -> str:
    """Minutes and seconds as players show them.

    >>> clock(3725.5)
    '1:02:05.5'
    """
    tenths = round(seconds * 10)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes:02}:{rest / 10:04.1f}" if hours else f"{minutes}:{rest / 10:04.1f}"
    return f"{hours}:{text}" if hours else text


def terminal_width() -> int | None:
    """Columns to fit into; None where the output is not a terminal and scripts may cut it up."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_answer(answer: Answer, short_ids: Mapping[str, str], why_empty: str) -> None:
    """Print a query and its table; ``why_empty``: what to say where nothing was found."""
    if not answer.hits:
        print(one_line(f"nothing found for {answer.query!r}" + (why_empty and f": {why_empty}")))
        return
    for line in table(answer, short_ids, terminal_width(), links=sys.stdout.isatty()):
        print(line)
    if any(hit.words for hit in answer.hits):
        from rich.console import Console

        show_words(Console(width=terminal_width() or 400), answer.hits)


def table(
    answer: Answer, short_ids: Mapping[str, str], width: int | None, *, links: bool = False
) -> list[str]:
    """The query, the folder that all files are in, and a line for each hit, or more if it must.

    ``links``: files are links that terminals open (OSC 8) and players begin at the moment.
    """
    title = answer.query
    title = title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 3]}..."
    folder = common_folder([hit.path for hit in answer.hits])
    rows = [_cells(hit, short_ids) for hit in answer.hits]
    heads = ["#", "score", "moment", "clip"]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    room = None if width is None else width - sum(widths) - len(GAP) * len(widths)
    lines = fold(one_line(title), width)
    lines += fold(one_line(f"in {home_short(folder)}"), width)
    is_beside = room is None or room >= NARROWEST_FILE
    lines.append(GAP.join([*_padded(heads, widths), *(["file"] if is_beside else [])]))
    for hit, cells in zip(answer.hits, rows, strict=True):
        name = one_line(os.path.relpath(hit.path, folder))
        start = GAP.join(_padded(cells, widths))
        link = f"{Path(hit.path).as_uri()}#t={hit.moment.start:.1f}" if links else ""
        if is_beside:
            first, *rest = fold(name, room)
            indent = " " * (len(start) + len(GAP))
            lines.append(start + GAP + _linked(first, link))
            lines += [indent + _linked(part, link) for part in rest]
        else:
            lines.append(start)
            parts = fold(name, None if width is None else max(8, width - len(GAP)))
            lines += [GAP + _linked(part, link) for part in parts]
    return lines


def _cells(hit: Hit, short_ids: Mapping[str, str]) -> list[str]:
    moment = f"{clock(hit.moment.start)}-{clock(hit.moment.end)}" if hit.duration else "picture"
    return [
        str(hit.rank),
        f"{hit.score:.3f}",
        moment,
        short_ids.get(hit.clip_id, hit.clip_id),
    ]


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Numbers to the right, words to the left."""
    rank, score, *others = zip(cells, widths, strict=True)
    numbers = [cell.rjust(size) for cell, size in (rank, score)]
    return numbers + [cell.ljust(size) for cell, size in others]


def common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that all files are in.

    >>> common_folder(["/videos/a/1.mp4", "/videos/b/2.mp4"])
    '/videos'
    """
    return os.path.commonpath([os.path.dirname(path) for path in paths])


def home_short(path: str) -> str:
    """A path as people write it: ``~`` for their own folder."""
    home = os.path.expanduser("~")
    inside = path == home or path.startswith(home.rstrip("/") + "/")
    return "~" + path[len(home) :] if inside and home != "/" else path


def fold(text: str, width: int | None) -> list[str]:
    """Text in pieces of at most ``width`` columns; signs of East Asia take two.

    >>> fold("a-long-name.mp4", 6)
    ['a-long', '-name.', 'mp4']
    """
    if width is None:
        return [text]
    lines, line, used = [], "", 0
    for sign in text:
        size = 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if used + size > width and line:
            lines.append(line)
            line, used = "", 0
        line, used = line + sign, used + size
    return [*lines, line]


def _linked(text: str, link: str) -> str:
    return f"\x1b]8;;{link}\x1b\\{text}\x1b]8;;\x1b\\" if link else text
