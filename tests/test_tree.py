"""Laws of the source tree: files and commands that can be read in one sitting."""

from __future__ import annotations

import inspect
from pathlib import Path

from eaglenet.cli.search import search

SOURCE = Path(__file__).parents[1] / "src" / "eaglenet"
MOST_LINES = 350
"""Of a file; what grows beyond it does two things."""


def test_no_file_is_too_long_to_read() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text("utf-8").splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_the_search_command_is_options_and_a_page_of_steps() -> None:
    """It has an option for every wish; what is done with them stands elsewhere."""
    lines, _ = inspect.getsourcelines(search)
    assert len(lines) <= 75
