"""Play a file from a moment on, in the player that a person has."""

from __future__ import annotations

import shutil
import subprocess
import webbrowser
from collections.abc import Callable
from pathlib import Path

from eaglenet.errors import UsageError
from eaglenet.video.suffixes import is_picture

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
