"""Routes under ``/api``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from eaglenet.core.errors import UsageError
from eaglenet.core.text import without_surrogates
from eaglenet.encoders.catalogue import CARDS
from eaglenet.search.engine import Engine
from eaglenet.search.grammar import AnyQuery, from_json, parse
from eaglenet.search.hit import Hit, Moment, round_times
from eaglenet.search.hits import recording_of
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query as SearchQuery
from eaglenet.search.reranking import spaced_indices
from eaglenet.search.retrieval import StoreView
from eaglenet.search.wording import negation_in
from eaglenet.serve.batching import BatchResult
from eaglenet.serve.library import Library, path_below_roots
from eaglenet.serve.media import video_response
from eaglenet.serve.problems import Problem, error_responses
from eaglenet.serve.readers import MEDIA_TYPES
from eaglenet.serve.schemas import (
    CLIP_ID,
    ClipBody,
    ExportParameters,
    FileBody,
    FilesBody,
    FilesParameters,
    FolderBody,
    FrameParameters,
    HitBody,
    HitsBody,
    InfoBody,
    MomentBody,
    NegationBody,
    QueryParameters,
    RecordingBody,
    SearchBody,
    SearchParameters,
    SelectedMoment,
    SeveralBody,
    SeveralQueries,
    SpanBody,
    StepBody,
    StreamParameters,
    TimelineBody,
    TranscriptBody,
)
from eaglenet.serve.state import State, state_of
from eaglenet.store.records import ID_CHARACTERS, Clip, FileTable
from eaglenet.version import __version__
from eaglenet.video.frame_images import segment_middles

ClipId = Annotated[
    str, PathParameter(pattern=CLIP_ID, description="Clip id of a search result, or a prefix")
]
MAX_FOLDERS = 500
MAX_TIMELINE_CLIPS = 1000
TIME_TOLERANCE = 0.1
"""Seconds that a moment may start after the end of its file: links round to tenths of a second."""
COMMON = (400, 401, 403, 404, 421, 422, 429, 431, 500, 503, 504)

BINARY = {"schema": {"type": "string", "format": "binary"}}
JPEG: dict[str, Any] = {"content": {"image/jpeg": BINARY}}
VIDEO = {"content": {"video/*": BINARY}}

router = APIRouter(prefix="/api", responses=error_responses(*COMMON))


@router.get("/search", tags=["search"], operation_id="search")
async def search(request: Request, parameters: Annotated[QueryParameters, Query()]) -> SearchBody:
    """Return the moments that match a query best."""
    start = time.perf_counter()
    state = state_of(request)
    results, shortlist = await _search(state, [parameters.q], parameters.negative, parameters)
    missing = list(state.engine.missing_shards_since(start))
    return SearchBody(
        **dict(results[0]),
        shortlist=shortlist,
        missing=missing,
        milliseconds=milliseconds_since(start),
    )


@router.post(
    "/search", tags=["search"], operation_id="search_several", responses=error_responses(408, 413)
)
async def search_several(request: Request, parameters: SeveralQueries) -> SeveralBody:
    """Search for several queries at once."""
    start = time.perf_counter()
    state = state_of(request)
    results, shortlist = await _search(state, parameters.queries, parameters.negative, parameters)
    missing = list(state.engine.missing_shards_since(start))
    return SeveralBody(
        results=results,
        shortlist=shortlist,
        missing=missing,
        milliseconds=milliseconds_since(start),
    )


@router.get("/similar/{clip_id}", tags=["search"], responses=error_responses(404))
async def similar(
    request: Request, clip_id: ClipId, parameters: Annotated[SearchParameters, Query()]
) -> SearchBody:
    """Find moments of other files that look like a clip."""
    start = time.perf_counter()
    state = state_of(request)
    await run_in_threadpool(find_clip, state.engine, clip_id)
    options = await run_in_threadpool(parameters.options)
    query = SearchQuery(clip_id=clip_id)
    find = partial(state.engine.search, query, parameters.k, options=options)
    hits = await state.batcher.call(find)
    return search_body(state, clip_id, hits, options.shortlist_size(parameters.k), start)


# Handlers without async run in threads, because they may have to reload the store.
@router.get("/clips/{clip_id}", tags=["clips"], responses=error_responses(404))
def clip(request: Request, clip_id: ClipId) -> ClipBody:
    """Describe a clip: its file, span, size and tags."""
    state = state_of(request)
    clip, files = find_clip(state.engine, clip_id)
    path = files.paths[0][0]
    return ClipBody(
        clip_id=clip.id,
        name=Path(path).name,
        path=shown_path(state, path),
        start=clip.start,
        end=clip.end,
        duration=float(files.durations[0]),
        width=files.widths[0],
        height=files.heights[0],
        modified=float(files.modification_times[0]),
        **recording_of(files, 0),
        tags=files.tags[0],
        video=f"/api/clips/{clip.id}/video",
        thumbnail=f"/api/clips/{clip.id}/thumbnail",
    )


@router.get(
    "/clips/{clip_id}/thumbnail",
    tags=["clips"],
    response_class=Response,
    responses={200: JPEG, **error_responses(404)},
)
@router.head("/clips/{clip_id}/thumbnail", include_in_schema=False)
def thumbnail(request: Request, clip_id: ClipId) -> Response:
    """Return a JPEG of the middle of a clip."""
    try:
        content = state_of(request).engine.thumbnail(clip_id)
    except UsageError as error:
        raise Problem(404, str(error)) from None
    return Response(content, media_type="image/jpeg", headers=_cache_headers(clip_id))


def _cache_headers(clip_id: str) -> dict[str, str]:
    """Let clients cache images of a whole clip id; a prefix may become another clip."""
    is_whole = len(clip_id.partition("-")[0]) == ID_CHARACTERS
    return {"Cache-Control": "private, max-age=86400"} if is_whole else {}


@router.get(
    "/clips/{clip_id}/frame",
    tags=["clips"],
    response_class=Response,
    responses={200: JPEG, **error_responses(404, 409, 410, 415)},
)
@router.head("/clips/{clip_id}/frame", include_in_schema=False)
async def frame(
    request: Request, clip_id: ClipId, parameters: Annotated[FrameParameters, Query()]
) -> Response:
    """Return the frame of the thumbnail in a larger size, decoded from the file."""
    state = state_of(request)
    clip, files = await run_in_threadpool(find_clip, state.engine, clip_id)
    count = state.engine.manifest.frame_spec.num_frames
    second = segment_middles(clip.start, clip.end, count)[count // 2] if files.durations[0] else 0.0
    suffix = Path(files.paths[0][0]).suffix
    content = await state.frames.thumbnail(clip.id, suffix, second, int(parameters.side))
    return Response(content, media_type="image/jpeg", headers=_cache_headers(clip_id))


@router.get(
    "/clips/{clip_id}/video",
    tags=["clips"],
    response_class=Response,
    responses={
        200: {"description": "The whole file", **VIDEO},
        206: {"description": "The range requested by Range", **VIDEO},
        304: {"description": "The file still matches If-None-Match"},
        **error_responses(404, 409, 410, 416),
    },
)
@router.head("/clips/{clip_id}/video", include_in_schema=False)
async def video(request: Request, clip_id: ClipId) -> Response:
    """Send the file of a clip, or a range of it (``Range``)."""
    state = state_of(request)
    await run_in_threadpool(find_clip, state.engine, clip_id)
    video_file = await state.videos.open(clip_id)
    return video_response(video_file, request.headers, request.method)


@router.get(
    "/clips/{clip_id}/stream",
    tags=["clips"],
    response_class=Response,
    responses={
        200: {
            "description": "An MP4 stream that begins at 'Eaglenet-Start'",
            "content": {"video/mp4": BINARY},
            "headers": {
                "Eaglenet-Start": {
                    "description": "Second of the file at which the MP4 begins",
                    "schema": {"type": "number"},
                },
                "Eaglenet-How": {
                    "description": "copy: frames are copied; convert: frames are re-encoded",
                    "schema": {"type": "string", "enum": ["copy", "convert"]},
                },
            },
        },
        **error_responses(404, 409, 410, 415),
    },
)
@router.head("/clips/{clip_id}/stream", include_in_schema=False)
async def stream(
    request: Request, clip_id: ClipId, parameters: Annotated[StreamParameters, Query()]
) -> Response:
    """Send the file of a clip as an MP4 that every browser plays, converted on the fly."""
    state = state_of(request)
    await run_in_threadpool(find_clip, state.engine, clip_id)
    video_file = await state.videos.open(clip_id)
    conversion = await state.streams.begin(video_file, parameters.start)
    return state.streams.make_response(conversion, request.method)


@router.get("/info", tags=["service"])
def info(request: Request) -> InfoBody:
    """Describe the store: clips, files, hours, model and tags."""
    state = state_of(request)
    values = state.engine.info()
    names = (
        "clips", "keyframe_clips", "files", "hours", "transcript_lines", "method", "index", "tags",
    )  # fmt: skip
    card = CARDS.get(values["model"])
    return InfoBody(
        **{name: values[name] for name in names},
        model=Path(values["model"]).name,
        version=__version__,
        languages="" if card is None else card.languages,
        confidence_measured=state.engine.has_confidence,
        uploads=state.settings.allow_uploads,
    )


async def _search(
    state: State,
    texts: Sequence[str | dict[str, Any]],
    negatives: Sequence[str],
    parameters: SearchParameters,
) -> tuple[list[HitsBody], int]:
    """Search for several queries at once; texts without visible characters have no hits."""
    # In a thread, because it may read a table of places.
    options = await run_in_threadpool(parameters.options)
    queries = [_parse_query(text, negatives, is_literal=options.literal) for text in texts]
    valid_queries = [query for query in queries if query is not None]
    result = BatchResult([], options.shortlist_size(parameters.k))
    # Judge single queries only, because a judge takes seconds per query.
    judge = state.judge if len(valid_queries) == 1 else None
    if valid_queries:
        k = parameters.k if judge is None else max(parameters.k, judge.judge.count)
        result = await state.batcher.search(valid_queries, k, options)
    note = ""
    if judge is not None:
        judgement = await judge.rank(valid_queries[0], result.hits[0])
        result = BatchResult([judgement.hits[: parameters.k]], result.shortlist)
        note = judgement.notice
    lists = iter(result.hits)
    if not any(result.hits):
        query = valid_queries[0] if len(valid_queries) == 1 else None
        note = await run_in_threadpool(state.engine.why_empty, options, query)
    results = []
    for text, query in zip(texts, queries, strict=True):
        if query is None:
            results.append(HitsBody(query=str(text), hits=[], note=note))
            continue
        hits = next(lists)
        few_clips = await run_in_threadpool(state.engine.few_clips_notice, query, hits, options)
        file_name = await run_in_threadpool(state.engine.file_name_notice, query, options)
        long_text = await run_in_threadpool(state.engine.long_text_notice, query, options)
        results.append(
            HitsBody(
                query=text if isinstance(text, str) else query.title,
                hits=[hit_body(state, hit) for hit in hits],
                note="; ".join(filter(None, (note, file_name, long_text, few_clips))),
                notice=query.dates.notice if query.dates else "",
                language_hint=state.engine.language_hint(query, options),
                negation=_negation_body(query, options),
            )
        )
    return results, result.shortlist


def _negation_body(query: AnyQuery, options: SearchOptions) -> NegationBody | None:
    negation = negation_in(query, options)
    if negation is None:
        return None
    return NegationBody(
        reason=negation.reason,
        query=negation.query,
        text=negation.text,
        negatives=list(negation.negatives),
    )


def _parse_query(
    text: str | dict[str, Any], negatives: Sequence[str] = (), *, is_literal: bool = False
) -> AnyQuery | None:
    """Parse a text or an object; return None for a text without visible characters.

    Negatives without visible characters are ignored. File names are refused.
    """
    negatives = [negative for negative in negatives if _is_visible(negative)]
    if not isinstance(text, str):
        if negatives:
            raise UsageError("'negative' is for texts; in an object, give a part a negative weight")
        return from_json(text)
    if not _is_visible(text):
        return None
    return parse(text, negatives=negatives, is_literal=is_literal)


def _is_visible(text: str) -> bool:
    try:
        SearchQuery(text)
    except UsageError:
        return False
    return True


def find_clip(engine: Engine, clip_id: str) -> tuple[Clip, FileTable]:
    """Return the clip of an id or a prefix of it, and its file; raise 404 if there is none."""
    try:
        return engine.clip(clip_id)
    except UsageError as error:
        raise Problem(404, str(error)) from None


def search_body(
    state: State, query: str, hits: Sequence[Hit], shortlist: int, start: float
) -> SearchBody:
    """Make the response for the hits of one query; ``start`` is the time of the request."""
    return SearchBody(
        query=query,
        hits=[hit_body(state, hit) for hit in hits],
        shortlist=shortlist,
        missing=list(state.engine.missing_shards_since(start)),
        milliseconds=milliseconds_since(start),
    )


def hit_body(state: State, hit: Hit) -> HitBody:
    return HitBody(
        rank=hit.rank,
        clip_id=hit.clip_id,
        name=Path(hit.path).name,
        path=shown_path(state, hit.path),
        # JSON has no NaN.
        score=hit.score if math.isfinite(hit.score) else 0.0,
        coarse_score=hit.coarse_score if math.isfinite(hit.coarse_score) else 0.0,
        judge_score=hit.metadata.get("judge_score"),
        confidence=hit.confidence,
        match=hit.match,
        moment=MomentBody(**round_times(vars(hit.moment))),
        duration=round(hit.duration, 3),
        **{name: hit.metadata[name] for name in RecordingBody.model_fields if name in hit.metadata},
        from_keyframes=bool(hit.metadata.get("from_keyframes")),
        tags=list(hit.metadata.get("tags", ())),
        more=list(hit.metadata.get("more", ())),
        copies=[shown_path(state, path) for path in hit.metadata.get("copies", ())],
        matched_in=list(hit.matched_in),
        transcript=[TranscriptBody(**round_times(vars(line))) for line in hit.transcript],
        steps=[StepBody(**round_times(step)) for step in hit.metadata.get("steps", ())],
        video=f"/api/clips/{hit.clip_id}/video",
        thumbnail=f"/api/clips/{hit.clip_id}/thumbnail",
    )


def shown_path(state: State, path: str) -> str:
    """Return the whole path to local clients, and the path below the indexed folder to others."""
    if state.settings.local:
        return path
    return path_below_roots(path, tuple(state.engine.manifest.roots))


def milliseconds_since(start: float) -> float:
    return round((time.perf_counter() - start) * 1000, 3)


@router.get("/files", tags=["clips"], responses=error_responses(404))
def files(request: Request, parameters: Annotated[FilesParameters, Query()]) -> FilesBody:
    """List the indexed files of a folder and its subfolders, or find files by name."""
    state = state_of(request)
    prefix = parameters.folder.rstrip("/") + "/" if parameters.folder else ""

    def read(view: StoreView) -> FilesBody:
        library = state.libraries.of(view)
        listing = library.list_folder(parameters.folder, parameters.order, parameters.name)
        problem = "" if listing.files else library.explain_missing(parameters.folder)
        if problem:
            hint = "folders are named in the responses of GET /api/files"
            raise Problem(404, without_surrogates(problem), hint=hint)
        return FilesBody(
            folder=parameters.folder,
            folders=[
                FolderBody(name=name, folder=prefix + name, files=count)
                for name, count in listing.folders[:MAX_FOLDERS]
            ],
            files=_file_bodies(
                state, library, listing.files[parameters.first : parameters.first + parameters.k]
            ),
            total=len(listing.files),
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
            modified=float(table.modification_times[number]),
            **recording_of(table, number),
            tags=table.tags[number],
            clips=int(library.clips[number]),
            clip_id=clip.id,
            video=f"/api/clips/{clip.id}/video",
            thumbnail=f"/api/clips/{clip.id}/thumbnail",
        )
        for number, clip in zip(numbers, clips, strict=True)
    ]


@router.post(
    "/export",
    tags=["clips"],
    response_class=Response,
    responses={
        200: {"content": {kind: {"schema": {"type": "string"}} for kind in MEDIA_TYPES.values()}},
        **error_responses(404, 408, 409, 410, 413, 415),
    },
)
async def export(request: Request, parameters: ExportParameters) -> Response:
    """Export selected moments as a timeline for editors, players or spreadsheets."""
    state = state_of(request)
    hits = []
    for rank, moment in enumerate(parameters.moments, 1):
        clip, files = await run_in_threadpool(find_clip, state.engine, moment.clip_id)
        path = shown_path(state, files.paths[0][0])
        # Absolute, because a relative path would be resolved in the folder of the service.
        path = path if state.settings.local or "://" in path else f"/{path}"
        duration = float(files.durations[0])
        if duration:  # The span of an image has no meaning.
            _check_span(moment, max(duration, clip.end), f"body.moments.{rank - 1}")
        span = Moment(moment.start, max(moment.start, moment.end), moment.start)
        hits.append(
            Hit(
                rank,
                clip.id,
                path,
                moment.score,
                moment.score,
                span,
                duration,
                confidence=moment.confidence,
            )
        )
    content = await state.exports.write(hits, parameters.title, parameters.format)
    headers = {"Content-Disposition": f'attachment; filename="moments.{parameters.format}"'}
    return Response(content, media_type=MEDIA_TYPES[parameters.format], headers=headers)


def _check_span(moment: SelectedMoment, duration: float, where: str) -> None:
    """Refuse a span that is not in the file; an end after that of the file is cut later."""
    times = f"{moment.start:g} to {moment.end:g} s"
    hint = "send start and end of the moment of a hit, in seconds of the file"
    if moment.end < moment.start:
        raise Problem(422, f"{where}: {times} ends before it starts", hint=hint)
    if moment.start > duration + TIME_TOLERANCE:
        text = f"{where}: {times} is outside this file, which lasts {duration:.2f} s"
        raise Problem(422, text, hint=hint)


@router.get("/clips/{clip_id}/timeline", tags=["clips"], responses=error_responses(404))
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
            for each in (clips[index] for index in spaced_indices(len(clips), MAX_TIMELINE_CLIPS))
        ],
    )
