"""Export of results and transcripts: contact sheet, web page, reel, subtitles."""

from __future__ import annotations

import base64
import io
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from eaglenet.core.errors import UsageError, VideoDecodeError, store_option
from eaglenet.core.files import write_output
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.search.confidence import match_text
from eaglenet.search.engine import Engine
from eaglenet.search.hit import Hit, file_url
from eaglenet.search.hits import SearchResult
from eaglenet.search.retrieval import StoreView
from eaglenet.search.timelines import (
    Cut,
    Media,
    MediaValues,
    check_media_values,
    make_cuts,
    read_media_values,
    save_text,
)
from eaglenet.store.records import TranscriptKind
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.subtitles import format_subtitles
from eaglenet.video.limits import Limits
from eaglenet.video.reel import Segment, save_reel
from eaglenet.video.worker import IsolatedProcess

if TYPE_CHECKING:
    from PIL.Image import Image


KINDS: tuple[TranscriptKind, ...] = get_args(TranscriptKind)
CLIP = re.compile(r"[0-9a-f]{1,16}(-[0-9]{1,9})?")
TILE = 96  # Side of one frame; all sizes are in pixels.
FRAMES_PER_HIT = 4
COLUMNS = 5
GAP, BORDER, LINE = 12, 4, 20
FRAME_GAP = 2
STRIP = (TILE + FRAME_GAP) * FRAMES_PER_HIT - FRAME_GAP + 2 * BORDER
BACKGROUND, INK, FAINT = (250, 250, 248), (28, 28, 30), (120, 120, 124)
RIGHT, WRONG, PLAIN = (32, 148, 74), (200, 60, 52), (190, 190, 190)
MARKS = {True: "right", False: "wrong", None: ""}
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


