"""Search results in a terminal: a table that fits it, with nothing cut off."""

from __future__ import annotations

import base64
import filecmp
import io
import os
import re
import select
import shutil
import subprocess
import sys
import unicodedata
import webbrowser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from eaglenet.cli.terminal import one_line
from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.containers import is_picture

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console
    from rich.text import Text

    from eaglenet.core.types import FoundWords, Hit
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import Answer


# Words that were found, below the table of results: which part, when, and the line.

NO_WORDS = (
    "this store holds no words: subtitles inside and beside videos are indexed by themselves; "
    "`eaglenet index --listen MODEL` hears speech, `--read-text` reads frames"
)
"""Said where only words were searched and there are none."""


def show_words(console: Console, hits: Iterable[Hit]) -> None:
    """A line for each line that was found, what was asked for in bold."""
    for hit in hits:
        for line in hit.words:
            part = "text" if line.kind == "text" else "speech"
            console.print(f"{hit.rank:>3} {part:<6} ", highlighted(line), sep="", soft_wrap=True)


def highlighted(line: FoundWords) -> Text:
    """The line with what was asked for in bold."""
    from rich.text import Text

    text, end = Text(), 0
    for start, stop in line.highlights:
        text.append(one_line(line.text[end:start]))
        text.append(one_line(line.text[start:stop]), style="bold reverse")
        end = stop
    return text.append(one_line(line.text[end:]))


LONGEST_TITLE = 200
"""Characters of a query above its table."""
NARROWEST_FILE = 24
"""Columns; where fewer are left for the file, it gets lines of its own."""
GAP = "  "


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


def terminal_width() -> int | None:
    """Columns to fit into; None where the output is not a terminal and scripts may cut it up."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_answer(answer: Answer, short_ids: Mapping[str, str], why_empty: str) -> None:
    """Print a query and its table; ``why_empty``: what to say where nothing was found."""
    if not answer.hits:
        print(one_line(f"nothing found for {answer.query!r}" + (why_empty and f": {why_empty}")))
        return
    for line in table(answer, short_ids, terminal_width(), links=sys.stdout.isatty()):
        print(line)
    if any(hit.words for hit in answer.hits):
        from rich.console import Console

        show_words(Console(width=terminal_width() or 400), answer.hits)


def table(
    answer: Answer, short_ids: Mapping[str, str], width: int | None, *, links: bool = False
) -> list[str]:
    """The query, the folder that all files are in, and a line for each hit, or more if it must.

    ``links``: files are links that terminals open (OSC 8) and players begin at the moment.
    """
    title = answer.query
    title = title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 3]}..."
    folder = common_folder([hit.path for hit in answer.hits])
    rows = [_cells(hit, short_ids) for hit in answer.hits]
    heads = ["#", "score", "moment", "clip"]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    room = None if width is None else width - sum(widths) - len(GAP) * len(widths)
    lines = fold(one_line(title), width)
    lines += fold(one_line(f"in {home_short(folder)}"), width)
    is_beside = room is None or room >= NARROWEST_FILE
    lines.append(GAP.join([*_padded(heads, widths), *(["file"] if is_beside else [])]))
    for hit, cells in zip(answer.hits, rows, strict=True):
        name = one_line(os.path.relpath(hit.path, folder))
        start = GAP.join(_padded(cells, widths))
        link = f"{Path(hit.path).as_uri()}#t={hit.moment.start:.1f}" if links else ""
        if is_beside:
            first, *rest = fold(name, room)
            indent = " " * (len(start) + len(GAP))
            lines.append(start + GAP + _linked(first, link))
            lines += [indent + _linked(part, link) for part in rest]
        else:
            lines.append(start)
            parts = fold(name, None if width is None else max(8, width - len(GAP)))
            lines += [GAP + _linked(part, link) for part in parts]
    return lines


def _cells(hit: Hit, short_ids: Mapping[str, str]) -> list[str]:
    moment = f"{clock(hit.moment.start)}-{clock(hit.moment.end)}" if hit.duration else "picture"
    return [
        str(hit.rank),
        f"{hit.score:.3f}",
        moment,
        short_ids.get(hit.clip_id, hit.clip_id),
    ]


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Numbers to the right, words to the left."""
    rank, score, *others = zip(cells, widths, strict=True)
    numbers = [cell.rjust(size) for cell, size in (rank, score)]
    return numbers + [cell.ljust(size) for cell, size in others]


