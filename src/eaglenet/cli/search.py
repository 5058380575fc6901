"""``eaglenet search``: find moments in a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.cli.store_options import StoreName
from eaglenet.cli.terminal import counted, one_line
from eaglenet.cli.words import NO_WORDS, show_words
from eaglenet.errors import UsageError, VideoDecodeError
from eaglenet.places import store_argument

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import Answer, CaptionHit
    from eaglenet.search.options import SearchOptions
    from eaglenet.types import Hit

LONGEST_TITLE = 200
"""Characters of a query above its table."""
_IN = Path("-")


def register(app: typer.Typer) -> None:
    app.command("search", help="Find moments with words, a picture or a video.")(search)


def search(
    store: StoreName,
    query: Annotated[str | None, typer.Argument(help="What should be seen.")] = None,
    k: Annotated[int, typer.Option("-k", "--results", help="Number of results.")] = 10,
    shortlist: Annotated[
        int, typer.Option(min=1, help="Clips that are ranked exactly; at least -k are.")
    ] = 100,
    model: Annotated[str | None, typer.Option(help="Where the model is, if it moved.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    queries: Annotated[
        Path | None, typer.Option(help="Text file with one query a line; - for standard input.")
    ] = None,
    negatives: Annotated[
        list[str] | None, typer.Option("--not", help="A phrase to keep away from; repeatable.")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="Search with a picture.")] = None,
    video: Annotated[Path | None, typer.Option(help="Search with a video file.")] = None,
    similar: Annotated[str | None, typer.Option(help="Search with a clip id.")] = None,
    captions: Annotated[
        Path | None,
        typer.Option(help="With --video or --similar: rank the lines of this file for it."),
    ] = None,
    parts: Annotated[
        str,
        typer.Option(
            "--in",
            help="Where to look: pictures, speech (subtitles too), text in frames; several with "
            'commas. "Quotes" enclose an exact phrase of speech or text.',
        ),
    ] = "pictures,speech,text",
    group: Annotated[bool, typer.Option("--group", help="One result a file.")] = False,
    unfold: Annotated[
        bool, typer.Option("--unfold", help="Show near copies of files and repeated moments too.")
    ] = False,
    path: Annotated[
        str | None, typer.Option(help="Only paths that match: '*.mov', 'holidays/*', or a part.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Only files changed since, 2026-05-31.")] = None,
    before: Annotated[str | None, typer.Option(help="Only files changed before.")] = None,
    min_duration: Annotated[float | None, typer.Option(help="Seconds, of the file.")] = None,
    max_duration: Annotated[float | None, typer.Option(help="Seconds, of the file.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag; repeatable.")] = None,
    save_clips: Annotated[
        Path | None, typer.Option(help="Write each result as a trimmed video here.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Write the results as a PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find moments with words, a picture or a video."""
    from eaglenet.search.engine import Engine
    from eaglenet.search.filters import make_filters
    from eaglenet.search.options import SearchOptions, parse_parts

    asked = Asked(query, queries, image, video, similar)
    asked.check(captions, negatives or [])
    filters = make_filters(
        path=path,
        after=after,
        before=before,
        min_duration=min_duration,
        max_duration=max_duration,
        tags=tag or (),
    )
    options = SearchOptions(
        filters,
        tuple(negatives or ()),
        group,
        shortlist,
        parts=parse_parts(parts),
        fold=not unfold,
    )
    engine = Engine.open(store, model, device)
    if captions is not None:
        ranked = engine.best_captions(similar or video or "", read_lines(captions), k)
        _show_captions(ranked, as_json)
        return
    answers = asked.ask(engine, k, options)
    saved: dict[str, str] = {}
    left_out: list[str] = []
    if save_clips is not None:
        saved, left_out = _save_clips(engine, answers, save_clips)
    written = _draw(engine, answers, html, picture)
    if as_json:
        _show_json(answers, saved, one=queries is None)
    else:
        for answer in answers:
            _show_table(answer, engine.why_empty(options))
        for line in (*(f"saved {name}" for name in saved.values()), *written):
            print(one_line(line))
    clips = len(engine.snapshot)
    if not clips:
        add = f"eaglenet index PATH{store_argument(store)}"
        print(f"{store} holds no clips yet; add videos with: {add}", file=sys.stderr)
    elif not as_json:
        print(f"searched {counted(clips, 'clip')} in {store}", file=sys.stderr)
    if "pictures" not in options.parts and not engine.info()["lines"]:
        print(NO_WORDS, file=sys.stderr)
    copies = len({path for each in answers for hit in each.hits for path in _copies(hit)})
    if copies and not as_json:
        found = counted(copies, "near copy", "near copies")
        print(f"{found} of these files not shown; --unfold shows all", file=sys.stderr)
    _tell_what_is_gone(answers, store)
    if left_out:
        print(f"{counted(len(left_out), 'result')} not saved:", file=sys.stderr)
        for reason in left_out:
            print(one_line(f"  {reason}"), file=sys.stderr)
        raise typer.Exit(VideoDecodeError.exit_code)


