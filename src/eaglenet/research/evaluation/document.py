"""Documents in Markdown with figures, and with their tables in LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglenet.core.files import write_bytes, write_text
from eaglenet.research.evaluation.figures import Picture
from eaglenet.research.evaluation.latex import (
    LatexTable,
    escape_latex,
    escape_number,
    format_tables,
)


@dataclass(frozen=True)
class Figure:
    """A picture; ``name`` is the stem of its files beside the Markdown."""

    name: str
    caption: str
    picture: Picture


@dataclass(frozen=True)
class Table:
    """A table of our results, as Markdown and for a paper."""

    markdown: str
    latex: LatexTable


Block = str | Figure | Table
"""Markdown, a figure or a table."""
TABLES = "tables.tex"
"""File with the tables of a report as LaTeX."""


def write_document(folder: Path, title: str, blocks: Sequence[Block]) -> Path:
    """Write ``report.md``, with its figures and its tables in LaTeX beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        if isinstance(block, Figure):
            write_bytes(folder / f"{block.name}.png", block.picture.png)
            write_bytes(folder / f"{block.name}.pdf", block.picture.pdf)
    tables = [block.latex for block in blocks if isinstance(block, Table)]
    write_text(folder / TABLES, format_tables(tables))
    path = folder / "report.md"
    write_text(path, to_markdown(title, blocks))
    return path


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    texts = [
        f"![{block.caption}]({block.name}.png)\n\n*{block.caption}* ([PDF]({block.name}.pdf))"
        if isinstance(block, Figure)
        else block.markdown
        if isinstance(block, Table)
        else block
        for block in blocks
    ]
    return "\n\n".join([f"# {title}", *texts]) + "\n"


def make_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; short rows are padded."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---"] + ["---:"] * (len(header) - 1)
    padded_rows = ([*row, *[""] * (len(header) - len(row))] for row in rows)
    return "\n".join([line(header), line(rule), *map(line, padded_rows)])


def plain_table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], num_names: int = 1
) -> Table:
    """Make a table whose cells are the same in Markdown and in LaTeX."""
    latex_rows = [
        [*map(escape_latex, row[:num_names]), *map(escape_number, row[num_names:])] for row in rows
    ]
    names = [escape_latex(name) for name in header]
    return Table(
        make_table(header, rows), LatexTable(caption, names, latex_rows, num_names=num_names)
    )
