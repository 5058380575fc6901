"""How to search, as one value: what the engine, the command line and the service pass on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, get_args

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Part
from eaglenet.search.filters import Filters, parse_date
from eaglenet.search.query import clean_queries

MAX_RESULTS = 10_000
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class SearchOptions:
    """What queries must have in common to be answered together.

    filters: which clips may be found.
    negatives: phrases to keep away from; see ``TextQuery`` for the arithmetic.
    group_files: one hit a file; the others are in ``metadata["more"]``.
    shortlist: clips that are ranked with the exact score; at least as many as are asked for are.
    rerank: False ranks by the coarse vector alone.
    parts: of a video, to search in: pictures, speech, text; as text, with commas between them.
    fold: a moment is shown once although clips overlap, and of near copies of a file the best; the
        paths of the others are in ``metadata["copies"]``.
    """

    filters: Filters = field(default_factory=Filters)
    negatives: tuple[str, ...] = ()
    group_files: bool = False
    shortlist: int = 100
    rerank: bool = True
    parts: tuple[Part, ...] = PARTS
    fold: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", self.filters or Filters())
        object.__setattr__(self, "negatives", tuple(clean_queries(self.negatives)))
        object.__setattr__(self, "parts", parse_parts(self.parts))
        if not isinstance(self.shortlist, SupportsIndex) or self.shortlist.__index__() < 1:
            raise UsageError(
                f"shortlist must be 1 or more clips to rank exactly, not {self.shortlist}"
            )

    def changed(self, changes: Mapping[str, Any]) -> SearchOptions:
        """With other values by name; those of :class:`Filters` too, dates as text or seconds.

        >>> SearchOptions().changed({"shortlist": 5, "path": "*.mov"}).filters.path
        '*.mov'
        """
        if not changes:
            return self
        own = {spec.name for spec in dataclasses.fields(SearchOptions)}
        filtered = {spec.name for spec in dataclasses.fields(Filters)}
        unknown = sorted(set(changes) - own - filtered)
        if unknown:
            raise UsageError(
                f"search has no option {', '.join(unknown)}; it knows "
                f"{', '.join(sorted(own | filtered))}"
            )
        options = dataclasses.replace(
            self, **{name: value for name, value in changes.items() if name in own}
        )
        given = {name: _filter(name, changes[name]) for name in changes if name in filtered}
        return dataclasses.replace(options, filters=dataclasses.replace(options.filters, **given))

    @property
    def searches_words(self) -> bool:
        return self.parts != ("pictures",)

    def width(self, k: int) -> int:
        """Clips that are ranked for ``k`` results."""
        # A clip shares its moments with one neighbour at most, so half of them are left.
        return max(2 * k if self.fold else k, min(self.shortlist, MAX_RESULTS))


def parse_parts(parts: str | Sequence[str]) -> tuple[Part, ...]:
    """
    >>> parse_parts("text, speech")
    ('speech', 'text')
    """
    names = parts.split(",") if isinstance(parts, str) else parts
    wanted = {str(name).strip().lower() for name in names}
    if not wanted or not wanted <= set(PARTS):
        raise UsageError(
            f"search in {parts!r:.60} is not known; name one or more of: {', '.join(PARTS)}"
        )
    return tuple(part for part in PARTS if part in wanted)


def checked_count(k: int) -> int:
    """A number of results that can be asked for."""
    if not isinstance(k, SupportsIndex) or not 1 <= k.__index__() <= MAX_RESULTS:
        raise UsageError(f"k must be a whole number between 1 and {MAX_RESULTS}, not {k!r:.60}")
    return k


def _filter(name: str, value: Any) -> Any:
    """A filter's value from what a person writes."""
    if name in ("after", "before") and isinstance(value, str):
        return parse_date(value)
    if name == "tags":
        return (value,) if isinstance(value, str) else tuple(value)
    return value
