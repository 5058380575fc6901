"""``eaglenet search``: find moments in a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from eaglenet.cli.options import StoreName
from eaglenet.cli.results import NO_WORDS, Draw, Saved, clock, play, save_hits, show_answer
from eaglenet.cli.results import choose as choose_drawing
from eaglenet.cli.terminal import begin_short_command, counted, one_line
from eaglenet.core.errors import (
    EagleNetError,
    UsageError,
    VideoDecodeError,
    cause_of,
    quoted,
    store_argument,
)
from eaglenet.core.platform import data_folder
from eaglenet.video.containers import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from eaglenet.core.types import Hit
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import Answer, CaptionHit
    from eaglenet.search.options import SearchOptions


# The options of `eaglenet search`, with what their help says.

Words = Annotated[list[str] | None, typer.Argument(metavar="QUERY", help="What should be seen.")]
Results = Annotated[int, typer.Option("-k", "--results", help="Number of results.")]
Shortlist = Annotated[
    int, typer.Option(min=1, help="Clips that are ranked exactly; at least -k are.")
]
ModelMoved = Annotated[str | None, typer.Option(help="Where the model is, if it moved.")]
SearchDevice = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
QueryFile = Annotated[
    Path | None, typer.Option(help="Text file with one query a line; - for standard input.")
]
Negatives = Annotated[
    list[str] | None, typer.Option("--not", help="A phrase to keep away from; repeatable.")
]
ImageFile = Annotated[Path | None, typer.Option(help="Search with a picture.")]
VideoFile = Annotated[Path | None, typer.Option(help="Search with a video file.")]
SimilarTo = Annotated[str | None, typer.Option(help="Search with a clip id.")]
CaptionFile = Annotated[
    Path | None,
    typer.Option(help="With --video or --similar: rank the lines of this file for it."),
]
Parts = Annotated[
    str,
    typer.Option(
        "--in",
        help="Where to look: pictures, speech (subtitles too), text in frames; several with "
        'commas. "Quotes" enclose an exact phrase of speech or text.',
    ),
]
Grouped = Annotated[bool, typer.Option("--group", help="One result a file.")]
Unfolded = Annotated[
    bool, typer.Option("--unfold", help="Show near copies of files and repeated moments too.")
]
PathPattern = Annotated[
    str | None, typer.Option(help="Only paths that match: '*.mov', 'holidays/*', or a part.")
]
After = Annotated[str | None, typer.Option(help="Only files changed since, 2026-05-31.")]
Before = Annotated[str | None, typer.Option(help="Only files changed before.")]
Seconds = Annotated[float | None, typer.Option(help="Seconds, of the file.")]
Tags = Annotated[list[str] | None, typer.Option(help="Only with this tag; repeatable.")]
SaveClips = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Save the moment of each result here, with sound."),
]
Padding = Annotated[
    float, typer.Option(min=0, help="Seconds before and after a moment that are saved too.")
]
SaveAs = Annotated[str, typer.Option(help="video, gif, or sheet: frames in rows.")]
InTerminal = Annotated[
    bool, typer.Option("--pictures", help="Show pictures where the terminal can.")
]
OpenBest = Annotated[
    bool, typer.Option("--open", help="Play the best result in mpv, vlc or the browser.")
]
HtmlFile = Annotated[Path | None, typer.Option(help="Write a page with pictures.")]
PictureFile = Annotated[Path | None, typer.Option(help="Write the results as a PNG.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


# What `eaglenet search` searches with: words, lines of a file, a picture, a video or a clip.

_IN = Path("-")


def sentence_of(words: list[str] | None) -> str | None:
    """The words of a command line as one sentence, which many type without quotes.

    >>> sentence_of(["a", "red", "car"]), sentence_of([])
    ('a red car', None)
    """
    if not words:
        return None
    if len(words) > 1 and any(" " in word for word in words):
        raise UsageError(
            f"{len(words)} sentences were given; search for one, or for those of a file, one a "
            "line, with --queries FILE"
        )
    return " ".join(words)


@dataclass(frozen=True)
class Asked:
    """What to search with; exactly one is given."""

    query: str | None
    queries: Path | None
    image: Path | None
    video: Path | None
    similar: str | None

    @property
    def is_nothing(self) -> bool:
        return all(value is None for value in vars(self).values())

    def check(self, captions: Path | None, negatives: list[str]) -> None:
        """Refuse what does not go together."""
        given = [name for name, value in vars(self).items() if value is not None]
        ways = "words, --queries, --image, --video or --similar"
        if not given:
            raise UsageError(f"nothing to search for; give {ways}")
        if len(given) > 1:
            named = " and ".join("words" if name == "query" else f"--{name}" for name in given)
            raise UsageError(f"{named} cannot be searched together; give one of {ways}")
        if captions is not None and given[0] not in ("video", "similar"):
            raise UsageError(
                "--captions ranks captions for a video: give --video FILE or --similar ID"
            )
        if negatives and given[0] not in ("query", "queries"):
            raise UsageError("--not works with words only, not with a picture or a video")
        if self.image is not None and self.image.suffix.lower() in VIDEO_SUFFIXES:
            raise UsageError(
                f"--image takes a picture; to search with a video: --video {quoted(self.image)}"
            )
        if self.similar is not None and Path(self.similar).exists():
            raise UsageError(
                f"--similar takes a clip id; to search with a file: --video {quoted(self.similar)}"
            )

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
        clip_id = engine.full_id(self.similar or "")
        return [Answer(clip_id, engine.similar(clip_id, k, options=options))]

    def ask_captions(self, engine: Engine, captions: Path, k: int) -> list[CaptionHit]:
        """Rank the lines of a file for the video or the clip."""
        clip = engine.full_id(self.similar) if self.similar else self.video
        return engine.best_captions(clip or "", read_lines(captions), k)


def read_lines(path: Path) -> list[str]:
    """Lines of a text file that are not blank."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a text file: {cause_of(error)}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{path}: has no line of text; write one sentence a line")
    return lines


