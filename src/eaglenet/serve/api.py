"""The addresses under ``/api``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from eaglenet.core.errors import UsageError
from eaglenet.core.hits import Hit
from eaglenet.encoders.catalogue import CARDS
from eaglenet.search.confidence import label
from eaglenet.search.engine import Engine
from eaglenet.search.grammar import AnyQuery, parse
from eaglenet.search.query import Query as SearchQuery
from eaglenet.serve.batching import Found
from eaglenet.serve.library import path_below_roots
from eaglenet.serve.media import video_response
from eaglenet.serve.problems import Problem, documented
from eaglenet.serve.schemas import (
    CLIP_ID,
    ClipBody,
    HitBody,
    HitsBody,
    InfoBody,
    MomentBody,
    QueryParameters,
    SearchBody,
    SearchParameters,
    SeveralBody,
    SeveralQueries,
    StepBody,
    StreamParameters,
    TranscriptBody,
)
from eaglenet.serve.state import State, state_of
from eaglenet.store.records import Clip, FileTable
from eaglenet.version import __version__

ClipId = Annotated[str, PathParameter(pattern=CLIP_ID, description="From a search result")]
COMMON = (400, 401, 403, 421, 422, 429, 431, 500, 503, 504)

router = APIRouter(prefix="/api", responses=documented(*COMMON))


@router.get("/search", tags=["search"], operation_id="search")
async def search(request: Request, asked: Annotated[QueryParameters, Query()]) -> SearchBody:
    """The moments that fit a sentence best."""
    begun = time.perf_counter()
    state = state_of(request)
    results, shortlist = await _search(state, [asked.q], asked.negative, asked)
    return SearchBody(
        **dict(results[0]),
        shortlist=shortlist,
        missing=list(state.engine.missing),
        milliseconds=since(begun),
    )


@router.post(
    "/search", tags=["search"], operation_id="search_several", responses=documented(408, 413)
)
async def search_several(request: Request, asked: SeveralQueries) -> SeveralBody:
    """The same for several sentences at once."""
    begun = time.perf_counter()
    state = state_of(request)
    results, shortlist = await _search(state, asked.queries, asked.negative, asked)
    missing = list(state.engine.missing)
    return SeveralBody(
        results=results, shortlist=shortlist, missing=missing, milliseconds=since(begun)
    )


@router.get("/similar/{clip_id}", tags=["search"], responses=documented(404))
async def similar(
    request: Request, clip_id: ClipId, asked: Annotated[SearchParameters, Query()]
) -> SearchBody:
    """Moments that look like a clip."""
    begun = time.perf_counter()
    state = state_of(request)
    find_clip(state.engine, clip_id)
    options = asked.options()
    query = SearchQuery(clip_id=clip_id)
    find = partial(state.engine.search, query, asked.k, options=options)
    hits = await state.batcher.call(find)
    bodies = [hit_body(state, hit) for hit in hits]
    return SearchBody(
        query=clip_id,
        hits=bodies,
        shortlist=options.shortlist_size(asked.k),
        missing=list(state.engine.missing),
        milliseconds=since(begun),
    )


# Functions without async run in threads: the store may have to be read again for them.
@router.get("/clips/{clip_id}", tags=["clips"], responses=documented(404))
def clip(request: Request, clip_id: ClipId) -> ClipBody:
    """What the store knows of a clip."""
    state = state_of(request)
    clip, files = find_clip(state.engine, clip_id)
    path = files.paths[0][0]
    return ClipBody(
        clip_id=clip_id,
        name=Path(path).name,
        path=shown_path(state, path),
        start=clip.start,
        end=clip.end,
        duration=float(files.durations[0]),
        width=files.widths[0],
        height=files.heights[0],
        modified=float(files.modified[0]),
        tags=files.tags[0],
        video=f"/api/clips/{clip_id}/video",
        thumbnail=f"/api/clips/{clip_id}/thumbnail",
    )


@router.get(
    "/clips/{clip_id}/thumbnail",
    tags=["clips"],
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}},
        **documented(404),
    },
)
def thumbnail(request: Request, clip_id: ClipId) -> Response:
    """A small picture of the middle of a clip."""
    engine = state_of(request).engine
    find_clip(engine, clip_id)
    # An id names content, which never changes.
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(engine.thumbnail(clip_id), media_type="image/jpeg", headers=headers)


VIDEO = {"content": {"video/*": {"schema": {"type": "string", "format": "binary"}}}}


@router.get(
    "/clips/{clip_id}/video",
    tags=["clips"],
    response_class=Response,
    responses={
        200: {"description": "The whole file", **VIDEO},
        206: {"description": "The part named by Range", **VIDEO},
        304: {"description": "The file is the one named by If-None-Match"},
        **documented(404, 409, 410, 416),
    },
)
@router.head("/clips/{clip_id}/video", include_in_schema=False)
async def video(request: Request, clip_id: ClipId) -> Response:
    """The file a clip is in, whole or in part (``Range``)."""
    state = state_of(request)
    await run_in_threadpool(find_clip, state.engine, clip_id)
    found = await state.videos.open(clip_id)
    return video_response(found, request.headers, request.method)


@router.get(
    "/clips/{clip_id}/stream",
    tags=["clips"],
    response_class=Response,
    responses={
        200: {
            "description": "An MP4 without an end, from 'Eaglenet-Start' on",
            "content": {"video/mp4": {"schema": {"type": "string", "format": "binary"}}},
            "headers": {
                "Eaglenet-Start": {
                    "description": "Second of the file at which the MP4 begins",
                    "schema": {"type": "number"},
                },
                "Eaglenet-How": {
                    "description": "Whether the pictures were copied or encoded again",
                    "schema": {"type": "string", "enum": ["copy", "convert"]},
                },
            },
        },
        **documented(404, 409, 410, 415),
    },
)
@router.head("/clips/{clip_id}/stream", include_in_schema=False)
async def stream(
    request: Request, clip_id: ClipId, asked: Annotated[StreamParameters, Query()]
) -> Response:
    """The file a clip is in, made into what every browser plays while it is sent."""
    state = state_of(request)
    await run_in_threadpool(find_clip, state.engine, clip_id)
    found = await state.videos.open(clip_id)
    converted = await state.streams.begin(found, asked.start)
    return state.streams.answer(converted, request.method)


@router.get("/info", tags=["service"])
def info(request: Request) -> InfoBody:
    """What is in the store."""
    state = state_of(request)
    values = state.engine.info()
    names = ("clips", "keyframe_clips", "files", "hours", "lines", "method", "index", "tags")
    card = CARDS.get(values["model"])
    return InfoBody(
        **{name: values[name] for name in names},
        model=Path(values["model"]).name,
        version=__version__,
        languages="" if card is None else card.languages,
        uploads=state.settings.allow_uploads,
    )


async def _search(
    state: State, texts: Sequence[str], negatives: Sequence[str], asked: SearchParameters
) -> tuple[list[HitsBody], int]:
    """Search for several texts at once; a text without visible characters has no hits."""
    options = asked.options()
    queries = [_parse_query(text, negatives) for text in texts]
    valid = [query for query in queries if query is not None]
    found = Found([], options.shortlist_size(asked.k))
    if valid:
        found = await state.batcher.search(valid, asked.k, options)
    lists = iter(found.hits)
    note = ""
    if not any(found.hits):
        query = valid[0] if len(valid) == 1 else None
        note = await run_in_threadpool(state.engine.why_empty, options, query)
    results = [
        HitsBody(
            query=text,
            hits=[hit_body(state, hit) for hit in (next(lists) if query is not None else ())],
            note=note,
        )
        for text, query in zip(texts, queries, strict=True)
    ]
    return results, found.shortlist


def _parse_query(text: str, negatives: Sequence[str] = ()) -> AnyQuery | None:
    """Query for a text; None if it has no visible characters. Such negatives are ignored.

    A text may be a composed or temporal query; names of files are refused.
    """
    visible = [negative for negative in negatives if _is_visible(negative)]
    if not _is_visible(text):
        return None
    return SearchQuery(text, tuple(visible)) if visible else parse(text)


def _is_visible(text: str) -> bool:
    try:
        SearchQuery(text)
    except UsageError:
        return False
    return True


def find_clip(engine: Engine, clip_id: str) -> tuple[Clip, FileTable]:
    """A clip, and its file as a table of one row; 404 if there is no such clip."""
    try:
        return engine.clip(clip_id)
    except UsageError as error:
        raise Problem(404, str(error)) from None


def hit_body(state: State, hit: Hit) -> HitBody:
    return HitBody(
        rank=hit.rank,
        clip_id=hit.clip_id,
        name=Path(hit.path).name,
        path=shown_path(state, hit.path),
        # JSON has no NaN; a model that gives one must not break the page.
        score=hit.score if math.isfinite(hit.score) else 0.0,
        coarse_score=hit.coarse_score if math.isfinite(hit.coarse_score) else 0.0,
        confidence=hit.confidence,
        match=label(hit.confidence),
        moment=MomentBody(start=hit.moment.start, end=hit.moment.end, best=hit.moment.best),
        duration=hit.duration,
        from_keyframes=bool(hit.metadata.get("from_keyframes")),
        tags=list(hit.metadata.get("tags", ())),
        more=list(hit.metadata.get("more", ())),
        copies=[shown_path(state, path) for path in hit.metadata.get("copies", ())],
        matched_in=list(hit.matched_in),
        transcript=[TranscriptBody(**vars(line)) for line in hit.transcript],
        steps=[StepBody(**step) for step in hit.metadata.get("steps", ())],
        video=f"/api/clips/{hit.clip_id}/video",
        thumbnail=f"/api/clips/{hit.clip_id}/thumbnail",
    )


def shown_path(state: State, path: str) -> str:
    """Whole on this machine; elsewhere from the indexed folder on, which is all they may know."""
    if state.settings.local:
        return path
    return path_below_roots(path, tuple(state.engine.manifest.roots))


def since(begun: float) -> float:
    return round((time.perf_counter() - begun) * 1000, 3)
