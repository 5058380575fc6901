"""What goes over the wire, as the OpenAPI document says it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, StringConstraints

from eaglenet.core.hits import Modality, TranscriptKind
from eaglenet.search.confidence import Label
from eaglenet.search.options import MODALITIES, Filters, SearchOptions
from eaglenet.serve.settings import (
    MAX_FILTER_CHARACTERS,
    MAX_NEGATIVES,
    MAX_QUERIES,
    MAX_QUERY_CHARACTERS,
    MAX_RESULTS,
    MAX_TAGS,
    SHORTLIST,
)

# Control characters and spaces, spelled out because dialects of patterns do not agree on what else
# is a space. Queries of other invisible signs find nothing.
Sentence = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=MAX_QUERY_CHARACTERS, pattern=r"[^\x00-\x20\x7f-\xa0]"
    ),
]
Word = Annotated[str, StringConstraints(min_length=1, max_length=MAX_FILTER_CHARACTERS)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


def _iso_date(value: object) -> object:
    """Numbers would be read as seconds since 1970, which the document does not offer."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d{2}-\d{2}", value, re.ASCII):
        raise ValueError("write a date like 2026-05-31 or 2026-05-31T18:30")
    return value


def _json_number(value: object) -> object:
    """In JSON 24.0 is a whole number, but "24" and true are none."""
    if isinstance(value, str | bool):
        raise ValueError("a number is expected")
    return value


Date = Annotated[date | datetime, BeforeValidator(_iso_date)]
CLIP_ID = r"^[0-9a-f]{16}-[0-9]{1,9}$"


