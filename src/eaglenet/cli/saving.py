"""Results as files: the moment of each hit, cut out of its video."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from eaglenet.errors import UsageError, VideoDecodeError
from eaglenet.video.suffixes import is_picture

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import Answer

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
