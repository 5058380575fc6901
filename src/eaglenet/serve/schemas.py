"""Requests and responses of the HTTP API."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    WithJsonSchema,
)

from eaglenet.core.errors import UsageError
from eaglenet.search.grammar import DEFAULT_WEIGHT, MAX_PARTS, MAX_STEPS, MAX_WEIGHT, MAX_WITHIN
from eaglenet.search.hit import Label, Modality
from eaglenet.search.options import MODALITIES, Filters, SearchOptions
from eaglenet.search.places import find_place
from eaglenet.search.query import MAX_CHARACTERS
from eaglenet.serve.library import Order
from eaglenet.serve.problems import Problem
from eaglenet.serve.settings import (
    MAX_FILTER_CHARACTERS,
    MAX_NEGATIVES,
    MAX_QUERIES,
    MAX_QUERY_CHARACTERS,
    MAX_RESULTS,
    MAX_TAGS,
    SHORTLIST,
)
from eaglenet.store.records import TranscriptKind

# At least one character that is neither a control character nor a space. Spaces are listed because
# dialects of regular expressions differ in what counts as one; the pattern is anchored because some
# tools anchor every pattern that is not.
VISIBLE = r"^[\s\S]*[^\x00-\x20\x7f-\xa0][\s\S]*$"
QueryText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARACTERS, pattern=VISIBLE)
]
COORDINATES = re.compile(r"\s*[+-]?[\d.]+\s*,\s*[+-]?[\d.]+\s*", re.ASCII)
FilterText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_FILTER_CHARACTERS)]
Distance = Annotated[
    str,
    StringConstraints(
        pattern=r"^(0\.[0-9]{0,2}[1-9]|[1-9][0-9]{0,5}(\.[0-9]{1,3})?)(km|m|mi)?$", max_length=20
    ),
]
Score = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
ExportFormat = Literal["csv", "edl", "fcpxml", "xml", "otio", "m3u8", "srt"]
MAX_EXPORTED = 200
"""Maximum moments per timeline."""
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


def _iso_date(value: object) -> object:
    """Accept ISO dates only; pydantic would read numbers as seconds since 1970."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d{2}-\d{2}", value, re.ASCII):
        raise ValueError("write a date like 2026-05-31 or 2026-05-31T18:30")
    return value


def _json_number(value: object) -> object:
    """Accept JSON numbers only: 24.0, but not "24" or true."""
    if isinstance(value, str | bool):
        raise ValueError("a number is expected")
    return value


Date = Annotated[date | datetime, BeforeValidator(_iso_date)]
CLIP_ID = r"^[0-9a-f]{4,16}-[0-9]{1,9}$"
"""A clip id or a prefix of it, as the command line prints it."""


