"""``eaglenet search``: find moments in a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eaglenet.cli import search_options as given
from eaglenet.cli.asked import Asked, sentence_of
from eaglenet.cli.asking import ask_on
from eaglenet.cli.graphics import Draw
from eaglenet.cli.graphics import choose as choose_drawing
from eaglenet.cli.players import play
from eaglenet.cli.quick import begin_short_command
from eaglenet.cli.results import clock, show_answer
from eaglenet.cli.saving import Saved, save_hits
from eaglenet.cli.store_options import StoreName
from eaglenet.cli.terminal import counted, one_line
from eaglenet.cli.words import NO_WORDS
from eaglenet.command_lines import store_argument
from eaglenet.errors import UsageError, VideoDecodeError

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import Answer, CaptionHit
    from eaglenet.search.options import SearchOptions
    from eaglenet.types import Hit


def register(app: typer.Typer) -> None:
    app.command("search", help="Find moments with words, a picture or a video.")(search)


def search(
    store: StoreName,
    query: given.Words = None,
    k: given.Results = 10,
    shortlist: given.Shortlist = 100,
    model: given.ModelMoved = None,
    device: given.SearchDevice = "auto",
    queries: given.QueryFile = None,
    negatives: given.Negatives = None,
    image: given.ImageFile = None,
    video: given.VideoFile = None,
    similar: given.SimilarTo = None,
    captions: given.CaptionFile = None,
    parts: given.Parts = "pictures,speech,text",
    group: given.Grouped = False,
    unfold: given.Unfolded = False,
    path: given.PathPattern = None,
    after: given.After = None,
    before: given.Before = None,
    min_duration: given.Seconds = None,
    max_duration: given.Seconds = None,
    tag: given.Tags = None,
    save_clips: given.SaveClips = None,
    padding: given.Padding = 1.0,
    save_as: given.SaveAs = "video",
    pictures: given.InTerminal = False,
    open_best: given.OpenBest = False,
    html: given.HtmlFile = None,
    picture: given.PictureFile = None,
    as_json: given.AsJson = False,
) -> None:
    """Find moments with words, a picture or a video."""
    begin_short_command()
    from eaglenet.search.engine import Engine
    from eaglenet.search.filters import make_filters
    from eaglenet.search.options import SearchOptions, parse_parts

    asked = Asked(sentence_of(query), queries, image, video, similar)
    shown = Shown(store, save_clips, padding, save_as, open_best, html, picture, as_json)
    is_talk = asked.is_nothing and sys.stdin.isatty() and not as_json
    if not is_talk:
        asked.check(captions, negatives or [])
    shown.check()
    draw = _drawing() if pictures else None
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
    if is_talk:
        _talk(engine, k, options, draw)
    elif captions is not None:
        _show_captions(asked.ask_captions(engine, captions, k), as_json)
    else:
        shown.show(engine, asked.ask(engine, k, options), options, draw, one=queries is None)


def _talk(engine: Engine, k: int, options: SearchOptions, draw: Draw | None) -> None:
    """Ask for words and answer them, until there are none."""
    ask_on(
        lambda line: Asked(line, None, None, None, None).ask(engine, k, options)[0],
        lambda answer: _show(engine, answer, options, draw),
    )


@dataclass(frozen=True)
class Shown:
    """What is done with the answers: printed, saved, drawn, played."""

    store: str
    save_clips: Path | None
    padding: float
    save_as: str
    open_best: bool
    html: Path | None
    picture: Path | None
    as_json: bool

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.save_as != "video" and self.save_clips is None:
            raise UsageError(
                f"--save-as {self.save_as} says how to save clips; say where: --save-clips FOLDER"
            )

    def show(
        self,
        engine: Engine,
        answers: list[Answer],
        options: SearchOptions,
        draw: Draw | None,
        *,
        one: bool,
    ) -> None:
        """``one``: a single query was asked, and JSON has its answer alone."""
        saved = Saved()
        if self.save_clips is not None:
            saved = save_hits(
                engine, answers, self.save_clips, padding=self.padding, form=self.save_as
            )
        written = _draw(engine, answers, self.html, self.picture)
        if self.as_json:
            _show_json(answers, saved, one=one)
        else:
            for answer in answers:
                _show(engine, answer, options, draw)
            for line in (*(f"saved {name}" for name in saved.paths.values()), *written):
                print(one_line(line))
        _tell_what_was_searched(engine, options, self.store, self.as_json)
        if not self.as_json:
            _tell_what_is_folded(answers)
        _tell_what_is_gone(answers, self.store)
        if self.open_best and answers[0].hits:
            _play(answers[0].hits[0])
        _tell_what_is_not_saved(saved)


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


def _show(engine: Engine, answer: Answer, options: SearchOptions, draw: Draw | None) -> None:
    """The table, under the pictures of its hits where they are asked for."""
    if draw is not None:
        for hit in answer.hits:
            print(draw(engine.picture(hit.clip_id, hit.moment.best)))
            print(one_line(f"{hit.rank}. {hit.path}  {clock(hit.moment.best)}"))
    ids = {hit.clip_id: engine.short_id(hit.clip_id) for hit in answer.hits}
    show_answer(answer, ids, "" if answer.hits else engine.why_empty(options, answer.query))


def _drawing() -> Draw:
    draw = choose_drawing()
    if draw is None:
        raise UsageError(
            "this terminal does not say that it shows pictures (kitty, iTerm2, WezTerm, foot and "
            "others with sixels do); --html FILE writes a page with them"
        )
    return draw


def _show_json(answers: list[Answer], saved: Saved, *, one: bool) -> None:
    rows = [
        {
            "query": answer.query,
            "hits": [
                {**asdict(hit), "saved": saved.paths.get((number, hit.clip_id))}
                for hit in answer.hits
            ],
        }
        for number, answer in enumerate(answers)
    ]
    print(json.dumps(rows[0] if one else rows, ensure_ascii=False))


def _tell_what_was_searched(
    engine: Engine, options: SearchOptions, store: str, as_json: bool
) -> None:
    clips = len(engine.snapshot)
    if not clips:
        add = f"eaglenet index PATH{store_argument(store)}"
        print(f"{store} holds no clips yet; add videos with: {add}", file=sys.stderr)
    elif not as_json:
        print(f"searched {counted(clips, 'clip')} in {store}", file=sys.stderr)
    if "pictures" not in options.parts and not engine.info()["lines"]:
        print(NO_WORDS, file=sys.stderr)


def _tell_what_is_folded(answers: list[Answer]) -> None:
    copies = len({path for each in answers for hit in each.hits for path in _copies(hit)})
    if copies:
        found = counted(copies, "near copy", "near copies")
        print(f"{found} of these files not shown; --unfold shows all", file=sys.stderr)


def _tell_what_is_not_saved(saved: Saved) -> None:
    """Results that could not be saved, and why; they are an error of the command."""
    if not saved.left_out:
        return
    print(f"{counted(len(saved.left_out), 'result')} not saved:", file=sys.stderr)
    for reason in saved.left_out:
        print(one_line(f"  {reason}"), file=sys.stderr)
    raise typer.Exit(VideoDecodeError.exit_code)


def _play(hit: Hit) -> None:
    player = play(hit.path, hit.moment.start)
    print(one_line(f"playing {hit.path} in {player}"), file=sys.stderr)


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
            f"found files that are not there any more: {len(gone)}, {one_line(gone[0])} first; "
            f"forget them with: eaglenet index FOLDER{store_argument(store)} --drop-missing",
            file=sys.stderr,
        )


def _show_captions(ranked: list[CaptionHit], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(hit) for hit in ranked], ensure_ascii=False))
        return
    for hit in ranked:
        print(
            f"{hit.rank:>3}  {hit.score:.3f}  {clock(hit.moment.best):>8}  {one_line(hit.caption)}"
        )
