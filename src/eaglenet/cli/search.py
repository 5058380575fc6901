"""``eaglenet search`` and ``eaglenet highlights``: find moments in a store."""

from __future__ import annotations

import dataclasses
import os
import sys
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
from eaglenet.cli.queries import ask_repeatedly, make_queries, read_lines, refuse_store_among
from eaglenet.cli.results import (
    DrawImage,
    SavedMoments,
    detect_images,
    play_hit,
    print_result,
    save_hits,
)
from eaglenet.cli.search_notes import (
    note_empty_store,
    note_indexed_folder,
    print_notes,
    print_notice,
)
from eaglenet.cli.terminal import begin_short_command, import_torch, print_json, print_line
from eaglenet.core.errors import StoreError, UsageError, VideoDecodeError, shell_quote, store_option
from eaglenet.core.settings import option
from eaglenet.core.text import escape_line, format_time, pluralize
from eaglenet.search.grammar import AnyQuery, parse
from eaglenet.search.hit import round_times
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query
from eaglenet.store.object_storage import absolute_location, is_inside, is_object_url

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import CaptionHit, SearchResult


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
            print_notice(query, hits, options)
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
            print_notice(*pair, options)
        _report(engine, store, results, options, output, draw, is_list=queries is not None)


def _clip_title(engine: Engine, query: AnyQuery) -> str:
    """Return the file and time of the clip of ``--similar``, because ids mean little to people."""
    if not isinstance(query, Query) or query.clip_id is None:
        return ""
    clip, files = engine.clip(query.clip_id)
    span = f", {format_time(clip.start)}-{format_time(clip.end)}" if files.durations[0] else ""
    return f"similar to {Path(files.paths[0][0]).name}{span}"


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
    print_notes(engine, store, results, options, output.as_json)
    for target in (output.save_clips, output.save_reel):
        note_indexed_folder(target, engine.manifest.roots)
    if output.open_best and results[0].hits:
        play_hit(results[0].hits[0])
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
        note_empty_store(store)
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
