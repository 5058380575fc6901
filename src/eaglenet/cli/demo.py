"""`eaglenet demo`: index a few real clips with `small`, ask five queries, draw the hits."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eaglenet.cli.terminal import show_progress
from eaglenet.core.errors import UsageError, program_command, shell_quote
from eaglenet.core.progress import report_progress

if TYPE_CHECKING:
    from eaglenet.core.types import Hit
    from eaglenet.search.engine import Engine


CLIPS = Path(__file__).parent / "demo_clips"
"""Twelve videos and images under free licences; LICENSES.md beside them names their sources."""


class Question(NamedTuple):
    """A query of the demo, and the name of the file that answers it."""

    query: str
    file: str


QUESTIONS = (
    Question("a rocket on its launch pad", "rocket_launch.mp4"),
    Question("a racing car drives past a cafe", "rally_car.mp4"),
    Question("a cat walks across the patio", "cat_on_patio.mp4"),
    Question("skyscrapers at night", "city_at_night.mp4"),
    Question("camping with a tent and a car", "tent.jpg"),
)
RESULTS = 3

WIDTH, HEIGHT = 288, 162  # pixels of a drawn frame, 16:9
MARGIN, TITLE, CAPTION = 14, 30, 26  # pixels
BACKGROUND, INK, FAINT = (250, 250, 248), (28, 28, 30), (110, 110, 114)
FRAME_COLOUR = (28, 28, 30)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path(
        "demo"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Index twelve real clips with `small`, search them, and draw the hits as one picture.

    Needs no network. A second run indexes nothing again.
    """
    from eaglenet.indexing.index import IndexOptions, index_videos
    from eaglenet.search.engine import Engine
    from eaglenet.search.export import write_page
    from eaglenet.search.hits import SearchResult
    from eaglenet.search.model import DEFAULT_MODEL
    from eaglenet.search.query import Query

    if not CLIPS.is_dir():
        raise UsageError(f"{CLIPS}: the clips of the demo are missing; install the package again")
    started = time.perf_counter()
    say: Callable[[str], None] = (lambda text: None) if as_json else print
    with show_progress(quiet=as_json) as announce:
        progress = announce("")

        def report(state: Any) -> None:
            report_progress(progress, "indexing", state.done + state.skipped, state.total)

        # One process: starting workers takes longer than decoding a minute of video.
        indexed = index_videos(
            [CLIPS],
            output / "store",
            DEFAULT_MODEL,
            options=IndexOptions(workers=0),
            on_progress=report,
        )
    say(f"{indexed.clips} clips in {output}/store ({indexed.indexed} new files)\n")
    engine = Engine.open(output / "store")
    queries = [Query(question.query) for question in QUESTIONS]
    hits = engine.search_many(queries, RESULTS)
    draw_hits(output / "results.png", engine, hits)
    write_page(
        output / "results.html",
        engine,
        [SearchResult(query, found) for query, found in zip(queries, hits, strict=True)],
    )
    seconds = time.perf_counter() - started
    if as_json:
        answers = [
            {**question._asdict(), "hits": [asdict(hit) for hit in found]}
            for question, found in zip(QUESTIONS, hits, strict=True)
        ]
        report_fields = {
            "store": asdict(indexed),
            "answers": answers,
            "picture": str(output / "results.png"),
            "page": str(output / "results.html"),
            "seconds": round(seconds, 1),
        }
        print(json.dumps(report_fields))
        return
    for question, found in zip(QUESTIONS, hits, strict=True):
        say(f'"{question.query}"')
        for hit in found:
            say(f"  {hit.rank}. {hit.score:.3f}  {Path(hit.path).name}{_time_of(hit)}")
        say("")
    say(f"wrote {output}/results.png and {output}/results.html ({seconds:.0f} s in all)\n")
    say(next_steps(output / "store"))


def next_steps(store: Path) -> str:
    """Return the commands to try after the demo: own videos first."""
    program = program_command()
    return f"""Your own videos:
  {program} index FOLDER
  {program} search "a dog on a beach"
The clips of the demo:
  {program} search "a white parrot" --store {shell_quote(store)}
  {program} serve --store {shell_quote(store)}          a page to search in, on this machine only"""


def draw_hits(path: Path, engine: Engine, hits: Sequence[Sequence[Hit]]) -> None:
    """Draw one row per question: its hits, each as the frame at its best moment."""
    from PIL import Image, ImageDraw, ImageFont

    row = TITLE + HEIGHT + CAPTION
    size = (
        MARGIN + RESULTS * (WIDTH + MARGIN),
        MARGIN + len(QUESTIONS) * (row + MARGIN),
    )
    sheet = Image.new("RGB", size, BACKGROUND)
    drawing = ImageDraw.Draw(sheet)
    title_font: Any = ImageFont.load_default(19)
    caption_font: Any = ImageFont.load_default(13)
    for number, (question, found) in enumerate(zip(QUESTIONS, hits, strict=True)):
        top = MARGIN + number * (row + MARGIN)
        drawing.text((MARGIN, top), f"\u201c{question.query}\u201d", INK, title_font)
        for column, hit in enumerate(found):
            left = MARGIN + column * (WIDTH + MARGIN)
            corner = (left, top + TITLE)
            sheet.paste(_frame(engine, hit), corner)
            if hit.rank == 1:
                box = (left - 3, top + TITLE - 3, left + WIDTH + 2, top + TITLE + HEIGHT + 2)
                drawing.rectangle(box, outline=FRAME_COLOUR, width=3)
            text = f"{hit.rank}.  {Path(hit.path).name}{_time_of(hit)}    {hit.score:.2f}"
            colour = INK if hit.rank == 1 else FAINT
            drawing.text((left, top + TITLE + HEIGHT + 6), text, colour, caption_font)
    sheet.save(path)


def _frame(engine: Engine, hit: Hit) -> Any:
    """Return the frame at the best moment, cut to the drawn shape."""
    from PIL import Image, ImageOps

    data = engine.frame(hit.clip_id, hit.moment.best, size=WIDTH)
    with Image.open(io.BytesIO(data)) as image:
        # A tall frame keeps its upper part, where the subject mostly is.
        return ImageOps.fit(image.convert("RGB"), (WIDTH, HEIGHT), centering=(0.5, 0.4))


def _time_of(hit: Hit) -> str:
    return f" at {hit.moment.best:.1f} s" if hit.duration else ""