class SearchParameters(BaseModel):
    """Number of results and filters; all given conditions must hold."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(24, ge=1, le=MAX_RESULTS, description="Number of results")
    path: Word | None = Field(
        None, description="Only paths that match, e.g. '*.mov' or a part of the path"
    )
    after: Date | None = Field(None, description="Only files changed since")
    before: Date | None = Field(None, description="Only files changed before")
    min_duration: Seconds | None = Field(None, description="Seconds, of the file")
    max_duration: Seconds | None = Field(None, description="Seconds, of the file")
    tag: list[Word] = Field(
        default_factory=list, max_length=MAX_TAGS, description="Only files with all these tags"
    )
    group: bool = Field(False, description="One result per file; its other clips are in 'more'")
    keep_duplicates: bool = Field(
        False, description="Also return repeated moments and near copies of files; see 'copies'"
    )

    def options(self) -> SearchOptions:
        filters = Filters(
            path=self.path,
            after=timestamp(self.after),
            before=timestamp(self.before),
            min_duration=self.min_duration,
            max_duration=self.max_duration,
            tags=tuple(self.tag),
        )
        return SearchOptions(filters, self.group, SHORTLIST, keep_duplicates=self.keep_duplicates)


class TextParameters(SearchParameters):
    negative: list[Sentence] = Field(
        default_factory=list, max_length=MAX_NEGATIVES, description="Texts that rank clips lower"
    )
    modalities: list[Modality] = Field(
        default=list(MODALITIES),
        alias="in",
        min_length=1,
        max_length=len(MODALITIES),
        description="Modalities to search; by default all, in one ranking",
    )

    def options(self) -> SearchOptions:
        return replace(super().options(), modalities=tuple(self.modalities))


class QueryParameters(TextParameters):
    q: Sentence = Field(description="What should be seen", examples=["a man drives a red car"])


class SeveralQueries(TextParameters):
    """JSON has numbers and truth values of its own, so text is not taken for them."""

    queries: list[Sentence] = Field(min_length=1, max_length=MAX_QUERIES)
    k: Annotated[int, BeforeValidator(_json_number)] = Field(
        24, ge=1, le=MAX_RESULTS, description="Number of results"
    )
    min_duration: Annotated[Seconds, Strict()] | None = Field(None, description="Seconds")
    max_duration: Annotated[Seconds, Strict()] | None = Field(None, description="Seconds")
    group: Annotated[bool, Strict()] = Field(False, description="One result per file")
    keep_duplicates: Annotated[bool, Strict()] = Field(
        False, description="Also return repeated moments and near copies of files"
    )


class StreamParameters(BaseModel):
    """From where on a file is played."""

    model_config = ConfigDict(extra="forbid")

    start: Seconds = Field(0.0, description="Second of the file to begin at, or a little before")


class MomentBody(BaseModel):
    """Seconds in the file."""

    start: float
    end: float
    best: float = Field(description="Time of the frame that fits best")


class TranscriptBody(BaseModel):
    """A transcript line that matches the query."""

    text: str
    start: float = Field(description="Seconds in the file")
    end: float
    kind: TranscriptKind = Field(description="Where it comes from")
    language: str = Field(description="As its source names it; empty where it does not")
    highlights: list[tuple[int, int]] = Field(
        description="First character, and the one after the last, of what was asked for in 'text'; "
        "characters are Unicode code points"
    )
    by_meaning: bool = Field(
        description="True if it means something similar in other words; 'text' may be several lines"
    )


class StepBody(BaseModel):
    """One step of a temporal query, in seconds of the file."""

    query: str
    clip_id: str
    start: float
    end: float
    best: float


class HitBody(BaseModel):
    rank: int
    clip_id: str
    name: str = Field(description="Name of the file")
    path: str
    score: float
    coarse_score: float = Field(description="Cosine that put the clip on the shortlist")
    confidence: float | None = Field(
        default=None, description="Probability that the hit is right; null if not measured"
    )
    match: Label = Field(default="not measured", description="The confidence in a word")
    moment: MomentBody
    duration: float = Field(description="Of the whole file, seconds; 0 for a photograph")
    tags: list[str]
    more: list[str] = Field(description="Where grouped: ids of the file's other clips")
    copies: list[str] = Field(description="Paths of near copies that are folded into this one")
    matched_in: list[Modality] = Field(description="Modalities that matched, best first")
    transcript: list[TranscriptBody] = Field(description="Matching transcript lines, best first")
    steps: list[StepBody] = Field(
        default_factory=list, description="Of a temporal query: the moment of each step"
    )
    video: str = Field(description="Address of the file, without host")
    thumbnail: str


class HitsBody(BaseModel):
    query: str
    hits: list[HitBody]
    note: str = Field(default="", description="Where filters leave no clip: which of them does")


ExactCount = Annotated[
    int, Field(description="Clips that were ranked exactly; fewer than usual under heavy load")
]


MissingParts = Annotated[
    list[str],
    Field(
        default_factory=list,
        description="Parts of the store that could not be asked; empty where there is one machine",
    ),
]


class SearchBody(HitsBody):
    shortlist: ExactCount
    missing: MissingParts
    milliseconds: float


class SeveralBody(BaseModel):
    results: list[HitsBody]
    shortlist: ExactCount
    missing: MissingParts
    milliseconds: float


class ClipBody(BaseModel):
    clip_id: str
    name: str
    path: str
    start: float
    end: float
    duration: float
    width: int
    height: int
    modified: float = Field(description="Of the file, seconds since 1970")
    tags: list[str]
    video: str
    thumbnail: str


class InfoBody(BaseModel):
    clips: int
    files: int
    hours: float
    lines: int = Field(description="That were said or are to be read")
    model: str
    method: str
    index: str = Field(description="How shortlists are made: exact scan or kind of index")
    tags: list[str]
    version: str = Field(description="Of eaglenet")
    languages: str = Field(description="That the model was trained on; empty if not known")
    uploads: bool = Field(description="Whether pictures and videos may be sent to search with")


class HealthBody(BaseModel):
    status: str


def timestamp(moment: date | datetime | None) -> float | None:
    """Seconds since 1970; local time unless a zone is named."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    try:
        return moment.timestamp()
    except (ValueError, OverflowError, OSError):
        # Local time is not defined in the years 1 and 9999; a few hours do not matter there.
        return moment.replace(tzinfo=UTC).timestamp()