@dataclass(frozen=True)
class Asked:
    """What to search with; exactly one is given."""

    query: str | None
    queries: Path | None
    image: Path | None
    video: Path | None
    similar: str | None

    def check(self, captions: Path | None, negatives: list[str]) -> None:
        """Refuse what does not go together."""
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) != 1:
            raise UsageError("give exactly one of: QUERY, --queries, --image, --video, --similar")
        if captions is not None and given[0] not in ("video", "similar"):
            raise UsageError(
                "--captions ranks captions for a video: give --video FILE or --similar ID"
            )
        if negatives and given[0] not in ("query", "queries"):
            raise UsageError("--not works with words only, not with a picture or a video")

    def ask(self, engine: Engine, k: int, options: SearchOptions) -> list[Answer]:
        """Search, for each query if there are several."""
        from eaglenet.search.hits import Answer

        if self.query is not None or self.queries is not None:
            sentences = [self.query] if self.query is not None else read_lines(self.queries or _IN)
            found = engine.search_many(sentences, k, options=options)
            return [Answer(*pair) for pair in zip(sentences, found, strict=True)]
        if self.image is not None:
            return [Answer(str(self.image), engine.search_image(self.image, k, options=options))]
        if self.video is not None:
            return [Answer(str(self.video), engine.search_video(self.video, k, options=options))]
        clip_id = self.similar or ""
        return [Answer(clip_id, engine.similar(clip_id, k, options=options))]


def _draw(
    engine: Engine, answers: list[Answer], html: Path | None, picture: Path | None
) -> list[str]:
    """Write the results as a page and as a picture, where that is asked for; says what."""
    if html is not None:
        from eaglenet.search.pictures.page import write_page

        write_page(html, engine, answers)
    if picture is not None:
        from eaglenet.search.pictures.contact_sheet import write_contact_sheet

        write_contact_sheet(picture, engine, answers)
    return [f"wrote {path}" for path in (html, picture) if path is not None]


def _show_json(answers: list[Answer], saved: dict[str, str], *, one: bool) -> None:
    rows = [
        {
            "query": answer.query,
            "hits": [{**asdict(hit), "saved": saved.get(hit.clip_id)} for hit in answer.hits],
        }
        for answer in answers
    ]
    print(json.dumps(rows[0] if one else rows, ensure_ascii=False))


def _copies(hit: Hit) -> Sequence[str]:
    """Paths of near copies that were folded into a hit."""
    copies: Sequence[str] = hit.metadata.get("copies", ())
    return copies


def _tell_what_is_gone(answers: list[Answer], store: str) -> None:
    from eaglenet.search.indexing.files import is_gone

    paths = dict.fromkeys(hit.path for answer in answers for hit in answer.hits)
    gone = [path for path in paths if is_gone(path)]
    if gone:
        print(
            f"{len(gone)} of the files found are not there any more, {one_line(gone[0])} first; "
            f"forget them with: eaglenet index FOLDER{store_argument(store)} --drop-missing",
            file=sys.stderr,
        )


def read_lines(path: Path) -> list[str]:
    """Lines of a text file that are not blank."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a text file: {error}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{path}: has no line of text; write one sentence a line")
    return lines


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


def _show_table(answer: Answer, why_empty: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = answer.query
    if not answer.hits:
        print(one_line(f"nothing found for {title!r}" + (why_empty and f": {why_empty}")))
        return
    shown = title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 3]}..."
    shown = one_line(shown)
    table = Table(title=Text(shown), title_justify="left", box=None, pad_edge=False)
    for name in ("#", "score", "moment", "best", "file", "clip"):
        table.add_column(name, justify="right" if name in ("#", "score") else "left", no_wrap=True)
    for hit in answer.hits:
        # Terminals that know OSC 8 open the file; players that know media fragments seek.
        link = f"{Path(hit.path).as_uri()}#t={hit.moment.start:.1f}"
        table.add_row(
            str(hit.rank),
            f"{hit.score:.3f}",
            f"{clock(hit.moment.start)} - {clock(hit.moment.end)}",
            clock(hit.moment.best),
            Text(one_line(hit.path), style=f"link {link}", overflow="fold"),
            hit.clip_id,
        )
    # Wide enough for any path where the output is not a terminal and may be cut up by scripts.
    console = Console(width=None if sys.stdout.isatty() else 400)
    console.print(table)
    show_words(console, answer.hits)


def _show_captions(ranked: list[CaptionHit], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(hit) for hit in ranked], ensure_ascii=False))
        return
    for hit in ranked:
        print(
            f"{hit.rank:>3}  {hit.score:.3f}  {clock(hit.moment.best):>8}  {one_line(hit.caption)}"
        )


def _save_clips(
    engine: Engine, answers: list[Answer], folder: Path
) -> tuple[dict[str, str], list[str]]:
    """Cut each hit's moment out of its file; a hit of several queries is cut once.

    Also says which could not be: one file that is gone does not cost the other results.
    """
    from eaglenet.video.decoding import write_clip

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror}") from error
    saved: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for number, answer in enumerate(answers, 1):
        for hit in answer.hits:
            if hit.clip_id in saved or hit.clip_id in left_out:
                continue
            name = f"{number:02}-" if len(answers) > 1 else ""
            target = folder / f"{name}{hit.rank:03}-{hit.clip_id}.mp4"
            try:
                write_clip(engine.file_of(hit.clip_id), target, hit.moment.start, hit.moment.end)
            except VideoDecodeError as error:
                left_out[hit.clip_id] = str(error)
            else:
                saved[hit.clip_id] = str(target)
    return saved, list(left_out.values())
