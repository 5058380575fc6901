"""Search with an uploaded image or video, if the service allows uploads."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import IO, Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.search.grammar import ComposedQuery, TemporalQuery, parse
from eaglenet.search.query import Query as SearchQuery
from eaglenet.serve.api import COMMON, search_body
from eaglenet.serve.limits import client_of
from eaglenet.serve.problems import Problem, error_responses
from eaglenet.serve.schemas import SearchBody, UploadParameters
from eaglenet.serve.state import state_of
from eaglenet.video.inputs import FrameBatch

router = APIRouter(
    prefix="/api/search", tags=["search"], responses=error_responses(*COMMON, 408, 413, 415)
)
refusals = APIRouter(prefix="/api/search", include_in_schema=False)
"""Replaces ``router`` if uploads are not allowed."""
Parameters = Annotated[UploadParameters, Query()]
UPLOAD_ID = "upload"
"""Clip id of the uploaded file in a composed query."""


def _raw_body(media_type: str) -> dict[str, Any]:
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": {media_type: schema}}}


@refusals.post("/image")
@refusals.post("/video")
async def refuse() -> None:
    """Refuse an upload, with a hint on how to allow uploads."""
    raise Problem(
        403,
        "search with uploaded images and videos is switched off",
        code="uploads_off",
        hint="start the service with --allow-uploads",
    )


@router.post("/image", openapi_extra=_raw_body("image/*"))
async def search_image(request: Request, parameters: Parameters) -> SearchBody:
    """Find moments that look like an image; the body is the image file."""
    return await _search(request, parameters, is_image=True)


@router.post("/video", openapi_extra=_raw_body("video/*"))
async def search_video(request: Request, parameters: Parameters) -> SearchBody:
    """Find moments that look like a video; the body is the video file."""
    return await _search(request, parameters, is_image=False)


async def _search(request: Request, parameters: UploadParameters, *, is_image: bool) -> SearchBody:
    """Receive an upload, decode it in a separate process, and search with it."""
    start = time.perf_counter()
    state = state_of(request)
    options = await run_in_threadpool(parameters.options)
    composition = None if parameters.q is None else _parse_composed(parameters.q)
    uploads = state.uploads
    if uploads is None:
        raise RuntimeError("the app has not been started; enter its lifespan first")
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise Problem(
            415,
            "a form was sent, not a file",
            hint="send the file itself as the body: curl --data-binary @FILE, not curl -F",
        )
    with uploads.receive(client_of(request.scope)) as upload:
        await _receive(request, upload.file)
        spec = state.engine.manifest.frame_spec
        try:
            video = await run_in_threadpool(upload.decode, spec, is_image=is_image)
        except (UsageError, VideoDecodeError) as error:
            if uploads.is_stopping:
                raise Problem(503, "the service is shutting down") from None
            # The client must not see the path of the temporary file.
            message = str(error).replace(upload.path, "upload")
            hint = f"send a file that is {'an image' if is_image else 'a video'}"
            raise Problem(415, message, code="unplayable", hint=hint) from None
    clips = FrameBatch(video.pixels[None], video.is_real[None], video.times[None])
    query = SearchQuery(clips=clips)
    search = partial(
        state.engine.search,
        query if composition is None else _insert(composition, query),
        parameters.k,
        options=options,
    )
    hits = await state.batcher.call(search)
    title = parameters.q or f"uploaded {request.url.path.rsplit('/', 1)[-1]}"
    return search_body(state, title, hits, options.shortlist_size(parameters.k), start)


def _parse_composed(text: str) -> ComposedQuery | TemporalQuery:
    """Parse a query in which ``clip:upload`` is the uploaded file."""
    query = parse(text)
    if not isinstance(query, SearchQuery):
        steps = query.steps if isinstance(query, TemporalQuery) else (query,)
        if any(part.query.clip_id == UPLOAD_ID for step in steps for part in step.parts):
            return query
    raise UsageError('q combines the file with other parts: clip:upload + "at night"')


def _insert(
    query: ComposedQuery | TemporalQuery, upload: SearchQuery
) -> ComposedQuery | TemporalQuery:
    """Replace ``clip:upload`` by the uploaded file."""
    if isinstance(query, TemporalQuery):
        return replace(query, steps=tuple(_insert_part(step, upload) for step in query.steps))
    return _insert_part(query, upload)


def _insert_part(step: ComposedQuery, upload: SearchQuery) -> ComposedQuery:
    return ComposedQuery(
        tuple(
            replace(part, query=upload) if part.query.clip_id == UPLOAD_ID else part
            for part in step.parts
        )
    )


async def _receive(request: Request, file: IO[bytes]) -> None:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        await run_in_threadpool(file.write, chunk)
    if not size:
        raise Problem(422, "the body is empty", hint="send the file itself as the body")
    file.flush()
