"""``eaglenet search`` and ``eaglenet highlights``: find moments in a store."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eaglenet.cli.options import (
    AsJson,
    StoreName,
    argument,
    check_output_file,
    check_output_folder,
    refuse_indexed_file,
)
from eaglenet.cli.results import (
    DrawImage,
    SavedMoments,
    detect_images,
    play,
    print_result,
    save_hits,
)
from eaglenet.cli.terminal import begin_short_command, import_torch, print_json, print_line
from eaglenet.core.errors import (
    EagleNetError,
    StoreError,
    UsageError,
    VideoDecodeError,
    cause_of,
    shell_join,
    shell_quote,
    store_option,
)
from eaglenet.core.files import expand_home
from eaglenet.core.hits import round_times
from eaglenet.core.object_storage import absolute_location, is_inside, is_object_url
from eaglenet.core.platform import data_folder
from eaglenet.core.settings import option
from eaglenet.core.text import escape_line, format_time, pluralize
from eaglenet.search.grammar import AnyQuery, clip_id_in, file_name_in, parse
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query
from eaglenet.search.wording import negation_in
from eaglenet.video.containers import INDEXED_SUFFIXES, VIDEO_SUFFIXES, is_image

if TYPE_CHECKING:
    from eaglenet.core.hits import Hit
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import CaptionHit, HitList, SearchResult

PROMPT = "search> "
HISTORY_LENGTH = 1000
WELCOME = "Describe what to find; enter a number to play that result, an empty line to quit."
NO_TRANSCRIPTS = (
    "this store has no transcripts. Subtitles in and beside videos are indexed by default; "
    "`eaglenet index --listen MODEL` adds speech, `--read-text` adds on-screen text, `--describe "
    "URL` adds descriptions"
)


def _check_timeline(path: Path) -> None:
    from eaglenet.search.timelines import FORMATS

    check_output_file(path, [f".{kind}" for kind in FORMATS])


def _check_moment_format(format: str) -> None:
    if format != "video":  # The default needs no import, which would slow down every search.
        from eaglenet.video.saving import moment_extension

        moment_extension(format)


@dataclass(frozen=True)
class OutputOptions:
    """Options for printing, saving and playing results."""

    as_json: bool = option(False, "Print JSON.", name="--json")
    open_best: bool = option(False, "Play the best result in mpv, vlc or a browser.", name="--open")
    thumbnails: bool = option(False, "Show images in terminals that support it.", group="Output")
    html: Path | None = option(
        None,
        "Write a web page with images.",
        group="Output",
        metavar="FILE",
        check=check_output_file,
    )
    save_sheet: Path | None = option(
        None,
        "Write a PNG or JPEG image with frames of all results.",
        group="Output",
        metavar="FILE",
        check=lambda path: check_output_file(path, (".png", ".jpg", ".jpeg")),
    )
    save_clips: Path | None = option(
        None,
        "Save the moment of each result, with sound.",
        group="Output",
        metavar="FOLDER",
        check=check_output_folder,
    )
    save_as: str = option(
        "video",
        "Save moments as video, gif or sheet (frames in rows).",
        group="Output",
        metavar="FORMAT",
        check=_check_moment_format,
    )
    save_timeline: Path | None = option(
        None,
        "Write results for editors: .edl, .fcpxml, .xml, .otio, .csv, .m3u8 or .srt.",
        group="Output",
        metavar="FILE",
        check=_check_timeline,
    )
    save_reel: Path | None = option(
        None,
        "Write the moments of all results as one MP4, with sound.",
        group="Output",
        metavar="FILE",
        check=lambda path: check_output_file(path, (".mp4",)),
    )
    padding: float = option(
        1.0,
        "Also save this many seconds before and after each moment.",
        group="Output",
        metavar="SECONDS",
        min=0,
    )

    def __post_init__(self) -> None:
        if self.save_as != "video" and self.save_clips is None:
            raise UsageError(f"--save-as {self.save_as} needs a folder: --save-clips FOLDER")

    @property
    def files(self) -> list[Path]:
        """The files to write."""
        files = (self.html, self.save_sheet, self.save_timeline, self.save_reel)
        return [file for file in files if file is not None]

    @property
    def writes(self) -> list[str]:
        """The options that write files."""
        names = ("html", "save_sheet", "save_clips", "save_timeline", "save_reel")
        used = [name for name in names if getattr(self, name) is not None]
        return [f"--{name.replace('_', '-')}" for name in used]


def search(
    store: StoreName,
    words: list[str] | None = argument(
        "Text to find; - reads it from standard input. Put an exact phrase of speech or on-screen "
        'text in "quotes"; "keys table"~5 finds words near each other.',
        None,
        metavar="TEXT",
    ),
    k: int = option(10, "Show this many results.", name="-k/--results"),
    queries: Path | None = option(
        None,
        "Search for each line of a text file; - is standard input.",
        group="Queries",
        metavar="FILE",
    ),
    captions: Path | None = option(
        None,
        "With --video or --similar: rank the lines of a text file by how well they match.",
        group="Queries",
        metavar="FILE",
    ),
    *,
    source: Annotated[dict[str, Any], Query],
    options: SearchOptions,
    output: OutputOptions,
    judge: str | None = option(
        None,
        "Rank the first 10 again with a vision model on this OpenAI-compatible server.",
        group="Ranking",
        metavar="URL#MODEL",
    ),
    model: str | None = option(
        None, "Load the model from this folder, if it has moved.", group="Model"
    ),
    device: str = option("auto", "Run the model on auto, cpu, cuda or mps.", group="Model"),
) -> None:
    """Find moments with a text, an image or a video."""
    if words == ["-"] and queries is None:
        words, queries = None, Path("-")
    is_interactive = (
        not words
        and queries is None
        and not source.keys() - {"negatives"}
        and sys.stdin.isatty()
        and not output.as_json
        and not output.writes
    )
    typed_queries = (
        []
        if is_interactive
        else make_queries(words or [], queries, source, is_literal=options.literal)
    )
    if captions is not None and not source.keys() & {"video", "clip_id"}:
        raise UsageError("--captions ranks captions for a video; add --video FILE or --similar ID")
    if captions is not None and output.writes:
        raise UsageError(f"{output.writes[0]} writes moments, not the captions of --captions")
    draw = _require_images() if output.thumbnails else None
    begin_short_command()
    decoder = None
    if source.keys() & {"image", "video"}:
        from eaglenet.video.frame_images import QueryDecoder

        decoder = QueryDecoder()
        decoder.start()  # Its process starts while the store is opened.
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import SearchResult
    from eaglenet.search.model import runs_through_numpy

    vision_judge = None
    if judge is not None:
        from eaglenet.search.judge import Judge

        vision_judge = Judge(judge)
    try:
        engine = Engine.open(store, model, device, decoder)
    except StoreError:
        refuse_store_among(words or [])
        raise
    for file in output.files:
        refuse_indexed_file(file, engine)
    if not runs_through_numpy(model or engine.manifest.model, device):
        import_torch()
    if is_interactive:
        negatives = source.get("negatives", ())

        def find(line: str) -> SearchResult:
            query = parse(line, folder=Path(), negatives=negatives, is_literal=options.literal)
            hits = engine.search(query, k, options=options, judge=vision_judge)
            _print_notice(query, hits, options)
            return SearchResult(query, hits)

        ask_repeatedly(find, lambda result: _print_result(engine, result, options, draw))
    elif captions is not None:
        (query,) = typed_queries
        assert isinstance(query, Query), "made from --video or --similar"
        _print_captions(engine.best_captions(query, read_lines(captions), k), output.as_json)
    else:
        hits = engine.search_many(typed_queries, k, options=options, judge=vision_judge)
        results = [
            SearchResult(query, each, _clip_title(engine, query))
            for query, each in zip(typed_queries, hits, strict=True)
        ]
        for pair in zip(typed_queries, hits, strict=True):
            _print_notice(*pair, options)
        _report(engine, store, results, options, output, draw, is_list=queries is not None)


def make_queries(
    words: Sequence[str],
    queries: Path | None,
    source: Mapping[str, Any],
    *,
    is_literal: bool = False,
) -> list[AnyQuery]:
    """Make the query of the command line, or one query per line of the file ``queries``."""
    options = {"image": "--image", "video": "--video", "clip_id": "--similar"}
    sources = [
        *(["a text"] if words else []),
        *(["--queries"] if queries is not None else []),
        *(option for name, option in options.items() if name in source),
    ]
    if len(sources) != 1:
        names = " and ".join(sources)
        if words and sources[1:] in (["--image"], ["--video"]):
            file = source.get("image") or source["video"]
            query = f'"{join_words(words)}" + "{file}"'
            raise UsageError(f"{names} cannot be combined; write one query: {shell_quote(query)}")
        problem = f"{names} cannot be combined" if sources else "nothing to search for"
        raise UsageError(
            f"{problem}; use one of: TEXT, - (standard input), --queries, --image, --video, "
            "--similar"
        )
    image, clip_id = source.get("image"), source.get("clip_id")
    if image is not None and image.suffix.lower() in VIDEO_SUFFIXES:
        if os.path.isfile(image) and not os.path.getsize(image):
            from eaglenet.video.input_file import EMPTY_FILE

            raise UsageError(f"{image}: {EMPTY_FILE}")
        raise UsageError(f"--image {image} is a video; use --video {shell_quote(image)}")
    if clip_id is not None and Path(clip_id).exists():
        raise UsageError(
            f"--similar {clip_id} is a file, not a clip id; use --video {shell_quote(clip_id)}"
        )
    if "negatives" in source and not (words or queries):
        raise UsageError(f"--not works only with a text, not with {sources[0]}")
    negatives = source.get("negatives", ())
    if not words and queries is None:
        return [Query(**source)]
    return [
        parse(text, folder=Path(), negatives=negatives, is_literal=is_literal)
        for text in (read_lines(queries) if queries is not None else [join_words(words)])
    ]


def _clip_title(engine: Engine, query: AnyQuery) -> str:
    """Return the file and time of the clip of ``--similar``, because ids mean little to people."""
    if not isinstance(query, Query) or query.clip_id is None:
        return ""
    clip, files = engine.clip(query.clip_id)
    span = f", {format_time(clip.start)}-{format_time(clip.end)}" if files.durations[0] else ""
    return f"similar to {Path(files.paths[0][0]).name}{span}"


def join_words(words: Sequence[str]) -> str:
    """Join the words of a text typed without shell quotes.

    >>> join_words(["a", "red", "car"])
    'a red car'
    """
    if len(words) > 1 and any(" " in word for word in words):
        refuse_store_among(words)
        raise UsageError(
            f"{len(words)} texts; search for one at a time, or for the lines of a file: "
            "--queries FILE"
        )
    return " ".join(words)


def refuse_store_among(words: Sequence[str]) -> None:
    """Raise if one of the words of a text is a store."""
    from eaglenet.store.disk import has_database

    for word in words:
        if has_database(expand_home(word)):
            raise UsageError(f"{word} is a store; search in it with --store {shell_quote(word)}")


def read_lines(path: Path) -> list[str]:
    """Read the non-blank lines of a text file; ``-`` is standard input."""
    name = "standard input" if str(path) == "-" else path
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
        text.encode()  # Python may decode other bytes of standard input as surrogates.
    except UnicodeError:
        raise UsageError(
            f"{name}: is not a text file in UTF-8; expected one text per line"
        ) from None
    except OSError as error:
        raise UsageError(f"{name}: cannot be read as a text file: {cause_of(error)}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{name}: is empty; expected one text per line")
    return lines


def ask_repeatedly(
    find: Callable[[str], SearchResult], show: Callable[[SearchResult], None]
) -> None:
    """Prompt for texts until an empty line; play a result of the last search for a number."""
    print_line(WELCOME, is_error=True)
    last: SearchResult | None = None
    with history():
        while line := _prompt():
            try:
                if line.isdecimal() and last is not None:
                    _play_rank(last, int(line))
                else:
                    last = find(line)
                    show(last)
            except EagleNetError as error:
                print_line(f"error: {error}", is_error=True)


def _prompt() -> str:
    try:
        return input(PROMPT).strip()
    except EOFError:
        print()
        return ""


def _play_rank(result: SearchResult, rank: int) -> None:
    hits = [hit for hit in result.hits if hit.rank == rank]
    if hits:
        _play(hits[0])
    else:
        print_line(f"the last search has no result {rank}", is_error=True)


def _play(hit: Hit) -> None:
    player = play(hit.path, hit.moment.start)
    print_line(f"playing {hit.path} in {player}", is_error=True)


@contextmanager
def history() -> Iterator[None]:
    """Load and save the history of the prompt, if the system has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = data_folder() / "history"
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


