"""Routes of the page, the login, the health check and metrics."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from eaglenet.serve.limits import CONTENT_TYPE, client_of
from eaglenet.serve.problems import Problem, error_responses
from eaglenet.serve.schemas import HealthBody
from eaglenet.serve.security import COOKIE
from eaglenet.serve.state import state_of

PAGE = files("eaglenet.serve") / "page"
SUFFIXES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
TYPES = {
    path.name: SUFFIXES[suffix]
    for path in PAGE.iterdir()
    if (suffix := PurePath(path.name).suffix) in SUFFIXES
}
"""Files under ``/static``, with their media types."""

HTML = "text/html; charset=utf-8"
WRONG_TOKEN = b'<p class="wrong" role="alert">That is not the token of this service.</p>'

router = APIRouter()


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """Send the search page, or the login page to clients without the cookie."""
    tokens = state_of(request).tokens
    if tokens is None or tokens.check(request.headers, client_of(request.scope)):
        return _file(request, "index.html", HTML)
    return _login_page()


@router.post("/login", include_in_schema=False)
async def login(request: Request) -> Response:
    """Exchange the token for a cookie that scripts cannot read."""
    tokens = state_of(request).tokens
    if tokens is None:
        return RedirectResponse("/", 303)
    try:
        form = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=4)
    except ValueError:
        raise Problem(400, "the form has too many fields") from None
    if not tokens.is_right(client_of(request.scope), form.get("token", [""])[0]):
        return _login_page(WRONG_TOKEN)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(
        COOKIE,
        tokens.session,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        max_age=30 * 86_400,
    )
    return answer


@router.get("/static/{name}", include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    if name not in TYPES:
        raise Problem(404, "no such address")
    return _file(request, name, TYPES[name])


@router.get("/favicon.ico", include_in_schema=False)
async def icon(request: Request) -> Response:
    return _file(request, "icon.svg", TYPES["icon.svg"])


@router.get("/health", tags=["service"], responses=error_responses(403, 421, 500))
async def health() -> HealthBody:
    """Report that the service is running."""
    return HealthBody(status="ok")


@router.get(
    "/metrics",
    tags=["service"],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **error_responses(401, 403, 421, 429, 500, 503, 504),
    },
)
async def metrics(request: Request) -> Response:
    """Return metrics in the Prometheus text format."""
    state = state_of(request)
    clips = await run_in_threadpool(lambda: len(state.engine.snapshot))
    state.metrics.clips.set(clips)
    return Response(state.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


@cache
def _content(name: str) -> tuple[bytes, str]:
    content = (PAGE / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _file(request: Request, name: str, media_type: str) -> Response:
    content, tag = _content(name)
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Type": media_type}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


def _login_page(alert: bytes = b"") -> Response:
    content, _ = _content("login.html")
    headers = {"Cache-Control": "no-cache", "Content-Type": HTML}
    return Response(content.replace(b"<!-- alert -->", alert), 401, headers)
