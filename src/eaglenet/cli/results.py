"""Search results: print them as tables and images, play and save their moments."""

from __future__ import annotations

import base64
import filecmp
import io
import os
import posixpath
import re
import select
import shutil
import subprocess
import sys
import unicodedata
import webbrowser
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from eaglenet.cli.terminal import print_line
from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.text import escape_line, format_time
from eaglenet.search.confidence import fits_nothing, match_text
from eaglenet.search.hit import file_url
from eaglenet.video.containers import is_image

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console
    from rich.text import Text

    from eaglenet.search.engine import Engine
    from eaglenet.search.hit import Hit, TranscriptMatch
    from eaglenet.search.hits import SearchResult


KIND_LABELS = {"text": "text", "description": "shows"}
"""Labels of transcript lines by kind; all other kinds are speech."""
MAX_TITLE = 200
"""Maximum characters of a query to print above its table."""
MIN_FILE_COLUMNS = 24
"""Minimum columns for the file name; with fewer, it is printed on its own line."""
GAP = "  "
IMAGE_LINES = 8
"""Height of an image in lines."""
SIXEL_HEIGHT = 160
"""Height of an image as sixels, in pixels; terminals do not scale sixels."""
KITTY_CHUNK = 4096
"""Bytes per chunk of kitty's protocol."""
NUM_COLOURS = 64
MAX_FOLDER_NAME = 60
"""Maximum characters of a query in the name of its folder."""


def print_transcripts(console: Console, hits: Iterable[Hit]) -> None:
    """Print the matching transcript lines of hits, with the matches in bold."""
    for hit in hits:
        for line in hit.transcript:
            kind = KIND_LABELS.get(line.kind, "speech")
            ending = " (by meaning)" if line.by_meaning else ""
            label = f"{hit.rank:>3} {kind:<6} "
            console.print(label, highlight(line), ending, sep="", soft_wrap=True)


def highlight(line: TranscriptMatch) -> Text:
    from rich.text import Text

    text, end = Text(), 0
    for start, stop in line.highlights:
        text.append(escape_line(line.text[end:start]))
        text.append(escape_line(line.text[start:stop]), style="bold reverse")
        end = stop
    return text.append(escape_line(line.text[end:]))


