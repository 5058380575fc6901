"""Routes for browsing: folders, files, and the clips of one file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from eaglenet.search.hits import recording_of
from eaglenet.search.retrieval import StoreView
from eaglenet.serve.api import COMMON, ClipId, find_clip, shown_path
from eaglenet.serve.library import Library, Order, Shelf, sample_clips
from eaglenet.serve.problems import error_responses
from eaglenet.serve.schemas import RecordingBody
from eaglenet.serve.settings import MAX_FILTER_CHARACTERS, MAX_RESULTS
from eaglenet.serve.state import State, state_of

MAX_FOLDERS = 500
MAX_ON_TIMELINE = 1000

router = APIRouter(prefix="/api", tags=["clips"], responses=error_responses(*COMMON))


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
    folder: str = Field(description="Value of 'folder' that lists it")
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
        description="In order of time; an even sample if there are very many"
    )


@router.get("/files")
def files(request: Request, parameters: Annotated[FilesParameters, Query()]) -> FilesBody:
    """List the indexed files of a folder and its subfolders, or find files by name."""
    state = state_of(request)
    prefix = parameters.folder.rstrip("/") + "/" if parameters.folder else ""

    def read(view: StoreView) -> FilesBody:
        library = state.libraries.of(view)
        if parameters.name:
            shelf = Shelf([], library.find_by_name(parameters.name, parameters.order))
        else:
            shelf = library.shelf(parameters.folder, parameters.order)
        return FilesBody(
            folder=parameters.folder,
            folders=[
                FolderBody(name=name, folder=prefix + name, files=count)
                for name, count in shelf.folders[:MAX_FOLDERS]
            ],
            files=_file_bodies(
                state, library, shelf.files[parameters.first : parameters.first + parameters.k]
            ),
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
            **recording_of(table, number),
            tags=table.tags[number],
            clips=int(library.clips[number]),
            clip_id=clip.id,
            video=f"/api/clips/{clip.id}/video",
            thumbnail=f"/api/clips/{clip.id}/thumbnail",
        )
        for number, clip in zip(numbers, clips, strict=True)
    ]


@router.get("/clips/{clip_id}/timeline", responses=error_responses(404))
def timeline(request: Request, clip_id: ClipId) -> TimelineBody:
    """List all clips of the file that contains a clip."""
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