def _require_images() -> DrawImage:
    draw = detect_images()
    if draw is None:
        raise UsageError(
            "this terminal does not report support for images (kitty, iTerm2, WezTerm, foot and "
            "others with sixels do); write a page instead: --html FILE"
        )
    return draw


def _report(
    engine: Engine,
    store: str,
    results: list[SearchResult],
    options: SearchOptions,
    output: OutputOptions,
    draw: DrawImage | None,
    *,
    is_list: bool,
) -> None:
    """Print and save results; ``is_list`` prints a JSON list even for one result."""
    moments = SavedMoments()
    # Saving may fail: print before it, or in JSON, which has the paths, in spite of it.
    if not output.as_json:
        for result in results:
            _print_result(engine, result, options, draw)
    try:
        if output.save_clips is not None:
            save_hits(
                engine,
                results,
                output.save_clips,
                moments,
                padding=output.padding,
                form=output.save_as,
            )
    finally:
        if output.as_json:
            _print_json(results, moments, is_list=is_list)
        else:
            for path in moments.paths.values():
                print_line(f"saved {path}")
    moments.problems.extend(_write_files(engine, results, output))
    if not output.as_json:
        for file in output.files:
            print_line(f"wrote {file}")
    _print_notes(engine, store, results, options, output.as_json)
    for target in (output.save_clips, output.save_reel):
        _note_indexed_folder(target, engine.manifest.roots)
    if output.open_best and results[0].hits:
        _play(results[0].hits[0])
    if moments.problems:
        problems = list(dict.fromkeys(moments.problems))
        print_line(f"{pluralize(len(problems), 'result')} not saved:", is_error=True)
        for problem in problems:
            print_line(f"  {problem}", is_error=True)
        raise typer.Exit(VideoDecodeError.exit_code)