class SearchParameters(BaseModel):
    """Number of results, and filters that all must match."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(24, ge=1, le=MAX_RESULTS, description="Number of results")
    path: FilterText | None = Field(
        None, description="Only paths that match, e.g. '*.mov' or a part of the path"
    )
    after: Date | None = Field(
        None,
        description="Only recordings since this date; the modification time counts for files "
        "without a recording date",
    )
    before: Date | None = Field(None, description="Only recordings before this date")
    near: FilterText | None = Field(
        None,
        description="Only recordings near '48.1,11.6' (degrees north and east), or near a town if "
        "the service has a table of places",
    )
    within: Distance | None = Field(
        None, description="Distance for 'near': 5km, 800m or 3mi; 10 km by default"
    )
    camera: FilterText | None = Field(None, description="Part of the make and model of the camera")
    min_duration: Seconds | None = Field(None, description="Duration of the file in seconds")
    max_duration: Seconds | None = Field(None, description="Duration of the file in seconds")
    tag: list[FilterText] = Field(
        default_factory=list, max_length=MAX_TAGS, description="Only files with all these tags"
    )
    group: bool = Field(False, description="One result per file; its other clips are in 'more'")
    keep_duplicates: bool = Field(
        False, description="Also return repeated moments and near copies of files; see 'copies'"
    )

    def options(self) -> SearchOptions:
        """Return the options of the engine; reads the table of places if ``near`` is a name."""
        try:
            near = None if self.near is None else find_place(self.near)
        except UsageError as error:
            # The schema allows every text, and one that names no place is valid but not found.
            is_pair = COORDINATES.fullmatch(self.near or "")
            hint = "degrees north and east need no table: near=48.1,11.6"
            raise Problem(422 if is_pair else 404, str(error), hint=hint) from None
        filters = Filters(
            path=self.path,
            after=self.after,
            before=self.before,
            min_duration=self.min_duration,
            max_duration=self.max_duration,
            tags=tuple(self.tag),
            near=near,
            within=self.within,
            camera=self.camera,
        )
        return SearchOptions(filters, self.group, SHORTLIST, keep_duplicates=self.keep_duplicates)


class TextParameters(SearchParameters):
    negative: list[QueryText] = Field(
        default_factory=list, max_length=MAX_NEGATIVES, description="Texts that rank clips lower"
    )
    modalities: list[Modality] = Field(
        default=list(MODALITIES),
        alias="in",
        min_length=1,
        max_length=len(MODALITIES),
        description="Modalities to search; by default all, in one ranking",
    )
    literal: bool = Field(False, description="Ignore dates and operators in texts")
    min_confidence: float = Field(
        0.0, ge=0, le=1, description="Only results that are right with at least this probability"
    )

    def options(self) -> SearchOptions:
        return replace(
            super().options(),
            modalities=tuple(self.modalities),
            literal=self.literal,
            min_confidence=self.min_confidence,
        )


class QueryParameters(TextParameters):
    q: QueryText = Field(description="What to find", examples=["a man drives a red car"])


def _object_schema(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object; all but ``weight`` and ``within`` are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties.keys() - {"weight", "within"}),
        "additionalProperties": False,
    }


def _query_schema() -> dict[str, Any]:
    """Return the JSON schema of what :func:`eaglenet.search.grammar.from_json` reads."""
    sources = (
        {"text": {"type": "string", "pattern": VISIBLE, "maxLength": MAX_CHARACTERS}},
        {"clip_id": {"type": "string", "minLength": 1, "maxLength": 40}},
    )
    positive = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WEIGHT}
    negative = {"type": "number", "exclusiveMaximum": 0, "minimum": -MAX_WEIGHT}
    weight = {"anyOf": [positive, negative], "default": DEFAULT_WEIGHT}
    part = {"anyOf": [_object_schema(**source, weight=weight) for source in sources]}
    parts = {"type": "array", "items": part, "minItems": 1, "maxItems": MAX_PARTS}
    plain = [*(_object_schema(**source) for source in sources), _object_schema(parts=parts)]
    steps = {"type": "array", "items": {"anyOf": plain}, "minItems": 2, "maxItems": MAX_STEPS}
    within = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_WITHIN}
    return {"anyOf": [*plain, _object_schema(steps=steps, within=within)]}


QueryObject = Annotated[dict[str, Any], WithJsonSchema(_query_schema())]


class UploadParameters(SearchParameters):
    q: QueryText | None = Field(
        None,
        description="Combines the file, named clip:upload, with other parts",
        examples=['clip:upload + "at night" - "people"'],
    )


class SeveralQueries(TextParameters):
    """JSON body with several queries; numbers and booleans in strings are refused."""

    queries: list[QueryText | QueryObject] = Field(
        min_length=1,
        max_length=MAX_QUERIES,
        description="Texts, or objects with one of 'text', 'clip_id', 'parts' and 'steps'",
        examples=[["a dog", {"parts": [{"text": "a dog"}, {"text": "fruit", "weight": -0.5}]}]],
    )
    k: Annotated[int, BeforeValidator(_json_number)] = Field(
        24, ge=1, le=MAX_RESULTS, description="Number of results"
    )
    min_duration: Annotated[Seconds, Strict()] | None = Field(
        None, description="Duration of the file in seconds"
    )
    max_duration: Annotated[Seconds, Strict()] | None = Field(
        None, description="Duration of the file in seconds"
    )
    group: Annotated[bool, Strict()] = Field(False, description="One result per file")
    keep_duplicates: Annotated[bool, Strict()] = Field(
        False, description="Also return repeated moments and near copies of files"
    )
    literal: Annotated[bool, Strict()] = Field(
        False, description="Ignore dates and operators in texts"
    )
    min_confidence: Annotated[float, Strict()] = Field(
        0.0, ge=0, le=1, description="Only results that are right with at least this probability"
    )


class FrameParameters(BaseModel):
    """Size of a frame."""

    model_config = ConfigDict(extra="forbid")

    side: Literal["640", "1600"] = Field(
        "640", description="Longer side in pixels; never larger than in the file"
    )


class StreamParameters(BaseModel):
    """Start of a converted stream."""

    model_config = ConfigDict(extra="forbid")

    start: Seconds = Field(
        0.0, description="Second of the file to begin at; the stream may begin slightly earlier"
    )


class MomentBody(BaseModel):
    """Span of a hit, in seconds of the file."""

    start: float
    end: float
    best: float = Field(description="Time of the frame that matches best")


class TranscriptBody(BaseModel):
    """Transcript line that matches the query."""

    text: str
    start: float = Field(description="Seconds in the file")
    end: float
    kind: TranscriptKind = Field(description="Source of the line")
    language: str = Field(description="Language tag of its source; may be empty")
    highlights: list[tuple[int, int]] = Field(
        description="Character ranges of the matches in 'text', end not included; "
        "characters are Unicode code points"
    )
    by_meaning: bool = Field(
        description="True if it matches by meaning; 'text' may then be several lines"
    )


class StepBody(BaseModel):
    """One step of a temporal query, in seconds of the file."""

    query: str
    clip_id: str
    start: float
    end: float
    best: float


class RecordingBody(BaseModel):
    """Recording metadata of a file, and its damage."""

    recorded: float | None = Field(default=None, description="Seconds since 1970; null if unknown")
    latitude: float | None = Field(default=None, description="Degrees north; null if unknown")
    longitude: float | None = Field(default=None, description="Degrees east; null if unknown")
    camera: str = Field(default="", description="Make and model; empty if unknown")
    damage: str = Field(
        default="", description="Parts that cannot be read; empty if the file is intact"
    )


class HitBody(RecordingBody):
    rank: int
    clip_id: str
    name: str = Field(description="Name of the file")
    path: str
    score: float = Field(description="Orders the hits of one query; not a probability")
    coarse_score: float = Field(description="Cosine that put the clip on the shortlist")
    judge_score: int | None = Field(
        default=None, description="Rating of the judge, 0 to 10; null if it did not rate the hit"
    )
    confidence: float | None = Field(
        default=None, description="Probability that the hit is right; null if not measured"
    )
    match: Label = Field(default="not measured", description="The confidence as a label")
    moment: MomentBody
    duration: float = Field(description="Seconds of the whole file; 0 for an image")
    from_keyframes: bool = Field(
        default=False, description="True if the clip was indexed from keyframes only so far"
    )
    tags: list[str]
    more: list[str] = Field(description="With 'group': ids of the other clips of the file")
    copies: list[str] = Field(description="Paths of near copies that this hit stands for")
    matched_in: list[Modality] = Field(description="Modalities that matched, best first")
    transcript: list[TranscriptBody] = Field(description="Matching transcript lines, best first")
    steps: list[StepBody] = Field(
        default_factory=list, description="Moments of the steps of a temporal query"
    )
    video: str = Field(description="Path of the file in this API")
    thumbnail: str


class NegationBody(BaseModel):
    """Advice about a text that says what not to show, such as ``a street without cars``."""

    reason: str
    query: str = Field(
        description="Query to send instead; empty if nothing is left to search for, or the text "
        "has a date, which only 'text' keeps"
    )
    text: str = Field(description="What is left to search for; may be empty")
    negatives: list[str] = Field(description="What the text excludes, for 'negative'")


class HitsBody(BaseModel):
    query: str
    hits: list[HitBody]
    note: str = Field(
        default="",
        description="Why there are no hits, why the judge did not rate all of them, why they have "
        "no confidence, that the text is the name of a file that is not indexed, or is longer than "
        "the model reads",
    )
    notice: str = Field(default="", description="Interpretation of a date in the text")
    language_hint: str = Field(
        default="", description="Advice if the text is in a language that the model does not know"
    )
    negation: NegationBody | None = Field(
        default=None, description="Advice if the text says what not to show; else null"
    )


ExactCount = Annotated[
    int, Field(description="Clips ranked exactly; fewer than usual under heavy load")
]


MissingShards = Annotated[
    list[str],
    Field(default_factory=list, description="Shards that did not answer; empty on one machine"),
]


class SearchBody(HitsBody):
    shortlist: ExactCount
    missing: MissingShards
    milliseconds: float


class SeveralBody(BaseModel):
    results: list[HitsBody]
    shortlist: ExactCount
    missing: MissingShards
    milliseconds: float


class ClipBody(RecordingBody):
    clip_id: str
    name: str
    path: str
    start: float
    end: float
    duration: float
    width: int
    height: int
    modified: float = Field(description="Modification time of the file, seconds since 1970")
    tags: list[str]
    video: str
    thumbnail: str


class SelectedMoment(BaseModel):
    """Moment of an earlier response."""

    model_config = ConfigDict(extra="forbid", strict=True)

    clip_id: str = Field(pattern=CLIP_ID)
    start: Seconds
    end: Seconds
    score: Score = 0.0
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None


class ExportParameters(BaseModel):
    """Moments to export as a timeline, in this order."""

    model_config = ConfigDict(extra="forbid", strict=True)

    moments: list[SelectedMoment] = Field(min_length=1, max_length=MAX_EXPORTED)
    format: ExportFormat
    title: FilterText = "moments"


class InfoBody(BaseModel):
    clips: int
    keyframe_clips: int = Field(description="Clips indexed from keyframes only so far")
    files: int
    hours: float
    transcript_lines: int
    model: str
    method: str
    index: str = Field(description="Method of making shortlists: exact scan or codes")
    tags: list[str]
    version: str = Field(description="Version of eaglenet")
    languages: str = Field(description="Languages of the model; empty if unknown")
    confidence_measured: bool = Field(description="True if hits of texts have a confidence")
    uploads: bool = Field(description="True if images and videos can be uploaded")


class FilesParameters(BaseModel):
    """Folder or name of the files to list, and their order."""

    model_config = ConfigDict(extra="forbid")

    folder: str = Field(
        "", max_length=4 * MAX_FILTER_CHARACTERS, description="Folder to list; '' is the top"
    )
    name: str = Field(
        "",
        max_length=MAX_FILTER_CHARACTERS,
        description="Words that the path must contain; searches all folders and lists none",
    )
    order: Order = "newest"
    first: int = Field(0, ge=0, le=10**9, description="Files to skip")
    k: int = Field(24, ge=1, le=MAX_RESULTS, description="Number of files")


class FolderBody(BaseModel):
    name: str
    folder: str = Field(description="Value of the parameter 'folder' that lists it")
    files: int = Field(description="Number of files in it and below")


class FileBody(RecordingBody):
    name: str
    path: str
    folder: str
    duration: float
    width: int
    height: int
    modified: float = Field(description="Seconds since 1970")
    tags: list[str]
    clips: int
    clip_id: str = Field(description="Id of its first clip")
    video: str
    thumbnail: str


class FilesBody(BaseModel):
    folder: str
    folders: list[FolderBody] = Field(description="Direct subfolders")
    files: list[FileBody] = Field(description="Files in this folder and below")
    total: int = Field(description="Number of files in this folder and below")


class SpanBody(BaseModel):
    clip_id: str
    start: float
    end: float
    thumbnail: str


class TimelineBody(BaseModel):
    name: str
    duration: float
    clips: list[SpanBody] = Field(
        description="In order of time; an even sample if there are more than 1,000"
    )


class HealthBody(BaseModel):
    status: str
