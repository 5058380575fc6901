"""The addresses for looking around: folders, files, and the clips of one file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from eaglenet.search.retrieval import StoreView
from eaglenet.serve.api import COMMON, ClipId, find_clip, shown_path
from eaglenet.serve.library import Library, Order, sample_clips
from eaglenet.serve.problems import documented
from eaglenet.serve.settings import MAX_FILTER_CHARACTERS, MAX_RESULTS
from eaglenet.serve.state import State, state_of

MAX_FOLDERS = 500
MAX_ON_TIMELINE = 1000

router = APIRouter(prefix="/api", tags=["clips"], responses=documented(*COMMON))


class FilesParameters(BaseModel):
    """Which files, in which order."""

    model_config = ConfigDict(extra="forbid")

    folder: str = Field("", max_length=4 * MAX_FILTER_CHARACTERS, description="All of them if ''")
    order: Order = "newest"
    first: int = Field(0, ge=0, le=10**9, description="Files to pass over")
    k: int = Field(24, ge=1, le=MAX_RESULTS, description="Number of files")


class FolderBody(BaseModel):
    name: str
    folder: str = Field(description="What to ask for to see it")
    files: int = Field(description="In it and below")


class FileBody(BaseModel):
    name: str
    path: str
    folder: str
    duration: float
    width: int
    height: int
    modified: float = Field(description="Seconds since 1970")
    tags: list[str]
    clips: int
    clip_id: str = Field(description="Of its first clip")
    video: str
    thumbnail: str


class FilesBody(BaseModel):
    folder: str
    folders: list[FolderBody] = Field(description="Right in this folder")
    files: list[FileBody] = Field(description="In this folder and below")
    total: int = Field(description="Files in this folder and below")


class SpanBody(BaseModel):
    clip_id: str
    start: float
    end: float
    thumbnail: str


class TimelineBody(BaseModel):
    name: str
    duration: float
    clips: list[SpanBody] = Field(description="In order of time; evenly picked from very many")


@router.get("/files")
def files(request: Request, asked: Annotated[FilesParameters, Query()]) -> FilesBody:
    """The indexed files of a folder, and the folders in it."""
    state = state_of(request)
    prefix = asked.folder.rstrip("/") + "/" if asked.folder else ""

    def read(view: StoreView) -> FilesBody:
        library = state.libraries.of(view)
        shelf = library.shelf(asked.folder, asked.order)
        return FilesBody(
            folder=asked.folder,
            folders=[
                FolderBody(name=name, folder=prefix + name, files=count)
                for name, count in shelf.folders[:MAX_FOLDERS]
            ],
            files=_file_bodies(state, library, shelf.files[asked.first : asked.first + asked.k]),
            total=len(shelf.files),
        )

    return state.engine.read(read)


def _file_bodies(state: State, library: Library, numbers: list[int]) -> list[FileBody]:
    table = library.view.files
    clips = library.view.snapshot.clips(library.first_row[numbers])
    return [
        FileBody(
            name=library.names[number],
            path=shown_path(state, table.paths[number][0]),
            folder=library.folders[number],
            duration=float(table.durations[number]),
            width=table.widths[number],
            height=table.heights[number],
            modified=float(table.modified[number]),
            tags=table.tags[number],
            clips=int(library.clips[number]),
            clip_id=clip.id,
            video=f"/api/clips/{clip.id}/video",
            thumbnail=f"/api/clips/{clip.id}/thumbnail",
        )
        for number, clip in zip(numbers, clips, strict=True)
    ]


@router.get("/clips/{clip_id}/timeline", responses=documented(404))
def timeline(request: Request, clip_id: ClipId) -> TimelineBody:
    """All clips of the file a clip is in."""
    engine = state_of(request).engine
    clip, files = find_clip(engine, clip_id)
    clips = engine.read(lambda view: view.snapshot.clips_of_content(clip.content))
    return TimelineBody(
        name=files.paths[0][0].rsplit("/", 1)[-1],
        duration=float(files.durations[0]),
        clips=[
            SpanBody(
                clip_id=each.id,
                start=each.start,
                end=each.end,
                thumbnail=f"/api/clips/{each.id}/thumbnail",
            )
            for each in sample_clips(clips, MAX_ON_TIMELINE)
        ],
    )
