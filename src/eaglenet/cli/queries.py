"""Queries of ``eaglenet search``: from its arguments, from a text file, or typed at a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglenet.cli.results import play_hit
from eaglenet.cli.terminal import print_line
from eaglenet.core.errors import EagleNetError, UsageError, cause_of, shell_quote
from eaglenet.core.files import expand_home
from eaglenet.core.platform import data_folder
from eaglenet.search.grammar import AnyQuery, parse
from eaglenet.search.query import Query
from eaglenet.video.containers import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from eaglenet.search.hits import SearchResult

PROMPT = "search> "
HISTORY_LENGTH = 1000
WELCOME = "Describe what to find; enter a number to play that result, an empty line to quit."


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
        play_hit(hits[0])
    else:
        print_line(f"the last search has no result {rank}", is_error=True)


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
