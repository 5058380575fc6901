"""Search options and filters, shared by the engine, the command line and the HTTP API."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypedDict

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.settings import NamedFields, option
from eaglenet.core.text import list_unknown, pluralize
from eaglenet.search.confidence import MIN_CLIPS
from eaglenet.search.dates import DateRange
from eaglenet.search.places import find_place, fold_accents
from eaglenet.video.recording import Place, distances, parse_distance

if TYPE_CHECKING:
    from eaglenet.search.hit import Modality
    from eaglenet.store.records import FileTable

MAX_RESULTS = 10_000
DEFAULT_KILOMETRES = 10.0
MODALITIES: tuple[Modality, ...] = ("visual", "speech", "screen-text", "descriptions")


def parse_date(text: str) -> float:
    """Return an ISO date, or date and time, as seconds since 1970; local time without a zone.

    >>> parse_date("1970-01-02T00:00:00+00:00")
    86400.0
    """
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{text!r} is not a date; write it like 2026-05-31 or 2026-05-31T18:30"
        ) from None


def expand_path(pattern: str) -> str | None:
    """Expand ``~``, ``.`` and ``..`` at the start of a typed pattern; None if it is empty."""
    if pattern.startswith("~"):
        return os.path.expanduser(pattern)
    is_relative = pattern in (".", "..") or pattern.startswith(("./", "../"))
    return os.path.abspath(pattern) if is_relative else pattern or None


FILTER_FORM = "SearchOptions(filters=Filters({}=...))"
COUNTS = ("limit", "top_k", "num_results")
"""Names of ``k`` in other libraries."""


class SearchFields(NamedFields):
    """Base of options of a search, whose errors say where another option belongs."""

    @classmethod
    def advise(cls, name: str) -> str:
        if name == "k" or name in COUNTS:
            return "pass the number of results to the search: engine.search(query, k=10)"
        for owner, form in ((SearchOptions, "SearchOptions({}=...)"), (Filters, FILTER_FORM)):
            if cls is not owner and name in (spec.name for spec in dataclasses.fields(owner)):
                return f"it belongs to {form.format(name)}"
        return ""


@dataclass(frozen=True, repr=False)
class Filters(SearchFields):
    """Conditions on files, all of which must hold. Impossible combinations raise ``UsageError``.

    path: shell pattern (``*``, ``?``, ``[...]``; ``*`` matches ``/`` too). A pattern with ``/`` is
        compared with the end of the path (``sub/*``), or with the whole path if it begins with
        ``/``; other patterns are compared with the name of the file and of each folder below the
        indexed one. Text without ``*``, ``?`` and ``[`` may occur anywhere in the path. Case and
        accents are ignored, and brackets also match literally.
    after, before: time of the recording: ``"2026-05-31"``, a ``date`` or ``datetime``, or seconds
        since 1970, which are stored; the modification time if a file does not say when it was
        recorded. ``after`` is inclusive.
    near: degrees north and east, ``(48.1, 11.6)`` or ``"48.1,11.6"``, or a name
        (:mod:`eaglenet.search.places`); stored as numbers. Files without a place do not match.
    within: largest distance from ``near`` in kilometres, or as ``"800m"``; stored as kilometres.
    camera: part of the make and model; case is ignored.
    min_duration, max_duration: duration of the file in seconds, inclusive.
    tags: tags that the file must have; case is ignored.
    """

    min_clips: ClassVar[int] = MIN_CLIPS
    """Minimum clips that must pass the filters for hits to have a confidence."""
    path: str | None = option(
        None,
        "Only paths that match: '*.mov', 'holidays/*', or part of a path.",
        metavar="PATTERN",
        parse=expand_path,
    )
    after: float | str | date | None = option(
        None,
        "Only recordings since a date, like 2026-05-31. For files without a recording "
        "date, the modification time counts.",
        group="Filters",
        metavar="DATE",
        parse=parse_date,
    )
    before: float | str | date | None = option(
        None, "Only recordings before a date.", group="Filters", metavar="DATE", parse=parse_date
    )
    near: str | tuple[float, float] | Place | None = option(
        None,
        "Only recordings near '48.1,11.6' (degrees north and east), or near a town of "
        "the table EAGLENET_PLACES.",
        group="Filters",
        metavar="PLACE",
        type=str,
    )
    within: float | str | None = option(
        None,
        "Set the distance for --near: 5km, 800m or 3mi. Default: 10km.",
        group="Filters",
        metavar="DISTANCE",
        type=str,
    )
    camera: str | None = option(
        None,
        "Only recordings of a camera or phone, by part of its make and model.",
        group="Filters",
        metavar="TEXT",
    )
    min_duration: float | None = option(
        None, "Only files of at least this duration.", group="Filters", metavar="SECONDS"
    )
    max_duration: float | None = option(
        None, "Only files of at most this duration.", group="Filters", metavar="SECONDS"
    )
    tags: str | Sequence[str] = option(
        (),
        "Only files with this tag; repeatable.",
        name="--tag",
        group="Filters",
        type=tuple[str, ...],
    )

    def __post_init__(self) -> None:
        for name in ("path", "camera"):
            if not isinstance(getattr(self, name), str | None):
                raise UsageError(f"{name} must be a text, not {getattr(self, name)!r:.60}")
        tags = (self.tags,) if isinstance(self.tags, str) else self.tags
        if not isinstance(tags, Iterable) or not all(isinstance(tag, str) for tag in tags):
            raise UsageError(f"tags must be texts, not {tags!r:.60}")
        object.__setattr__(self, "tags", tuple(tags))
        for name in ("after", "before"):
            object.__setattr__(self, name, _seconds(name, getattr(self, name)))
        object.__setattr__(self, "near", _degrees(self.near))
        object.__setattr__(self, "within", _kilometres(self.within))
        if self.within is not None and self.near is None:
            raise UsageError("within needs a place; add near, such as '48.1,11.6'")
        for name, value in (("minimum", self.min_duration), ("maximum", self.max_duration)):
            if value is not None and not (_is_number(value) and value >= 0):
                raise UsageError(
                    f"the {name} duration must be 0 seconds or more, not {value!r:.60}"
                )
        shortest, longest = self.min_duration, self.max_duration
        if shortest is not None and longest is not None and shortest > longest:
            raise UsageError(
                f"no file lasts at least {shortest:g} s and at most {longest:g} s; swap the two"
            )
        after, before = self.times
        if after is not None and before is not None and after >= before:
            raise UsageError("no file is newer than 'after' and older than 'before'; swap the two")

    def __bool__(self) -> bool:
        return self != Filters()

    @property
    def times(self) -> tuple[float | None, float | None]:
        """``after`` and ``before`` in seconds since 1970."""
        return _seconds("after", self.after), _seconds("before", self.before)

    def matches(self, files: FileTable) -> NDArray[np.bool_]:
        """Return the mask of the files that meet all conditions."""
        is_match = np.ones(len(files.paths), dtype=bool)
        for _, mask in self._conditions(files):
            is_match &= mask
        return is_match

    def why_empty(self, files: FileTable) -> str:
        """Return the conditions that no file meets, as a sentence; empty if a file meets all."""
        conditions = list(self._conditions(files))
        if not conditions or bool(self.matches(files).any()):
            return ""
        unmet = [title for title, mask in conditions if not mask.any()]
        if unmet:
            hint = self._path_hint(files) + self._tag_hint(files) + self.date_hint(files)
            return f"none of the {len(files)} files has {' or '.join(unmet)}{hint}"
        counts = [f"{title} ({int(mask.sum())} files)" for title, mask in conditions]
        hint = self.date_hint(files)
        return f"none of the {len(files)} files has all of: {', '.join(counts)}{hint}"

    def _path_hint(self, files: FileTable) -> str:
        """Return a hint if a pattern would match paths without its ``*``, else ``""``."""
        text = (self.path or "").strip("*?")
        if text in ("", self.path) or any(char in text for char in "*?[/"):
            return ""
        matches = path_matcher(text)
        count = sum(any(map(matches, paths)) for paths in files.paths)
        files_text = pluralize(count, "path contains", "paths contain")
        return f"; {files_text} it: write {text!r} without *" if count else ""

    def _tag_hint(self, files: FileTable) -> str:
        """Return what no file contains at all: a position, or the name of its camera."""
        has_position = not np.isnan(files.latitudes).all()
        hint = "" if self.near is None or has_position else "; no file has a position"
        return hint if not self.camera or any(files.cameras) else f"{hint}; no file names a camera"

    def date_hint(self, files: FileTable) -> str:
        """Return how many files were filtered by modification time, if any, else ``""``."""
        is_by_date = self.after is not None or self.before is not None
        count = int(np.isnan(files.recording_times).sum()) if is_by_date else 0
        files_text = pluralize(count, "file has", "files have")
        text = f"; {files_text} no recording date: the modification time was used"
        return text if count else ""

    def _conditions(self, files: FileTable) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield the title of each condition, and the mask of the files that meet it."""
        after, before = self.times
        if after is not None:
            yield f"a date since {_date(after)}", files.dates >= after
        if before is not None:
            yield f"a date before {_date(before)}", files.dates < before
        degrees = _degrees(self.near)
        if degrees is not None:
            place, radius = Place(*degrees), _kilometres(self.within) or DEFAULT_KILOMETRES
            # False where a file has no place: its distance is NaN.
            is_near = distances(place, files.latitudes, files.longitudes) <= radius
            title = f"a place within {radius:g} km of {place.latitude:g},{place.longitude:g}"
            yield title, is_near
        if self.camera:
            part = fold_accents(self.camera)
            has_part = (part in fold_accents(camera or "") for camera in files.cameras)
            yield f"a camera like {self.camera!r}", np.fromiter(has_part, bool, len(files))
        if self.min_duration is not None:
            yield f"at least {self.min_duration:g} s", files.durations >= self.min_duration
        if self.max_duration is not None:
            yield f"at most {self.max_duration:g} s", files.durations <= self.max_duration
        if self.path:
            matches = path_matcher(self.path, files.roots)
            is_match = (any(map(matches, paths)) for paths in files.paths)
            is_name = "/" not in self.path and any(char in self.path for char in "*?[")
            title = f"a {'file or folder name' if is_name else 'path'} like {self.path!r}"
            yield title, np.fromiter(is_match, bool, len(files.paths))
        for tag in self.tags:
            has_tag = (tag.casefold() in map(str.casefold, tags) for tags in files.tags)
            yield f"the tag {tag!r}", np.fromiter(has_tag, bool, len(files.tags))


def path_matcher(
    pattern: str | None, roots: Iterable[str] = (), separator: str = os.sep
) -> Callable[[str], bool]:
    """Return a function that matches paths as ``Filters.path`` does; ``roots``: indexed folders."""

    def normalise(path: str) -> str:
        return fold_accents(path).replace(separator, "/")

    lower = normalise(pattern or "")
    if not any(character in lower for character in "*?["):
        return lambda path: lower in normalise(path)
    # "sub/*" is a folder of that name anywhere, not only at the root.
    anywhere = "*/" if "/" in lower and not lower.startswith(("/", "*")) else ""
    # fnmatch.translate never raises: it escapes an unclosed bracket.
    expressions = [fnmatch.translate(anywhere + lower)]
    if "[" in lower:
        # "film [2020].mp4" is more often a file name than a set of digits.
        expressions.append(fnmatch.translate(anywhere + lower.replace("[", "[[]")))
    expression = re.compile("|".join(expressions))
    if "/" in lower:
        return lambda path: expression.match(normalise(path)) is not None
    root_paths = {normalise(root).rstrip("/") for root in roots}

    @cache
    def is_in_matching_folder(folder: str) -> bool:
        """Return whether a folder below the outermost root, on the way to this one, matches."""
        lengths = [len(root) for root in root_paths if f"{folder}/".startswith(f"{root}/")]
        if not lengths:
            return False
        return any(map(expression.match, folder[min(lengths) + 1 :].split("/")))

    def matches(path: str) -> bool:
        folder, _, name = normalise(path).rpartition("/")
        return expression.match(name) is not None or is_in_matching_folder(folder)

    return matches


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)


