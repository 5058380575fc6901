"""`eaglenet search` without words: question after question, with a history."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING

from eaglenet.cli.players import play
from eaglenet.cli.terminal import one_line
from eaglenet.errors import EagleNetError
from eaglenet.user_folders import data_folder

if TYPE_CHECKING:
    from eaglenet.search.hits import Answer

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
                    _play(last, int(line))
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


def _play(answer: Answer, rank: int) -> None:
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
