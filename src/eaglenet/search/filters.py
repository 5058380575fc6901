"""Which clips may be found: path, date, duration, tags. Plain masks; no query language."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.search.store.file_table import FileTable


@dataclass(frozen=True)
class Filters:
    """All given conditions must hold. Bounds that no file can meet are refused.

    path: shell pattern (``*``, ``?``, ``[...]``; ``*`` crosses folders): with ``/`` against a path
        from any folder on (``sub/*``), or the whole of it if it begins with ``/``; without, against
        the file's name. A plain word is looked for in the whole path. Letter case does not matter,
        and what is in brackets may also be meant as it is written.
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
        for _, mask in self._conditions(files):
            allowed &= mask
        return allowed

    def why_empty(self, files: FileTable) -> str:
        """Which condition no file meets, in words; empty where some file meets them all."""
        conditions = list(self._conditions(files))
        if not conditions or bool(self.allowed(files).any()):
            return ""
        unmet = [title for title, mask in conditions if not mask.any()]
        if unmet:
            return f"none of the {len(files)} files has {' or '.join(unmet)}"
        counts = [f"{title} ({int(mask.sum())})" for title, mask in conditions]
        return f"of the {len(files)} files some have {', some '.join(counts)}, but none has all"

    def _conditions(self, files: FileTable) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """What is asked for, in words, and a mask over files; for each condition that is given."""
        if self.after is not None:
            yield f"a date since {_date(self.after)}", files.modified >= self.after
        if self.before is not None:
            yield f"a date before {_date(self.before)}", files.modified < self.before
        if self.min_duration is not None:
            yield f"at least {self.min_duration:g} s", files.durations >= self.min_duration
        if self.max_duration is not None:
            yield f"at most {self.max_duration:g} s", files.durations <= self.max_duration
        if self.path:
            matches = path_matcher(self.path)
            found = (any(map(matches, paths)) for paths in files.paths)
            yield f"a path like {self.path!r}", np.fromiter(found, bool, len(files.paths))
        for tag in self.tags:
            wanted = tag.casefold()
            found = (wanted in {each.casefold() for each in tags} for tags in files.tags)
            yield f"the tag {tag!r}", np.fromiter(found, bool, len(files.tags))


def path_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Whether a path is as ``Filters.path`` asks."""
    wanted = (pattern or "").lower()
    if not any(sign in wanted for sign in "*?["):
        return lambda path: wanted in path.lower()
    # "sub/*" is a folder of that name wherever it lies, not only at the top of the disk.
    anywhere = "*/" if "/" in wanted and not wanted.startswith(("/", "*")) else ""
    # fnmatch.translate never raises; a broken bracket is taken literally.
    forms = [fnmatch.translate(anywhere + wanted)]
    if "[" in wanted:
        # "film [2020].mp4" is the name of a file more often than a choice of four digits.
        forms.append(fnmatch.translate(anywhere + wanted.replace("[", "[[]")))
    compiled = re.compile("|".join(forms))
    if "/" in wanted:
        return lambda path: compiled.match(path.lower()) is not None
    return lambda path: compiled.match(path.rsplit("/", 1)[-1].lower()) is not None


def _date(seconds: float) -> str:
    """As :func:`parse_date` takes it; the number itself where no calendar has such a day."""
    try:
        moment = datetime.fromtimestamp(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s after 1970"
    return moment.strftime("%Y-%m-%d" if seconds == _midnight(moment) else "%Y-%m-%dT%H:%M")


def _midnight(moment: datetime) -> float:
    return datetime(moment.year, moment.month, moment.day).timestamp()


def _typed_path(pattern: str | None) -> str | None:
    """``~`` and ``.`` at its beginning are folders of the person who types."""
    if not pattern:
        return None
    if pattern.startswith("~"):
        return os.path.expanduser(pattern)
    is_here = pattern in (".", "..") or pattern.startswith(("./", "../"))
    return os.path.abspath(pattern) if is_here else pattern


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
        path=_typed_path(path),
        after=parse_date(after) if after else None,
        before=parse_date(before) if before else None,
        min_duration=min_duration,
        max_duration=max_duration,
        tags=tuple(tag for tag in tags if tag),
    )