def common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that all files are in.

    >>> common_folder(["/videos/a/1.mp4", "/videos/b/2.mp4"])
    '/videos'
    """
    return os.path.commonpath([os.path.dirname(path) for path in paths])


def home_short(path: str) -> str:
    """A path as people write it: ``~`` for their own folder."""
    home = os.path.expanduser("~")
    inside = path == home or path.startswith(home.rstrip("/") + "/")
    return "~" + path[len(home) :] if inside and home != "/" else path


def fold(text: str, width: int | None) -> list[str]:
    """Text in pieces of at most ``width`` columns; signs of East Asia take two.

    >>> fold("a-long-name.mp4", 6)
    ['a-long', '-name.', 'mp4']
    """
    if width is None:
        return [text]
    lines, line, used = [], "", 0
    for sign in text:
        size = 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if used + size > width and line:
            lines.append(line)
            line, used = "", 0
        line, used = line + sign, used + size
    return [*lines, line]


def _linked(text: str, link: str) -> str:
    return f"\x1b]8;;{link}\x1b\\{text}\x1b]8;;\x1b\\" if link else text


# Pictures between the lines of a terminal: kitty's protocol, iTerm2's, or sixels.

HEIGHT = 8
"""Lines that a picture takes."""
PIXELS = 160
"""Height of one as sixels, which terminals do not scale."""
CHUNK = 4096
"""Bytes that kitty takes in one piece."""
COLOURS = 64


def kitty(picture: bytes) -> str:
    """https://sw.kovidgoyal.net/kitty/graphics-protocol: PNG in pieces, ``HEIGHT`` lines high."""
    stream = io.BytesIO()
    _opened(picture).save(stream, "PNG")
    data = base64.b64encode(stream.getvalue()).decode()
    pieces = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    text = ""
    for number, piece in enumerate(pieces):
        keys = f"a=T,f=100,r={HEIGHT}," if number == 0 else ""
        text += f"\x1b_G{keys}m={int(number + 1 < len(pieces))};{piece}\x1b\\"
    return text


def iterm2(picture: bytes) -> str:
    """https://iterm2.com/documentation-images.html: the file as it is."""
    data = base64.b64encode(picture).decode()
    return f"\x1b]1337;File=inline=1;height={HEIGHT};size={len(picture)}:{data}\a"