def write_contact_sheet(
    path: Path,
    engine: Engine,
    results: Sequence[SearchResult],
    right_names: Mapping[int, str] | None = None,
) -> None:
    """Draw the hits of each query in rows of five: frames of the clip, file name and score.

    ``right_names`` maps positions of queries to the right file name: that file gets a green border,
    all others a red one.
    """
    from PIL import Image

    if not any(result.hits for result in results):
        raise UsageError("no results to draw; search for something that is in the store")
    columns = min(COLUMNS, max(len(result.hits) for result in results))
    title_height, row_height = LINE + 6, TILE + 2 * BORDER + LINE + GAP
    num_rows = sum(max(1, -(-len(result.hits) // columns)) for result in results)
    height = GAP + len(results) * title_height + num_rows * row_height
    sheet = Image.new("RGB", (GAP + columns * (STRIP + GAP), height), BACKGROUND)
    top = GAP
    for number, result in enumerate(results):
        _draw_text(sheet, (GAP, top), result.title, INK, 15)
        top += title_height
        name = (right_names or {}).get(number)
        for index, hit in enumerate(result.hits):
            is_right = None if name is None else Path(hit.path).name == name
            row, column = divmod(index, columns)
            corner = GAP + column * (STRIP + GAP), top + row * row_height
            _draw_hit(sheet, engine, hit, corner, is_right)
        top += max(1, -(-len(result.hits) // columns)) * row_height
    content = io.BytesIO()
    try:
        sheet.save(content, "PNG" if path.suffix.lower() == ".png" else "JPEG")
    except (OSError, ValueError) as error:  # Such as a JPEG of more than 65,535 pixels.
        raise UsageError(f"{path}: the image cannot be written ({error}); use .png") from error
    try:
        write_output(path, content.getvalue())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def _draw_hit(
    sheet: Image, engine: Engine, hit: Hit, corner: tuple[int, int], is_right: bool | None
) -> None:
    from PIL import ImageDraw

    left, top = corner
    colour = PLAIN if is_right is None else RIGHT if is_right else WRONG
    frames = _frames(engine, hit)
    right = left + (TILE + FRAME_GAP) * len(frames) - FRAME_GAP + 2 * BORDER
    box = (left, top, right - 1, top + TILE + 2 * BORDER - 1)
    ImageDraw.Draw(sheet).rectangle(box, fill=colour)
    for index, frame in enumerate(frames):
        sheet.paste(frame, (left + BORDER + index * (TILE + FRAME_GAP), top + BORDER))
    mark = f"{MARKS[is_right]}, " if MARKS[is_right] else ""
    best = f"best {hit.moment.best:.1f} s" if hit.duration else ""
    facts = (Path(hit.path).name, match_text(hit), best)
    text = f"{hit.rank}. {mark}{'  '.join(filter(None, facts))}"
    text_colour = FAINT if is_right is None else colour
    _draw_text(sheet, (left, top + TILE + 2 * BORDER + 3), text, text_colour, 12)


def _frames(engine: Engine, hit: Hit) -> list[Image]:
    """Decode evenly spaced frames of the clip; use the thumbnail if that fails."""
    from PIL import Image

    spec = FrameSpec(num_frames=FRAMES_PER_HIT if hit.duration else 1, size=TILE)
    try:
        with closing(engine.open_file(hit.clip_id)) as file:
            clips = engine.decoder.decode_video(file, spec, engine.span_of(hit.clip_id))
    except (VideoDecodeError, OSError):
        content = io.BytesIO(engine.thumbnail(hit.clip_id))
        with Image.open(content, formats=("JPEG",)) as image:
            return [image.convert("RGB").resize((TILE, TILE))]
    return [Image.fromarray(frame.transpose(1, 2, 0)) for frame in clips.frames[0]]


def _draw_text(
    sheet: Image, corner: tuple[int, int], text: str, colour: tuple[int, int, int], size: int
) -> None:
    from PIL import ImageDraw

    font = load_font(size)
    ImageDraw.Draw(sheet).text(corner, drawable(text, font), fill=colour, font=font)


FONTS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf", "segoeui.ttf")
"""Fonts of Linux, macOS and Windows; that of Pillow has no letters with accents."""


@cache
def load_font(size: int) -> Any:
    from PIL import ImageFont

    for name in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)


def drawable(text: str, font: Any) -> str:
    """Replace characters that a font lacks: by their base letter, or else by ``?``."""

    def replaced(char: str) -> str:
        if char.isspace():
            return " "  # A line break in a name would lead into the row below.
        base = unicodedata.normalize("NFKD", char)[0]
        return next((each for each in (char, base) if _has_glyph(font, each)), "?")

    return "".join(map(replaced, unicodedata.normalize("NFC", text)))


@lru_cache(maxsize=10_000)
def _has_glyph(font: Any, char: str) -> bool:
    return bytes(font.getmask(char)) != bytes(font.getmask("\uffff"))


def read_cuts(
    engine: Engine, results: Sequence[SearchResult], padding: float
) -> tuple[list[Cut], list[str]]:
    """Return the cuts of a timeline, and the problems of files that cannot be read.

    Their hits are left out. If no file can be read, the first error is raised. A sandboxed process
    reads frame rates and timecodes.
    """
    limits = Limits()
    process = IsolatedProcess(read_media_values, limits.memory, limits.seconds, check_media_values)

    def read(hit: Hit) -> Media:
        with closing(engine.open_file(hit.clip_id)) as file:
            try:
                values: MediaValues = process(file.path, file)
            except UsageError as error:
                raise VideoDecodeError(hit.path, str(error)) from None
        return values.media(hit.path)

    sources: dict[str, Media] = {}
    errors: dict[str, VideoDecodeError] = {}
    with closing(process):
        for hit in (hit for result in results for hit in result.hits):
            if hit.duration and hit.path not in sources and hit.path not in errors:
                try:
                    sources[hit.path] = read(hit)
                except VideoDecodeError as error:
                    errors[hit.path] = error
    cuts = [
        cut
        for result in results
        for cut in make_cuts(
            [hit for hit in result.hits if hit.path not in errors],
            result.title,
            padding=padding,
            read=lambda hit: sources[hit.path],
        )
    ]
    if errors and not cuts:
        raise next(iter(errors.values()))
    return cuts, [str(error) for error in errors.values()]


def write_reel(engine: Engine, path: Path, hits: Sequence[Hit], padding: float) -> list[str]:
    """Write the moments of hits as one MP4, with ``padding`` seconds on both sides of each.

    Leave out moments that cannot be read; return the problem of each.
    """
    segments = [
        Segment(
            hit.path,
            max(0.0, hit.moment.start - padding),
            min(hit.moment.end + padding, hit.duration),
        )
        for hit in hits
    ]
    clip_ids = {hit.path: hit.clip_id for hit in hits}
    errors = save_reel(segments, path, lambda source: engine.open_file(clip_ids[source]))
    return [str(error) for error in errors]


@dataclass(frozen=True)
class Transcript:
    """Lines of one source: a subtitle file or track, speech, on-screen text, or descriptions."""

    kind: TranscriptKind
    language: str
    path: str
    lines: tuple[TranscriptLine, ...]

    @property
    def title(self) -> str:
        parts = (self.kind, self.language, Path(self.path).name if self.path else "")
        return ", ".join(part for part in parts if part)


def read_transcripts(engine: Engine, file: str) -> list[Transcript]:
    """Return the transcripts of an indexed file, or of the file of a clip.

    ``file``: its path, its path below an indexed folder, as in tables of hits, or the id of a clip.
    """

    def read(view: StoreView) -> list[Transcript]:
        path = os.path.abspath(os.path.expanduser(file))
        names = {os.path.join(root, file) for root in engine.manifest.roots}
        ids = _files_named(view, {file, path}) or _files_named(view, names)
        if len(ids) > 1:
            raise UsageError(f"{file}: several files have this name; use the path of one of them")
        if not ids:
            if not CLIP.fullmatch(file):
                raise UsageError(
                    f"{file}: not in the store; list its files: eaglenet store files"
                    f"{store_option(engine.location)}"
                )
            (clip,) = view.snapshot.clips([view.snapshot.row(file)])
            ids = [clip.content_id]
        sources = sorted(
            view.snapshot.transcripts(content_id=ids[0]),
            key=lambda pair: (KINDS.index(pair[0].kind), pair[0].language, pair[0].path),
        )
        return [
            Transcript(
                source.kind,
                source.language or next((line.language for line in lines if line.language), ""),
                source.path,
                tuple(TranscriptLine(line.start, line.end, line.text) for line in lines),
            )
            for source, lines in sources
            if lines
        ]

    return engine.read(read)


def _files_named(view: StoreView, names: Set[str]) -> list[int]:
    """Return the ids of the files that have one of these paths."""
    files = zip(view.files.ids.tolist(), view.files.paths, strict=True)
    return [number for number, paths in files if not names.isdisjoint(paths)]


def write_transcript(path: Path, transcript: Transcript) -> None:
    """Write a transcript as .srt or .vtt."""
    suffix = path.suffix.lower()
    if suffix not in (".srt", ".vtt"):
        raise UsageError(f"{path}: unknown format; use a name that ends in .srt or .vtt")
    save_text(path, format_subtitles(transcript.lines, is_webvtt=suffix == ".vtt"))


def write_page(path: Path, engine: Engine, results: Sequence[SearchResult]) -> None:
    """Write results as a web page with embedded thumbnails."""
    sections = []
    for result in results:
        items = "".join(_format_hit(engine, hit) for hit in result.hits)
        sections.append(f"<h1>{escape(result.title)}</h1>\n<ol>\n{items}</ol>\n")
    title = ", ".join(result.title for result in results)[:100]
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{''.join(sections)}</body>\n</html>\n"
    )
    save_text(path, page)


def _format_hit(engine: Engine, hit: Hit) -> str:
    image = base64.b64encode(engine.thumbnail(hit.clip_id)).decode()
    link = escape(f"{file_url(hit.path)}#t={hit.moment.start:.1f}", quote=True)
    span = f"{hit.moment.start:.1f} - {hit.moment.end:.1f} s" if hit.duration else "image"
    best = f"best at {hit.moment.best:.1f} s" if hit.duration else ""
    facts = ", ".join(filter(None, (best, match_text(hit))))
    return (
        f'<li><a href="{link}"><img alt="" src="data:image/jpeg;base64,{image}"></a>'
        f"<p><b>{hit.rank}.</b> {span} <small>{facts}</small></p>"
        f"<p><small>{escape(hit.path)}</small></p></li>\n"
    )
