"""Search options: the settings that the engine, the command line and the service share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

from eaglenet.core.errors import UsageError
from eaglenet.search.filters import Filters, parse_date

if TYPE_CHECKING:
    from eaglenet.core.types import Modality

MAX_RESULTS = 10_000
MODALITIES: tuple[Modality, ...] = ("visual", "speech", "screen-text")


def parse_modalities(names: str | Sequence[str]) -> tuple[Modality, ...]:
    """Read modalities, as a sequence or as text with commas between them.

    >>> parse_modalities("screen-text, speech")
    ('speech', 'screen-text')
    """
    parts = names.split(",") if isinstance(names, str) else names
    selected = {str(name).strip().lower() for name in parts}
    if not selected or not selected <= set(MODALITIES):
        raise UsageError(
            f"cannot search in {names!r:.60}; use one or more of: {', '.join(MODALITIES)}"
        )
    return tuple(modality for modality in MODALITIES if modality in selected)


@dataclass(frozen=True)
class SearchOptions:
    """How to search. Queries with equal options can be searched together.

    filters: clips that may be hits.
    group_files: return one hit per file; its other clips are in ``metadata["more"]``.
    shortlist: clips that are ranked with the exact score; raised to the number of hits if needed.
    rerank: if False, rank by the cosines of the shortlist alone.
    modalities: what of a video to search; see :func:`parse_modalities`.
    keep_duplicates: if False, a moment in two overlapping clips is returned once, and so is a file
        of which there are near copies; the paths of the others are in ``metadata["copies"]``.
    """

    filters: Filters = field(default_factory=Filters)
    group_files: bool = field(
        default=False,
        metadata={"option": "--group", "group": "Ranking", "help": "Show one result per file."},
    )
    shortlist: int = field(
        default=100,
        metadata={
            "group": "Ranking",
            "min": 1,
            "help": "Number of clips to rank with the exact score.",
        },
    )
    rerank: bool = True
    modalities: tuple[Modality, ...] = field(
        default=MODALITIES,
        metadata={
            "option": "--in",
            "metavar": "MODALITY",
            "parse": parse_modalities,
            "help": "Search in visual, speech (with subtitles) or screen-text; separate several by "
            "commas. Default: all.",
        },
    )
    keep_duplicates: bool = field(
        default=False,
        metadata={
            "group": "Ranking",
            "help": "Also show repeated moments and near copies of files.",
        },
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", self.filters or Filters())
        object.__setattr__(self, "modalities", parse_modalities(self.modalities))
        if not isinstance(self.shortlist, SupportsIndex) or self.shortlist.__index__() < 1:
            raise UsageError(f"shortlist must be 1 clip or more, not {self.shortlist}")

    def replace(self, changes: Mapping[str, Any]) -> SearchOptions:
        """Return a copy with other values, by name; filters by their own names.

        >>> SearchOptions().replace({"shortlist": 5, "path": "*.mov"}).filters.path
        '*.mov'
        """
        if not changes:
            return self
        own = {spec.name for spec in dataclasses.fields(SearchOptions)}
        names = {spec.name for spec in dataclasses.fields(Filters)}
        unknown = sorted(set(changes) - own - names)
        if unknown:
            raise UsageError(
                f"unknown search option {', '.join(unknown)}; known: "
                f"{', '.join(sorted(own | names))}"
            )
        options = dataclasses.replace(
            self, **{name: value for name, value in changes.items() if name in own}
        )
        filters = {name: _filter_value(name, changes[name]) for name in changes if name in names}
        return dataclasses.replace(options, filters=dataclasses.replace(options.filters, **filters))

    @property
    def has_transcripts(self) -> bool:
        """Whether speech or on-screen text is searched."""
        return self.modalities != ("visual",)

    def shortlist_size(self, k: int) -> int:
        """Number of clips to rank for ``k`` hits."""
        # A clip overlaps with one neighbour at most, so at least half of the clips remain.
        return max(k if self.keep_duplicates else 2 * k, min(self.shortlist, MAX_RESULTS))


def check_count(k: int) -> int:
    """Return ``k`` if it is a possible number of results."""
    if not isinstance(k, SupportsIndex) or not 1 <= k.__index__() <= MAX_RESULTS:
        raise UsageError(f"k must be a whole number between 1 and {MAX_RESULTS}, not {k!r:.60}")
    return k


def _filter_value(name: str, value: Any) -> Any:
    """Value of a filter from what people write."""
    if name in ("after", "before") and isinstance(value, str):
        return parse_date(value)
    if name == "tags":
        return (value,) if isinstance(value, str) else tuple(value)
    return value
