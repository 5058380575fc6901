"""Which clips may be found: path, date, duration, tags. Plain masks; no query language."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from eaglenet.errors import UsageError
from eaglenet.search.store.file_table import FileTable


@dataclass(frozen=True)
class Filters:
    """All given conditions must hold. Bounds that no file can meet are refused.

    path: shell pattern (``*``, ``?``, ``[...]``) against the whole path; a pattern without ``/``
        is matched against the file's name, and a plain word against any part of the path. Letter
        case does not matter.
    after, before: the file's modification time, seconds since 1970; ``after`` is included.
    min_duration, max_duration: of the whole file, seconds, both included.
    tags: every one must be on the file; letter case does not matter.
    """

    path: str | None = None
    after: float | None = None
    before: float | None = None
    min_duration: float | None = None
    max_duration: float | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # An empty answer would look like a store without the thing.
        for name, value in (("shortest", self.min_duration), ("longest", self.max_duration)):
            if value is not None and not value >= 0:
                raise UsageError(f"the {name} duration is in seconds, 0 or more, not {value}")
        shortest, longest = self.min_duration, self.max_duration
        if shortest is not None and longest is not None and shortest > longest:
            raise UsageError(
                f"no file is at least {shortest:g} s and at most {longest:g} s long; swap the two"
            )
        if self.after is not None and self.before is not None and self.after >= self.before:
            raise UsageError("no file is from after the one date and before the other; swap them")

    def __bool__(self) -> bool:
        return self != Filters()

    def allowed(self, files: FileTable) -> NDArray[np.bool_]:
        """Mask over files."""
        allowed = np.ones(len(files.paths), dtype=bool)
        if self.after is not None:
            allowed &= files.modified >= self.after
        if self.before is not None:
            allowed &= files.modified < self.before
        if self.min_duration is not None:
            allowed &= files.durations >= self.min_duration
        if self.max_duration is not None:
            allowed &= files.durations <= self.max_duration
        if self.path:
            matches = path_matcher(self.path)
            allowed &= np.fromiter(
                (any(map(matches, paths)) for paths in files.paths), bool, len(files.paths)
            )
        if self.tags:
            wanted = {tag.casefold() for tag in self.tags}
            allowed &= np.fromiter(
                (wanted <= {tag.casefold() for tag in tags} for tags in files.tags),
                bool,
                len(files.tags),
            )
        return allowed


def path_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Whether a path is as ``Filters.path`` asks."""
    pattern = (pattern or "").lower()
    if not any(sign in pattern for sign in "*?["):
        return lambda path: pattern in path.lower()
    # fnmatch.translate never raises; a broken bracket is taken literally.
    compiled = re.compile(fnmatch.translate(pattern))
    if "/" in pattern:
        return lambda path: compiled.match(path.lower()) is not None
    return lambda path: compiled.match(path.rsplit("/", 1)[-1].lower()) is not None


def parse_date(text: str) -> float:
    """Seconds since 1970 of an ISO date or date and time; local time unless it names a zone.

    >>> parse_date("1970-01-02T00:00:00+00:00")
    86400.0
    """
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{text!r} is not a date; write it like 2026-05-31 or 2026-05-31T18:30"
        ) from None


def make_filters(
    *,
    path: str | None = None,
    after: str | None = None,
    before: str | None = None,
    min_duration: float | None = None,
    max_duration: float | None = None,
    tags: Sequence[str] = (),
) -> Filters:
    """Filters from what a person types; dates as in :func:`parse_date`."""
    return Filters(
        path=path or None,
        after=parse_date(after) if after else None,
        before=parse_date(before) if before else None,
        min_duration=min_duration,
        max_duration=max_duration,
        tags=tuple(tag for tag in tags if tag),
    )