def _write_files(engine: Engine, results: list[SearchResult], output: OutputOptions) -> list[str]:
    """Write the files of all results; return problems with moments that were left out."""
    problems: list[str] = []
    if output.html is not None:
        from eaglenet.search.export import write_page

        write_page(output.html, engine, results)
    if output.save_sheet is not None:
        from eaglenet.search.export import write_contact_sheet

        write_contact_sheet(output.save_sheet, engine, results)
    if output.save_timeline is not None:
        from eaglenet.search.export import read_cuts
        from eaglenet.search.timelines import write_timeline

        cuts, problems = read_cuts(engine, results, output.padding)
        title = ", ".join(result.title for result in results)
        write_timeline(output.save_timeline, cuts, title)
    if output.save_reel is not None:
        from eaglenet.search.export import write_reel

        hits = [hit for result in results for hit in result.hits]
        problems += write_reel(engine, output.save_reel, hits, output.padding)
    return problems


def _print_result(
    engine: Engine, result: SearchResult, options: SearchOptions, draw: DrawImage | None
) -> None:
    if draw is not None:
        for hit in result.hits:
            print(draw(engine.frame(hit.clip_id, hit.moment.best)))
            print_line(f"{hit.rank}. {hit.path}  {format_time(hit.moment.best)}")
    ids = {hit.clip_id: engine.short_id(hit.clip_id) for hit in result.hits}
    print_result(result, ids, "" if result.hits else engine.why_empty(options, result.query))


