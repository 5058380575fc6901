"""Search with a picture or a video that is sent along. Refused unless allowed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.search.query import Query as SearchQuery
from eaglenet.serve.api import COMMON, hit_body, since
from eaglenet.serve.problems import Problem, documented
from eaglenet.serve.schemas import SearchBody, SearchParameters
from eaglenet.serve.state import state_of
from eaglenet.video.inputs import FrameBatch, clips_of_image, clips_of_video

router = APIRouter(
    prefix="/api/search", tags=["search"], responses=documented(*COMMON, 408, 413, 415)
)
refusals = APIRouter(prefix="/api/search", include_in_schema=False)
"""In the place of ``router`` where nothing may be sent."""
Parameters = Annotated[SearchParameters, Query()]


def _raw_body(media_type: str) -> dict[str, Any]:
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": {media_type: schema}}}


@refusals.post("/image")
@refusals.post("/video")
async def refuse() -> None:
    """Say how it would be allowed."""
    raise Problem(
        403,
        "searching with uploaded pictures and videos is switched off",
        code="uploads_off",
        hint="start the service with --allow-uploads",
    )


@router.post("/image", openapi_extra=_raw_body("image/*"))
async def search_image(request: Request, asked: Parameters) -> SearchBody:
    """Moments that show what a picture shows; the body is the picture itself."""
    return await _search(request, asked, clips_of_image)


@router.post("/video", openapi_extra=_raw_body("video/*"))
async def search_video(request: Request, asked: Parameters) -> SearchBody:
    """Moments that look like a video; the body is the file itself."""
    return await _search(request, asked, clips_of_video)


async def _search(
    request: Request, asked: SearchParameters, decode: Callable[..., FrameBatch]
) -> SearchBody:
    """Decoding happens in a process with limits, so that nobody waits for it but who sent it."""
    begun = time.perf_counter()
    state = state_of(request)
    options = asked.options()
    shortlist = options.shortlist_size(asked.k)
    if state.uploads is None:
        raise RuntimeError("the app has not been started; enter its lifespan first")
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise Problem(
            415,
            "a form was sent, not a file",
            hint="send the file itself as the body: curl --data-binary @FILE, not curl -F",
        )
    with state.uploads.room() as file:
        await _receive(request, file.file)
        spec = state.engine.manifest.frame_spec
        try:
            clips = await run_in_threadpool(state.uploads.decoder, decode, Path(file.name), spec)
            search = partial(
                state.engine.search, SearchQuery(clips=clips), asked.k, options=options
            )
            hits = await state.batcher.call(search)
        except (UsageError, VideoDecodeError) as error:
            # Where it lay for a moment is nobody's business.
            raise Problem(400, str(error).replace(file.name, "upload")) from None
    return SearchBody(
        query=f"uploaded {request.url.path.rsplit('/', 1)[-1]}",
        hits=[hit_body(state, hit) for hit in hits],
        shortlist=shortlist,
        missing=list(state.engine.missing),
        milliseconds=since(begun),
    )


async def _receive(request: Request, file: IO[bytes]) -> None:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        await run_in_threadpool(file.write, chunk)
    if not size:
        raise Problem(400, "the body is empty", hint="send the file itself as the body")
    file.flush()
