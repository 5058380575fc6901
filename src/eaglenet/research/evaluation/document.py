"""Documents of headings, paragraphs, tables and images, written as Markdown and as HTML."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglenet.core.files import write_bytes, write_text

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1c1c; background: #ffffff; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #cccccc; padding: 0.25rem 0.6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { background: #f2f2f2; }
img { max-width: 100%; }
figcaption { color: #555555; }
.scroll { overflow-x: auto; }
"""


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """PNG bytes; ``name`` is the file's stem beside the Markdown."""

    name: str
    caption: str
    png: bytes


Block = Heading | Paragraph | Table | Figure


def write_document(folder: Path, title: str, blocks: Sequence[Block]) -> tuple[Path, Path]:
    """Write ``report.md`` with images beside it, and ``report.html`` with embedded images."""
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks:
        if isinstance(block, Figure):
            write_bytes(folder / f"{block.name}.png", block.png)
    markdown, page = folder / "report.md", folder / "report.html"
    write_text(markdown, to_markdown(title, blocks))
    write_text(page, to_html(title, blocks))
    return markdown, page


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"# {title}"]
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Figure(name, caption, _):
                parts.append(f"![{caption}]({name}.png)\n\n*{caption}*")
            case Table(header, rows):
                parts.append(_markdown_table(header, rows))
    return "\n\n".join(parts) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; short rows are padded."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---"] + ["---:"] * (len(header) - 1)
    full = ([*row, *[""] * (len(header) - len(row))] for row in rows)
    return "\n".join([line(header), line(rule), *(line(row) for row in full)])


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """Render a page that needs no other file: images are embedded, nothing is fetched."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"<h{level}>{html.escape(text)}</h{level}>")
            case Paragraph(text):
                parts.append(f"<p>{html.escape(text)}</p>")
            case Figure(_, caption, png):
                data = base64.b64encode(png).decode()
                text = html.escape(caption, quote=True)
                parts.append(
                    f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
                    f"<figcaption>{text}</figcaption></figure>"
                )
            case Table(header, rows):
                parts.append(_html_table(header, rows))
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values)

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>\n{body}\n</tbody></table></div>'