def _print_json(results: list[SearchResult], moments: SavedMoments, *, is_list: bool) -> None:
    rows = [
        {
            "query": result.query.title,
            "notice": getattr(result.hits, "notice", ""),
            "hits": [
                {**hit.to_dict(), "saved": moments.paths.get((number, hit.clip_id))}
                for hit in result.hits
            ],
        }
        for number, result in enumerate(results)
    ]
    print_json(rows if is_list else rows[0])


def _print_notes(
    engine: Engine,
    store: str,
    results: list[SearchResult],
    options: SearchOptions,
    as_json: bool,
) -> None:
    """Print notes on the searched store and on missing results to standard error."""
    from eaglenet.indexing.files import is_missing_file

    hits = [hit for result in results for hit in result.hits]
    num_clips = len(engine.snapshot)
    if not num_clips:
        command = f"eaglenet index PATH{store_option(store)}"
        print_line(f"{store} contains no clips yet; add videos with: {command}", is_error=True)
    elif "visual" not in options.modalities and not engine.info()["transcript_lines"]:
        print_line(NO_TRANSCRIPTS, is_error=True)
    elif not as_json:
        # Several queries may have different dates: report the one that searches most.
        num_searched = max(engine.num_searched(result.query, options) for result in results)
        part = "" if num_searched == num_clips else f"{num_searched:,} of "
        note = "" if engine.has_confidence else "; confidence was not measured for this model"
        clips = pluralize(num_clips, "clip")
        # Without hits, the reason says it.
        hints = (engine.date_hint(result.query, options) for result in results if result.hits)
        note += next(filter(None, hints), "")
        print_line(f"searched {part}{clips} in {store}{note}", is_error=True)
    has_moments = any(hit.duration and not hit.transcript for hit in hits)
    if has_moments and engine.manifest.layout.num_frames == 1 and not as_json:
        print_line("moments are whole clips: this model has one vector per clip", is_error=True)
    if not as_json and len(results) == 1:
        _print_name_hint(engine, results[0], options)
    copies = {path for hit in hits for path in hit.metadata.get("copies", ())}
    if copies and not as_json:
        count = pluralize(len(copies), "near copy", "near copies")
        print_line(f"{count} not shown; show them with --keep-duplicates", is_error=True)
    if any("from_keyframes" in hit.metadata for hit in hits) and not as_json:
        print_line(
            "some hits are approximate (keyframes only); complete them with: eaglenet "
            f"index {shell_join(engine.manifest.roots or ('FOLDER',))}{store_option(store)}",
            is_error=True,
        )
    paths = dict.fromkeys(hit.path for hit in hits)
    missing_paths = [path for path in paths if is_missing_file(path)]
    if missing_paths:
        files = pluralize(
            len(missing_paths), "indexed file no longer exists", "indexed files no longer exist"
        )
        advice = _removal_advice(missing_paths[0], engine.manifest.roots, store)
        print_line(f"{files} (first: {missing_paths[0]}); {advice}", is_error=True)


