"""Search results as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from eaglenet.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.search.hits import Answer
from eaglenet.types import Hit

STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
ol { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr));
     list-style: none; padding: 0; }
li { border: 1px solid #8884; border-radius: .5rem; overflow: hidden; }
img { aspect-ratio: 16 / 9; background: #8882; display: block; object-fit: cover; width: 100%; }
p { margin: .5rem .75rem; overflow-wrap: anywhere; }
small { opacity: .7; }
"""


def write_page(path: Path, engine: Engine, answers: Sequence[Answer]) -> None:
    """Write the results of each query under it, thumbnails inside the file."""
    sections = []
    for answer in answers:
        items = "".join(_item(engine, hit) for hit in answer.hits)
        sections.append(f"<h1>{escape(answer.query)}</h1>\n<ol>\n{items}</ol>\n")
    title = ", ".join(answer.query for answer in answers)[:100]
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{''.join(sections)}</body>\n</html>\n"
    )
    try:
        path.write_text(page, "utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def _item(engine: Engine, hit: Hit) -> str:
    picture = base64.b64encode(engine.thumbnail(hit.clip_id)).decode()
    link = escape(f"{Path(hit.path).as_uri()}#t={hit.moment.start:.1f}", quote=True)
    span = f"{hit.moment.start:.1f} - {hit.moment.end:.1f} s" if hit.duration else "picture"
    best = f"best at {hit.moment.best:.1f} s, " if hit.duration else ""
    return (
        f'<li><a href="{link}"><img alt="" src="data:image/jpeg;base64,{picture}"></a>'
        f"<p><b>{hit.rank}.</b> {span} <small>{best}score {hit.score:.3f}</small></p>"
        f"<p><small>{escape(hit.path)}</small></p></li>\n"
    )