def _seconds(name: str, value: Any) -> float | None:
    """Return a date, a time or a text for :func:`parse_date` as seconds since 1970."""
    if isinstance(value, str):
        return parse_date(value)
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime.combine(value, time.min)
        try:
            return moment.timestamp()
        except (ValueError, OverflowError, OSError):
            # Local time is not defined in the years 1 and 9999; a few hours do not matter there.
            return moment.replace(tzinfo=UTC).timestamp()
    if value is None:
        return None
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise UsageError(
        f"{name} must be a date, a time or seconds since 1970, not "
        f"{type(value).__name__} {value!r:.60}"
    )


def _degrees(value: Any) -> tuple[float, float] | None:
    """Return a place, a pair of numbers or a text for :func:`find_place` as degrees."""
    if value is None:
        return None
    try:
        place = find_place(value) if isinstance(value, str) else value
        place = place if isinstance(place, Place) else Place(*map(float, place))
    except (TypeError, ValueError):
        raise UsageError(
            f"near must be a place, like '48.1,11.6', or two numbers, not {value!r:.60}"
        ) from None
    return place.latitude, place.longitude


def _kilometres(value: Any) -> float | None:
    if isinstance(value, str):
        return parse_distance(value)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < value < math.inf:
        return float(value)
    raise UsageError(f"within must be a distance above 0, like '5km' or 5, not {value!r:.60}")