def _note_indexed_folder(path: Path | None, roots: Sequence[str]) -> None:
    """Say if moments were saved where the next index run finds them."""
    if path is None:
        return
    root = next((root for root in roots if is_inside(absolute_location(path), root)), None)
    if root is not None:
        print_line(
            f"{path} is in the indexed folder {root}: what was saved there will be indexed, too",
            is_error=True,
        )


def _removal_advice(path: str, roots: Sequence[str], store: str) -> str:
    """Return how to remove a file that no longer exists from a store."""
    root = next((root for root in roots if is_inside(path, root)), None)
    if root is None or os.path.exists(root):
        folder = "FOLDER" if root is None else root
        return (
            f"remove from the store with: eaglenet index {shell_quote(folder)}"
            f"{store_option(store)} --drop-missing"
        )
    # `index` refuses a folder that does not exist.
    return (
        f"{root} does not exist: if it was renamed, index it under its new name, and remove the "
        f"old one from the store with: eaglenet store remove {shell_quote(root)}"
        f"{store_option(store)}"
    )


def _print_name_hint(engine: Engine, result: SearchResult, options: SearchOptions) -> None:
    """Print a hint if paths contain a text that looks like a name or has no likely hit."""
    text = (result.query.text or "").strip('"') if isinstance(result.query, Query) else ""
    is_found = any(hit.transcript or hit.match in ("sure", "likely") for hit in result.hits)
    is_found = is_found and not re.search(r"[0-9_]", text) and not file_name_in(result.query)
    if not text or is_found or options.filters or any(char in text for char in "*?["):
        return
    is_match = engine.read(lambda view: Filters(path=text).matches(view.files))
    count = int(is_match.sum())
    if 0 < count < len(is_match):
        files = pluralize(count, "path contains", "paths contain")
        print_line(
            f"{files} this text; search only there: --path {shell_quote(text)}", is_error=True
        )


