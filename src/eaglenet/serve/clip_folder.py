"""Folder of the clips that assistants save: new files only, and none outside it."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eaglenet.core.errors import UsageError
from eaglenet.core.files import expand_home


def make_folder(folder: Path) -> Path:
    """Create the folder for clips, because clients that start the server hide its errors."""
    folder = expand_home(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created ({error.strerror}); use another") from None
    return folder.resolve()


def file_stem(name: str) -> str:
    """Return the name of a clip without extension; refuse names that could leave the folder.

    >>> file_stem("the goal.mp4")
    'the goal'
    >>> file_stem("हिन्दी.mp4")
    'हिन्दी'
    """
    stem = name.strip().removesuffix(".mp4").strip()
    # Marks belong to the letters before them, in Hindi as in decomposed accents.
    bases = "".join(sign for sign in stem if not unicodedata.category(sign).startswith("M"))
    if not re.fullmatch(r"[\w][\w ().,'-]{0,99}", bases) or stem.endswith("."):
        raise UsageError(
            "a name may contain letters, digits, spaces and ().,'- only, and no folder"
        )
    return stem


@contextmanager
def new_file(folder: Path, stem: str) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a new file, with a number if the name exists; remove it if the block fails."""
    for number in range(1, 1000):
        path = folder / (f"{stem}.mp4" if number == 1 else f"{stem} ({number}).mp4")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        try:
            descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"the clip cannot be written: {error.strerror}") from None
        break
    else:
        raise UsageError("too many clips have this name; choose another name")
    try:
        with open(descriptor, "wb") as file:
            yield path, file
    except BaseException:
        path.unlink(missing_ok=True)
        raise
