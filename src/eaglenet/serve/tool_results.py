"""Results of the tools for assistants, whose schemas the assistants see."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from eaglenet.core.text import replace_invisible
from eaglenet.search.hit import Label, Modality
from eaglenet.store.records import TranscriptKind

MAX_TEXT = 500
"""Characters of a transcript line or a path that are returned."""


class MomentBody(BaseModel):
    """Moment; times are seconds of the file."""

    clip_id: str
    path: str
    start: float
    end: float
    best: float = Field(description="Time of the frame that matches best")
    duration: float = Field(description="Duration of the whole file; 0 for an image")
    score: float = Field(description="Orders the moments of one search; not a probability")
    match: Label = Field(description="The confidence as a label")
    confidence: float | None = Field(default=None, description="Probability that it is right")
    matched_in: list[Modality]
    transcript: list[str] = Field(description="Matching transcript lines, best first")
    steps: list[str] = Field(
        default_factory=list, description="Moments of the steps of a temporal query"
    )
    recorded: str = Field(default="", description="Time of the recording; empty if unknown")
    place: str = Field(default="", description="Degrees north and east, as near takes them")
    camera: str = ""


class MomentsBody(BaseModel):
    moments: list[MomentBody]
    note: str = ""


class LineBody(BaseModel):
    start: float
    end: float
    kind: TranscriptKind
    language: str
    text: str


class TranscriptBody(BaseModel):
    path: str
    lines: list[LineBody]
    next_start: float | None = Field(
        default=None, description="If there are more lines: pass this as start to continue"
    )
    note: str = ""


class FileBody(BaseModel):
    path: str
    clip_id: str = Field(description="Id of its first clip")
    duration: float
    modified: float = Field(description="Seconds since 1970")
    tags: list[str]


class FilesBody(BaseModel):
    files: list[FileBody]
    folders: list[str] = Field(description="Direct subfolders")
    total: int = Field(description="Number of files in this folder and below")


class SavedBody(BaseModel):
    path: str
    seconds: float
    bytes: int


class StatusBody(BaseModel):
    clips: int
    files: int
    hours: float
    transcript_lines: int
    tags: list[str]
    model: str
    confidence_measured: bool
    can_save_clips: bool
    unreachable_shards: list[str]
    version: str


def visible_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return text as one line without invalid or control characters, shortened to ``limit``.

    >>> visible_text("a\\x1b[31m\\ud800\\n" + 999 * "b", 6)
    'a?[31m...'
    """
    line = replace_invisible(text, lambda _: "?")
    return line if len(line) <= limit else f"{line[:limit]}..."


def local_time(seconds: float | None) -> str:
    """Return seconds since 1970 as a local time with its zone; empty for None."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="minutes")


def place_text(latitude: float | None, longitude: float | None) -> str:
    return "" if latitude is None or longitude is None else f"{latitude:.5f},{longitude:.5f}"