def _print_notice(query: AnyQuery, hits: HitList, options: SearchOptions) -> None:
    if not hits.notice:
        return
    notice = hits.notice
    if query.dates:
        date = query.dates.notice
        notice = notice.replace(date, f"{date} (--literal searches for the text as it is)", 1)
    negation = negation_in(query, options)
    if negation is not None and negation.text:
        words = [negation.text, *(word for each in negation.negatives for word in ("--not", each))]
        arguments = shell_join(words)
        if negation.query:
            advice = f" (or: {arguments})"
        else:
            advice = f"; to rank such moments lower, write: {arguments}"
        notice = notice.replace(negation.hint, f"{negation.hint}{advice}", 1)
    clip_id = clip_id_in(query)
    if clip_id:
        notice += f"; find moments like this clip: --similar {shell_quote(clip_id)}"
    name = file_name_in(query)
    # Unlike `Path.is_file`, this does not raise for a name that is too long.
    if os.path.isfile(name) and Path(name).suffix.lower() in INDEXED_SUFFIXES:
        option = "--image" if is_image(name) else "--video"
        notice += f"; search with this file: {option} {shell_quote(name)}"
    print_line(notice, is_error=True)


def _print_captions(hits: list[CaptionHit], as_json: bool) -> None:
    if as_json:
        print_json(round_times([asdict(hit) for hit in hits]))
        return
    for hit in hits:
        time = format_time(hit.moment.best)
        print_line(f"{hit.rank:>3}  {hit.score:.3f}  {time:>8}  {escape_line(hit.caption)}")


def highlights(
    store: StoreName,
    folder: str | None = argument("Folder or file to search; default: all.", None),
    k: int = option(10, "Show this many moments.", name="-k/--results"),
    as_json: AsJson = False,
    *,
    filters: Filters,
) -> None:
    """List unusual moments: those least like all others."""
    if folder is not None and filters.path is not None:
        raise UsageError("FOLDER and --path cannot be combined; use one of them")
    begin_short_command()
    from eaglenet.search.engine import Engine
    from eaglenet.search.highlights import find_highlights
    from eaglenet.search.hits import SearchResult

    engine = Engine.open(store)
    if folder is not None and len(engine.snapshot):
        filters = dataclasses.replace(filters, path=_indexed_path(engine, store, folder))
    hits = find_highlights(engine, k, filters)
    if as_json:
        print_json({"hits": [hit.to_dict() for hit in hits]})
        return
    num_clips = len(engine.snapshot)
    if not num_clips:
        command = f"eaglenet index PATH{store_option(store)}"
        print_line(f"{store} contains no clips yet; add videos with: {command}", is_error=True)
        return
    ids = {hit.clip_id: engine.short_id(hit.clip_id) for hit in hits}
    reason = "" if hits else engine.why_empty(SearchOptions(filters=filters))
    reason = reason or "damaged files and clips of one colour do not count"
    print_result(SearchResult(Query("unusual moments"), hits), ids, reason)
    print_line(f"compared with {pluralize(num_clips, 'clip')} in {store}", is_error=True)


def _indexed_path(engine: Engine, store: str, folder: str) -> str:
    """Return the pattern of the indexed files in a folder, or of one file; raise if there is none.

    Files that were indexed and no longer exist, such as those of an unplugged disk, count.
    """
    location = absolute_location(folder)
    paths = engine.read(lambda view: [path for paths in view.files.paths for path in paths])
    inside = [path for path in paths if is_inside(path, location)]
    if inside:
        return location if inside == [location] else f"{location.rstrip('/')}/*"
    if not is_object_url(location) and not os.path.exists(location):
        raise UsageError(f"{folder}: no such file or folder")
    raise UsageError(
        f"{folder}: none of its files is in the store; add them with: eaglenet index "
        f"{shell_quote(folder)}{store_option(store)}"
    )
