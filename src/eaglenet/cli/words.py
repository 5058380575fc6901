"""Words that were found, below the table of results: which part, when, and the line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from eaglenet.cli.terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from eaglenet.types import FoundWords, Hit

NO_WORDS = (
    "this store holds no words: subtitles inside and beside videos are indexed by themselves; "
    "`eaglenet index --listen MODEL` hears speech, `--read-text` reads frames"
)
"""Said where only words were searched and there are none."""


def show_words(console: Console, hits: Iterable[Hit]) -> None:
    """A line for each line that was found, what was asked for in bold."""
    for hit in hits:
        for line in hit.words:
            part = "text" if line.kind == "text" else "speech"
            console.print(f"{hit.rank:>3} {part:<6} ", highlighted(line), sep="", soft_wrap=True)


def highlighted(line: FoundWords) -> Text:
    """The line with what was asked for in bold."""
    from rich.text import Text

    text, end = Text(), 0
    for start, stop in line.highlights:
        text.append(one_line(line.text[end:start]))
        text.append(one_line(line.text[start:stop]), style="bold reverse")
        end = stop
    return text.append(one_line(line.text[end:]))