def sixel(picture: bytes) -> str:
    """DEC's sixels: six rows of a few colours at a time, each colour in turn, equal signs counted.

    A sign is 63 and the bits of the rows in which its column has the colour.
    """
    import numpy as np

    image = _opened(picture)
    image = image.resize((max(1, round(image.width * PIXELS / image.height)), PIXELS))
    few = image.quantize(COLOURS)
    palette = few.getpalette() or []
    indices = np.asarray(few)
    text = f'\x1bP0;1q"1;1;{image.width};{image.height}'
    for number in range(len(palette) // 3):
        shares = (round(value / 2.55) for value in palette[3 * number : 3 * number + 3])
        text += f"#{number};2;{';'.join(map(str, shares))}"
    for top in range(0, len(indices), 6):
        band = indices[top : top + 6]
        bits = (1 << np.arange(len(band)))[:, None]
        for colour in np.unique(band).tolist():
            column = ((band == colour) * bits).sum(axis=0) + 63
            text += f"#{colour}{_counted(bytes(column.astype(np.uint8)).decode())}$"
        text += "-"
    return f"{text}\x1b\\"


def _counted(signs: str) -> str:
    """Runs of a sign as ``!`` and their length."""
    from itertools import groupby

    runs = ((sign, len(list(run))) for sign, run in groupby(signs))
    return "".join(f"!{count}{sign}" if count > 3 else sign * count for sign, count in runs)


def _opened(picture: bytes) -> Image:
    from PIL import Image

    with Image.open(io.BytesIO(picture), formats=("JPEG", "PNG")) as opened:
        return opened.convert("RGB")


Draw = Callable[[bytes], str]
"""A JPEG or PNG file -> what to print."""


def choose(environment: Mapping[str, str] = os.environ) -> Draw | None:
    """How this terminal shows pictures; None where it does not, or does not say so."""
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    is_kitty = "KITTY_WINDOW_ID" in environment or term in ("xterm-kitty", "xterm-ghostty")
    if is_kitty or "KONSOLE_VERSION" in environment or program == "ghostty":
        return kitty
    if program in ("iTerm.app", "WezTerm", "mintty") or environment.get("LC_TERMINAL") == "iTerm2":
        return iterm2
    if term.startswith(("foot", "mlterm", "yaft")) or "sixel" in term or says_sixel():
        return sixel
    return None


def says_sixel(seconds: float = 0.3) -> bool:
    """Ask the terminal what it is (DA1); those with sixels name 4 among what they can do."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        import termios
        import tty
    except ImportError:
        return False
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        os.write(sys.stdout.fileno(), b"\x1b[c")
        answer = b""
        while not answer.endswith(b"c") and select.select([number], [], [], seconds)[0]:
            answer += os.read(number, 64)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
    return b"4" in answer.removesuffix(b"c").removeprefix(b"\x1b[?").split(b";")[1:]


# Play a file from a moment on, in the player that a person has.

PLAYERS: dict[str, Callable[[str, float], list[str]]] = {
    "mpv": lambda path, seconds: ["mpv", f"--start={seconds:.2f}", "--", path],
    "vlc": lambda path, seconds: ["vlc", f"--start-time={seconds:.2f}", path],
}
"""How each is told where to begin; the first that is installed plays."""


def player_command(path: str, seconds: float) -> list[str] | None:
    """The command that plays a file from ``seconds`` on; None where no player is installed."""
    for name, command in PLAYERS.items():
        if shutil.which(name):
            return command(path, seconds)
    return None


def play(path: str, seconds: float) -> str:
    """Start playing and return at once; says with what. Photographs are opened by the browser."""
    if not Path(path).exists():
        raise UsageError(f"{path}: no longer exists, so it cannot be played")
    command = None if is_picture(path) else player_command(path, seconds)
    if command is not None:
        quiet = subprocess.DEVNULL
        # Of its own session, so that ending this program does not end the player.
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        return command[0]
    if not webbrowser.open(f"{Path(path).as_uri()}#t={seconds:.2f}"):
        raise UsageError(f"no player was found; install mpv or vlc, or open {path} yourself")
    return "the browser"


# Results as files: the moment of each hit, cut out of its video.

LONGEST_FOLDER = 60
"""Characters of a sentence that name a folder."""


@dataclass(frozen=True)
class Saved:
    """What was written: ``paths`` by the number of the question and the clip's id."""

    paths: dict[tuple[int, str], str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Why some hits are not among them: a file that is gone does not cost the others."""


def save_hits(
    engine: Engine, answers: Sequence[Answer], folder: Path, *, padding: float, form: str
) -> Saved:
    """Save the moment of every hit of every question; each question has a folder of its own."""
    from eaglenet.video.saving import moment_name, save_moment

    saved, taken = Saved(), set[Path]()
    for number, answer in enumerate(answers):
        inside = folder / _folder_name(number, answer.query) if len(answers) > 1 else folder
        try:
            inside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{inside}: cannot be created: {error.strerror}") from error
        for hit in answer.hits:
            start = max(0.0, hit.moment.start - padding)
            end = min(hit.moment.end + padding, hit.duration) or hit.moment.end
            source = engine.file_of(hit.clip_id)
            target = _untaken(inside / moment_name(source, start, end, form), source, taken)
            try:
                save_moment(source, target, start, end, form)
            except VideoDecodeError as error:
                saved.left_out.append(str(error))
            else:
                saved.paths[number, hit.clip_id] = str(target)
    return saved


def _folder_name(number: int, query: str) -> str:
    """A question as the name of a folder.

    >>> _folder_name(0, "A dog/cat, asleep!")
    '01 A dog cat asleep'
    """
    words = " ".join(re.findall(r"[\w-]+", query))[:LONGEST_FOLDER].strip()
    return f"{number + 1:02} {words}".strip()


def _untaken(path: Path, source: Path, taken: set[Path]) -> Path:
    """``path``, numbered where this run has written one: two folders may hold one name.

    A photograph keeps its name, which says little: another one of that name is not written over.
    """
    free, number = path, 1
    while free in taken or (is_picture(source) and _is_another(free, source)):
        number += 1
        free = path.with_name(f"{path.stem} ({number}){path.suffix}")
    taken.add(free)
    return free


def _is_another(path: Path, source: Path) -> bool:
    """Whether a file is there that is no copy of ``source``."""
    try:
        return path.exists() and not filecmp.cmp(path, source, shallow=False)
    except OSError:
        return True