def terminal_width() -> int | None:
    """Return the number of columns; None if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_result(result: SearchResult, short_ids: Mapping[str, str], why_empty: str) -> None:
    """Print a query with its hits, or why there are none."""
    if not result.hits:
        print_line(f"no results for {result.title!r}" + (why_empty and f": {why_empty}"))
        return
    if fits_nothing([hit.confidence for hit in result.hits]):
        print_line("no moment is likely to show this; the nearest are:")
    # Such as Emacs's shell, which shows escape sequences as text.
    has_links = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    for line in format_table(result, short_ids, terminal_width(), links=has_links):
        print(line)
    for hit in result.hits:
        for step in hit.metadata.get("steps", ()):
            span = f"{format_time(step['start'])}-{format_time(step['end'])}"
            print_line(f"{hit.rank:>3}  {span}  {step['query']}")
    if any(hit.transcript for hit in result.hits):
        from rich.console import Console

        print_transcripts(Console(width=terminal_width() or 400), result.hits)


def format_table(
    result: SearchResult, short_ids: Mapping[str, str], width: int | None, *, links: bool = False
) -> list[str]:
    """Format a query, the common folder of its hits, and one line per hit; wrap long names.

    ``links`` makes file names links (OSC 8) that open the file at the moment.
    """
    title = result.title
    title = title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 3]}..."
    folder = common_folder([hit.path for hit in result.hits])
    # Show scores only for hits without a confidence, which is easier to interpret.
    is_scored = any(match_text(hit).startswith("score ") for hit in result.hits)
    rows = [_cells(hit, short_ids, is_scored) for hit in result.hits]
    heads = ["#", "score", "match", "moment", "recorded", "clip"]
    for name in ("score", "match", "recorded"):
        column = heads.index(name)
        if not any(cells[column] for cells in rows):
            heads.remove(name)
            rows = [[*cells[:column], *cells[column + 1 :]] for cells in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    columns_left = None if width is None else width - sum(widths) - len(GAP) * len(widths)
    lines = wrap(escape_line(title), width)
    if folder:
        lines += wrap(escape_line(f"in {shorten_home(folder)}"), width)
    is_beside = columns_left is None or columns_left >= MIN_FILE_COLUMNS
    lines.append(GAP.join([*_pad(heads, widths, heads), *(["file"] if is_beside else [])]))
    for hit, cells in zip(result.hits, rows, strict=True):
        name = escape_line(os.path.relpath(hit.path, folder) if folder else hit.path)
        start = GAP.join(_pad(cells, widths, heads))
        link = f"{file_url(hit.path)}#t={hit.moment.start:.1f}" if links else ""
        if is_beside:
            first, *continuations = wrap(name, columns_left)
            indent = " " * (len(start) + len(GAP))
            lines.append(start + GAP + _link(first, link))
            lines += [indent + _link(text, link) for text in continuations]
        else:
            lines.append(start)
            texts = wrap(name, None if width is None else max(8, width - len(GAP)))
            lines += [GAP + _link(text, link) for text in texts]
    return lines


def _cells(hit: Hit, short_ids: Mapping[str, str], is_scored: bool) -> list[str]:
    span = f"{format_time(hit.moment.start)}-{format_time(hit.moment.end)}"
    record_time = hit.metadata.get("recorded")
    return [
        str(hit.rank),
        f"{hit.score:.3f}" if is_scored and hit.score >= 0 else "",
        "" if match_text(hit).startswith("score ") else match_text(hit),
        span if hit.duration else "image",
        "" if record_time is None else datetime.fromtimestamp(record_time).strftime("%Y-%m-%d"),
        short_ids.get(hit.clip_id, hit.clip_id),
    ]


def _pad(cells: Sequence[str], widths: Sequence[int], heads: Sequence[str]) -> list[str]:
    """Align numbers to the right and text to the left."""
    return [
        cell.rjust(size) if head in ("#", "score") else cell.ljust(size)
        for cell, size, head in zip(cells, widths, heads, strict=True)
    ]


def common_folder(paths: Sequence[str]) -> str:
    """Return the deepest folder or URL that contains all files; empty if there is none.

    >>> common_folder(["/videos/a/1.mp4", "/videos/b/2.mp4"])
    '/videos'
    >>> common_folder(["s3://bucket/a/1.mp4", "s3://bucket/b/2.mp4"])
    's3://bucket'
    >>> common_folder(["s3://bucket/a/1.mp4", "/videos/2.mp4"])
    ''
    """
    parts = [path.rpartition("://") for path in paths]
    scheme, *others = {f"{name}{separator}" for name, separator, _ in parts}
    flavour = posixpath if scheme else os.path
    try:
        folder = flavour.commonpath([flavour.dirname(name) for _, _, name in parts])
    except ValueError:  # Several drives of Windows.
        return ""
    return scheme + folder if folder and not others else ""


def shorten_home(path: str) -> str:
    """Replace the home folder by ``~``."""
    folder = os.path.expanduser("~")
    is_inside = path == folder or path.startswith(folder.rstrip("/") + "/")
    return "~" + path[len(folder) :] if is_inside and folder != "/" else path


def wrap(text: str, width: int | None) -> list[str]:
    """Split text into lines of at most ``width`` columns; East Asian characters take two.

    >>> wrap("a-long-name.mp4", 6)
    ['a-long', '-name.', 'mp4']
    """
    if width is None:
        return [text]
    lines, line, columns = [], "", 0
    for char in text:
        size = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if columns + size > width and line:
            lines.append(line)
            line, columns = "", 0
        line, columns = line + char, columns + size
    return [*lines, line]


def _link(text: str, link: str) -> str:
    return f"\x1b]8;;{link}\x1b\\{text}\x1b]8;;\x1b\\" if link else text


DrawImage = Callable[[bytes], str]
"""Converts the content of a JPEG or PNG file to text that shows it in a terminal."""


def kitty(content: bytes) -> str:
    """Encode an image for kitty (https://sw.kovidgoyal.net/kitty/graphics-protocol)."""
    stream = io.BytesIO()
    _open_image(content).save(stream, "PNG")
    data = base64.b64encode(stream.getvalue()).decode()
    chunks = [data[start : start + KITTY_CHUNK] for start in range(0, len(data), KITTY_CHUNK)]
    text = ""
    for number, chunk in enumerate(chunks):
        keys = f"a=T,f=100,r={IMAGE_LINES}," if number == 0 else ""
        text += f"\x1b_G{keys}m={int(number + 1 < len(chunks))};{chunk}\x1b\\"
    return text


def iterm2(content: bytes) -> str:
    """Encode an image for iTerm2 (https://iterm2.com/documentation-images.html)."""
    data = base64.b64encode(content).decode()
    return f"\x1b]1337;File=inline=1;height={IMAGE_LINES};size={len(content)}:{data}\a"


def sixel(content: bytes) -> str:
    """Encode an image as DEC sixels: bands of six rows, each drawn one colour at a time.

    A character stands for one column of a band: 63 plus a bit for every row that has the colour.
    Runs of equal characters are run-length encoded.
    """
    import numpy as np

    image = _open_image(content)
    size = max(1, round(image.width * SIXEL_HEIGHT / image.height)), SIXEL_HEIGHT
    image = image.resize(size)
    quantised_image = image.quantize(NUM_COLOURS)
    palette = quantised_image.getpalette() or []
    indices = np.asarray(quantised_image)
    text = f'\x1bP0;1q"1;1;{image.width};{image.height}'
    for number in range(len(palette) // 3):
        percent = (round(value / 2.55) for value in palette[3 * number : 3 * number + 3])
        text += f"#{number};2;{';'.join(map(str, percent))}"
    for top in range(0, len(indices), 6):
        band = indices[top : top + 6]
        bits = (1 << np.arange(len(band)))[:, None]
        for colour in np.unique(band).tolist():
            column = ((band == colour) * bits).sum(axis=0) + 63
            text += f"#{colour}{_count_runs(bytes(column.astype(np.uint8)).decode())}$"
        text += "-"
    return f"{text}\x1b\\"


def _count_runs(text: str) -> str:
    """Run-length encode: ``!``, the length of the run, and the character."""
    from itertools import groupby

    runs = ((char, len(list(run))) for char, run in groupby(text))
    return "".join(f"!{count}{char}" if count > 3 else char * count for char, count in runs)


def _open_image(content: bytes) -> Image:
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
        return image.convert("RGB")


def detect_images(environment: Mapping[str, str] = os.environ) -> DrawImage | None:
    """Return the image encoder for this terminal; None if it does not report support."""
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    is_kitty = "KITTY_WINDOW_ID" in environment or term in ("xterm-kitty", "xterm-ghostty")
    if is_kitty or "KONSOLE_VERSION" in environment or program == "ghostty":
        return kitty
    if program in ("iTerm.app", "WezTerm", "mintty") or environment.get("LC_TERMINAL") == "iTerm2":
        return iterm2
    if term.startswith(("foot", "mlterm", "yaft")) or "sixel" in term or has_sixels():
        return sixel
    return None


def has_sixels(timeout: float = 0.3) -> bool:
    """Query the attributes of the terminal (DA1); attribute 4 means sixels."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        import termios
        import tty
    except ImportError:
        return False
    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        os.write(sys.stdout.fileno(), b"\x1b[c")
        answer = b""
        while not answer.endswith(b"c") and select.select([descriptor], [], [], timeout)[0]:
            answer += os.read(descriptor, 64)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
    return b"4" in answer.removesuffix(b"c").removeprefix(b"\x1b[?").split(b";")[1:]


PLAYERS: dict[str, Callable[[str, float], list[str]]] = {
    "mpv": lambda path, seconds: ["mpv", f"--start={seconds:.2f}", "--", path],
    "vlc": lambda path, seconds: ["vlc", f"--start-time={seconds:.2f}", path],
}
"""Command lines of players, in order of preference."""


def player_command(path: str, seconds: float) -> list[str] | None:
    """Return a command that plays a file from a time on; None if no player is installed."""
    for name, command in PLAYERS.items():
        if shutil.which(name):
            return command(path, seconds)
    return None


def play(path: str, seconds: float) -> str:
    """Start a player without waiting for it, and return its name; open images in the browser."""
    if not Path(path).exists():
        raise UsageError(f"{path}: cannot be played because it no longer exists")
    command = None if is_image(path) else player_command(path, seconds)
    if command is not None:
        null = subprocess.DEVNULL
        # A new session, so that the player outlives this program.
        subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
        return command[0]
    if not webbrowser.open(f"{file_url(path)}#t={seconds:.2f}"):
        raise UsageError(f"no player found; install mpv or vlc, or open {path} yourself")
    return "the browser"


def play_hit(hit: Hit) -> None:
    player = play(hit.path, hit.moment.start)
    print_line(f"playing {hit.path} in {player}", is_error=True)


@dataclass(frozen=True)
class SavedMoments:
    """Saved files, by number of the query and clip id, and problems with other moments."""

    paths: dict[tuple[int, str], str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def save_hits(
    engine: Engine,
    results: Sequence[SearchResult],
    folder: Path,
    moments: SavedMoments,
    *,
    padding: float,
    form: str,
) -> None:
    """Save the moment of every hit, into one subfolder per query if there are several.

    Adds each to ``moments`` at once, so that they are known if saving another one fails.
    """
    from eaglenet.video.saving import MomentSaver, moment_name

    used_paths = set[Path]()
    with MomentSaver() as saver:
        for number, result in enumerate(results):
            name = _folder_name(number, result.title)
            subfolder = folder / name if len(results) > 1 else folder
            try:
                subfolder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"{subfolder}: cannot be created: {error.strerror}") from error
            for hit in result.hits:
                start = max(0.0, hit.moment.start - padding)
                end = min(hit.moment.end + padding, hit.duration) or hit.moment.end
                with closing(engine.open_file(hit.clip_id)) as file:
                    source = Path(file.path)
                    path = subfolder / moment_name(source, start, end, form)
                    target = _free_path(path, source, used_paths)
                    try:
                        saver.save(file, target, start, end, form)
                    except VideoDecodeError as error:
                        moments.problems.append(str(error))
                    else:
                        moments.paths[number, hit.clip_id] = str(target)


def _folder_name(number: int, query: str) -> str:
    """Make a folder name from a query.

    >>> _folder_name(0, "A dog/cat, asleep!")
    '01 A dog cat asleep'
    """
    name = " ".join(re.findall(r"[\w-]+", query))[:MAX_FOLDER_NAME].strip()
    return f"{number + 1:02} {name}".strip()


def _free_path(path: Path, source: Path, used_paths: set[Path]) -> Path:
    """Add a number to ``path`` if this run has already written it.

    Images keep their names, so a different existing image of that name also gets a number.
    """
    free, number = path, 1
    while free in used_paths or (is_image(source) and _is_other_file(free, source)):
        number += 1
        free = path.with_name(f"{path.stem} ({number}){path.suffix}")
    used_paths.add(free)
    return free


def _is_other_file(path: Path, source: Path) -> bool:
    """Return whether ``path`` exists and is not a copy of ``source``."""
    try:
        return path.exists() and not filecmp.cmp(path, source, shallow=False)
    except OSError:
        return True
