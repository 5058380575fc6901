"""Laws of the source tree: files that can be read in one sitting."""

from __future__ import annotations

from pathlib import Path

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