# `eaglenet search` without words: question after question, with a history.

PROMPT = "search> "
HISTORY_LENGTH = 1000
WELCOME = "Say what should be seen; a number plays that result, an empty line ends."


def ask_on(find: Callable[[str], Answer], show: Callable[[Answer], None]) -> None:
    """Ask for sentences until there are no more; a number plays a result of the last one."""
    print(WELCOME, file=sys.stderr)
    last: Answer | None = None
    with history():
        while line := _read():
            try:
                if line.isdecimal() and last is not None:
                    _play_rank(last, int(line))
                else:
                    last = find(line)
                    show(last)
            except EagleNetError as error:
                print(one_line(f"error: {error}"), file=sys.stderr)


def _read() -> str:
    try:
        return input(PROMPT).strip()
    except EOFError:
        print()
        return ""


def _play_rank(answer: Answer, rank: int) -> None:
    chosen = [hit for hit in answer.hits if hit.rank == rank]
    if not chosen:
        print(f"the last question has no result {rank}", file=sys.stderr)
        return
    player = play(chosen[0].path, chosen[0].moment.start)
    print(one_line(f"playing {chosen[0].path} in {player}"), file=sys.stderr)


@contextmanager
def history() -> Iterator[None]:
    """Questions of earlier days under the arrow keys; none where the system has no readline."""
    readline = _readline()
    if readline is None:
        yield
        return
    path = data_folder() / "history"
    # Without a place to keep it, there is none tomorrow.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LENGTH)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(path)
            path.chmod(0o600)


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline


def register(app: typer.Typer) -> None:
    app.command("search", help="Find moments with words, a picture or a video.")(search)


def search(
    store: StoreName,
    query: Words = None,
    k: Results = 10,
    shortlist: Shortlist = 100,
    model: ModelMoved = None,
    device: SearchDevice = "auto",
    queries: QueryFile = None,
    negatives: Negatives = None,
    image: ImageFile = None,
    video: VideoFile = None,
    similar: SimilarTo = None,
    captions: CaptionFile = None,
    parts: Parts = "pictures,speech,text",
    group: Grouped = False,
    unfold: Unfolded = False,
    path: PathPattern = None,
    after: After = None,
    before: Before = None,
    min_duration: Seconds = None,
    max_duration: Seconds = None,
    tag: Tags = None,
    save_clips: SaveClips = None,
    padding: Padding = 1.0,
    save_as: SaveAs = "video",
    pictures: InTerminal = False,
    open_best: OpenBest = False,
    html: HtmlFile = None,
    picture: PictureFile = None,
    as_json: AsJson = False,
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
        from eaglenet.search.export import write_page

        write_page(html, engine, answers)
    if picture is not None:
        from eaglenet.search.export import write_contact_sheet

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
    from eaglenet.indexing.files import is_gone

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