def _date(seconds: float) -> str:
    """Format a time as :func:`parse_date` reads it; as a number if no calendar has it."""
    try:
        moment = datetime.fromtimestamp(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s after 1970"
    is_midnight = seconds == datetime(moment.year, moment.month, moment.day).timestamp()
    return moment.strftime("%Y-%m-%d" if is_midnight else "%Y-%m-%dT%H:%M")


def parse_modalities(names: str | Sequence[str]) -> tuple[Modality, ...]:
    """Parse modalities: a sequence, or names separated by commas.

    >>> parse_modalities("screen-text, speech")
    ('speech', 'screen-text')
    """
    name_list = names.split(",") if isinstance(names, str) else names
    modalities = {str(name).strip().lower() for name in name_list}
    if not modalities or not modalities <= set(MODALITIES):
        raise UsageError(
            f"cannot search in {names!r:.60}; use one or more of: {', '.join(MODALITIES)}"
        )
    return tuple(modality for modality in MODALITIES if modality in modalities)


@dataclass(frozen=True, repr=False)
class SearchOptions(SearchFields):
    """Options of a search.

    filters: files that may contain hits.
    group_files: return one hit per file; its other clips are in ``metadata["more"]``.
    shortlist: number of clips to rank with the exact score; at least the number of hits.
    rerank: if False, rank by the cosines of the shortlist alone.
    modalities: parts of a video to search; see :func:`parse_modalities`.
    keep_duplicates: if False, a moment in two overlapping clips is returned once, and so are near
        copies of a file; the paths of the copies are in ``metadata["copies"]``.
    min_confidence: leave out hits with a lower probability of being right.
    literal: ignore operators (:mod:`eaglenet.search.grammar`) and dates
        (:mod:`eaglenet.search.dates`) in texts.
    """

    filters: Filters = field(default_factory=Filters)
    group_files: bool = option(False, "Show one result per file.", name="--group", group="Ranking")
    shortlist: int = option(
        100, "Number of clips to rank with the exact score.", group="Ranking", min=1
    )
    rerank: bool = True
    modalities: tuple[Modality, ...] = option(
        MODALITIES,
        "Search in visual, speech (with subtitles), screen-text or descriptions; "
        "separate several by commas. Default: all.",
        name="--in",
        metavar="MODALITY",
        parse=parse_modalities,
    )
    keep_duplicates: bool = option(
        False, "Also show repeated moments and near copies of files.", group="Ranking"
    )

    min_confidence: float = option(
        0.0,
        "Only results that are right with at least this probability, 0 to 1.",
        group="Ranking",
        metavar="PROBABILITY",
        min=0,
        max=1,
    )

    literal: bool = option(
        False, "Ignore dates and operators (+ - then) in the text.", group="Queries"
    )

    def __post_init__(self) -> None:
        if not _is_number(self.min_confidence) or not 0 <= self.min_confidence <= 1:
            raise UsageError(
                f"min_confidence must be between 0 and 1, not {self.min_confidence!r:.60}"
            )
        for name in ("group_files", "rerank", "keep_duplicates", "literal"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise UsageError(f"{name} must be True or False, not {getattr(self, name)!r:.60}")
        if not isinstance(self.filters, Filters | None):
            raise UsageError(f"filters must be Filters(...), not {self.filters!r:.60}")
        object.__setattr__(self, "filters", self.filters or Filters())
        object.__setattr__(self, "modalities", parse_modalities(self.modalities))
        if not isinstance(self.shortlist, SupportsIndex) or self.shortlist.__index__() < 1:
            raise UsageError(f"shortlist must be 1 clip or more, not {self.shortlist}")

    def replace(self, changes: Mapping[str, Any]) -> SearchOptions:
        """Return a copy with changed options and filters, by name.

        >>> SearchOptions().replace({"shortlist": 5, "path": "*.mov"}).filters.path
        '*.mov'
        """
        if not changes:
            return self
        option_names = {spec.name for spec in dataclasses.fields(SearchOptions)}
        filter_names = {spec.name for spec in dataclasses.fields(Filters)}
        unknown = sorted(set(changes) - option_names - filter_names)
        if unknown:
            names = ["k", "judge", "options", *sorted(option_names | filter_names)]
            fault = list_unknown(
                unknown, names, lambda name: "did you mean 'k'?" if name in COUNTS else ""
            )
            raise UsageError(f"unknown search option {fault}")
        options = dataclasses.replace(
            self, **{name: value for name, value in changes.items() if name in option_names}
        )
        filters = {name: value for name, value in changes.items() if name in filter_names}
        return dataclasses.replace(options, filters=dataclasses.replace(options.filters, **filters))

    def within_dates(self, dates: DateRange | None) -> SearchOptions:
        """Return a copy that is limited to recordings of these dates."""
        if dates is None:
            return self
        filters = self.filters
        after, before = filters.times
        after = max((time for time in (after, dates.after) if time is not None), default=None)
        before = min((time for time in (before, dates.before) if time is not None), default=None)
        if after is not None and before is not None and after >= before:
            raise UsageError(
                f"{dates.phrase!r} in the text is outside 'after' and 'before'; remove one of "
                "them, or ignore dates in the text with the option 'literal'"
            )
        return dataclasses.replace(
            self, filters=dataclasses.replace(filters, after=after, before=before)
        )

    @property
    def has_transcripts(self) -> bool:
        """True if speech, on-screen text or descriptions are searched."""
        return self.modalities != ("visual",)

    def shortlist_size(self, k: int) -> int:
        """Return the number of clips to rank for ``k`` hits."""
        # A clip overlaps with one neighbour at most, so at least half of the clips remain.
        return max(k if self.keep_duplicates else 2 * k, min(self.shortlist, MAX_RESULTS))


class SearchChanges(TypedDict, total=False):
    """Keyword arguments: the fields of :class:`SearchOptions` and :class:`Filters`."""

    filters: Filters
    group_files: bool
    shortlist: int
    rerank: bool
    modalities: str | Sequence[str]
    keep_duplicates: bool
    min_confidence: float
    literal: bool
    path: str | None
    after: float | str | date | None
    before: float | str | date | None
    near: str | tuple[float, float] | Place | None
    within: float | str | None
    camera: str | None
    min_duration: float | None
    max_duration: float | None
    tags: str | Sequence[str]


def check_count(k: int) -> int:
    """Return ``k``; raise ``UsageError`` if it is not a valid number of results."""
    if not isinstance(k, SupportsIndex) or not 1 <= k.__index__() <= MAX_RESULTS:
        raise UsageError(f"k must be a whole number between 1 and {MAX_RESULTS}, not {k!r:.60}")
    return k
