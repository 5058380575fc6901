"""Pictures between the lines of a terminal: kitty's protocol, iTerm2's, or sixels."""

from __future__ import annotations

import base64
import io
import os
import select
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

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
