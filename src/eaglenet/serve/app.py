"""The service: an ASGI app with its pages, run with uvicorn and shut down gracefully."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from types import FrameType
from urllib.parse import parse_qs

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from eaglenet.core.errors import EagleNetError, UsageError
from eaglenet.core.platform import num_cores
from eaglenet.search.engine import Engine
from eaglenet.serve import api, uploads
from eaglenet.serve.limits import CONTENT_TYPE, LimitMiddleware, client_of, protocol_for
from eaglenet.serve.problems import Problem, add_handlers, error_responses
from eaglenet.serve.schemas import HealthBody
from eaglenet.serve.security import COOKIE, MAX_HEADER_BYTES, GuardMiddleware, ObserveMiddleware
from eaglenet.serve.settings import Settings
from eaglenet.serve.state import State, state_of
from eaglenet.version import __version__

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

pages = APIRouter()


@pages.get("/", include_in_schema=False)
@pages.head("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """Send the search page, or the login page to clients without the cookie."""
    tokens = state_of(request).tokens
    if tokens is None or tokens.check(request.headers, client_of(request.scope)):
        return _file(request, "index.html", HTML)
    return _login_page()


@pages.post("/login", include_in_schema=False)
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


@pages.get("/static/{name}", include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    if name not in TYPES:
        raise Problem(404, "no such address")
    return _file(request, name, TYPES[name])


@pages.get("/favicon.ico", include_in_schema=False)
async def icon(request: Request) -> Response:
    return _file(request, "icon.svg", TYPES["icon.svg"])


@pages.get("/health", tags=["service"], responses=error_responses(403, 421, 500))
@pages.head("/health", include_in_schema=False)  # Many monitors send it.
async def health() -> HealthBody:
    """Report that the service is running."""
    return HealthBody(status="ok")


@pages.get(
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


def create_app(engine: Engine, settings: Settings | None = None) -> FastAPI:
    """Create an app that searches ``engine``; searches work once its lifespan is entered."""
    settings = settings or Settings()
    state = State(engine, settings)
    agents = None
    if settings.agents:
        from eaglenet.serve.mcp import Agents

        agents = Agents(state, settings.save_folder)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.start()
        try:
            async with agents.running() if agents is not None else nullcontext():
                yield
        finally:
            await state.stop()

    app = FastAPI(
        title="eaglenet",
        summary="Search video with words.",
        version=__version__,
        lifespan=lifespan,
        # Their pages load scripts from other sites, which the content security policy forbids.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = state
    routers = [pages, api.router]
    routers.append(uploads.router if settings.allow_uploads else uploads.refusals)
    app.state.routes = [route for router in routers for route in router.routes]
    add_handlers(app)
    for router in routers:
        app.include_router(router)
    if agents is not None:
        app.router.routes.append(agents.route)
        app.state.routes.append(agents.route)
    # The last one added is the outermost.
    app.add_middleware(LimitMiddleware, settings=settings, metrics=state.metrics)
    app.add_middleware(GuardMiddleware, settings=settings, tokens=state.tokens)
    app.add_middleware(ObserveMiddleware, metrics=state.metrics)
    return app


GRACE_SECONDS = 10
"""Time for open responses to finish when the service stops."""


def run(
    engine: Engine,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[str], None] | None = None,
    until: threading.Event | None = None,
) -> None:
    """Serve until interrupted or terminated; call ``on_ready`` with the URL.

    ``until``: event that stops a service in a thread, which receives no signals. The model and the
    vectors are loaded before the port opens, so that the first query is fast too.
    """

    def warm_app() -> FastAPI:
        engine.warm_up()
        if settings.allow_uploads:
            # Takes a second, which texts need not wait for. Not a daemon: Python's end would stop
            # one inside the runtime of the tower, which then aborts the process.
            threading.Thread(target=_warm_up_images, args=(engine,)).start()
        on_cpu = engine.model.device == "cpu"
        return create_app(engine, replace(settings, workers=num_cores()) if on_cpu else settings)

    run_app(warm_app, settings, host=host, port=port, on_ready=on_ready, until=until)


def _warm_up_images(engine: Engine) -> None:
    with suppress(EagleNetError):  # The first search with an image reports it.
        engine.warm_up_images()


def run_app(
    make_app: Callable[[], FastAPI],
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[str], None] | None = None,
    until: threading.Event | None = None,
) -> None:
    """Run any app like :func:`run`; ``make_app`` is called before the port opens."""
    listener = _listen(host, port)
    with listener:
        config = uvicorn.Config(
            make_app(),
            http=protocol_for(settings),
            access_log=False,
            log_config=None,
            server_header=False,
            # A client could claim another address in every request and evade its limits.
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        server = _Server(config, until)
        if threading.current_thread() is threading.main_thread():
            # Before the address is known, so that a service can be stopped as soon as it is ready.
            # uvicorn installs the same handlers later, shuts down, then raises the signals again.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, server.handle_exit)
        _configure_torch()
        listener.listen(1024)
        if on_ready is not None:
            name = reachable_host(host)
            url_host = f"[{name}]" if ":" in name else name
            on_ready(f"http://{url_host}:{listener.getsockname()[1]}/")
        server.run(sockets=[listener])


def reachable_host(host: str) -> str:
    """Return an address that other devices can open; ``host`` unless it means all addresses.

    >>> reachable_host("127.0.0.1")
    '127.0.0.1'
    """
    if host not in ("0.0.0.0", "::"):
        return host
    try:
        # Determines the outgoing address; connecting a datagram socket sends nothing.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _configure_torch() -> None:
    """Configure torch for serving, if it is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(num_cores())
    if platform.machine() in ("aarch64", "arm64"):
        # oneDNN repacks the weights for each small product: a text takes 26 ms instead of 9 on a
        # Neoverse N1. Large batches take the same time.
        torch.backends.mkldnn.set_flags(_enabled=False)


class _Server(uvicorn.Server):  # type: ignore[misc]
    def __init__(self, config: uvicorn.Config, until: threading.Event | None) -> None:
        super().__init__(config)
        self._until = until

    async def on_tick(self, counter: int) -> bool:
        is_over = await super().on_tick(counter)
        return bool(is_over or (self._until is not None and self._until.is_set()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Without this, shutdown would wait for decoding, whose time limit is longer.
        service = getattr(getattr(self.config.app, "state", None), "service", None)
        if isinstance(service, State):
            await service.stop_decoding()
        aborter = asyncio.ensure_future(self._abort_if_forced())
        try:
            await super().shutdown(sockets)
        finally:
            aborter.cancel()

    async def _abort_if_forced(self) -> None:
        """Cut off open connections after a second interrupt; Python 3.13 waits until they close."""
        while not self.force_exit:
            await asyncio.sleep(0.1)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        is_first = not self.should_exit
        # Before anything is written: a second interrupt during that would count as the first.
        super().handle_exit(number, frame)
        num_open = len(self.server_state.tasks)
        if number == signal.SIGINT and num_open and is_first:
            text = f"stopping; waiting up to {GRACE_SECONDS} s for open requests ({num_open}); "
            # Not through a logger: the signal may have interrupted one.
            os.write(2, f"{text}Ctrl-C again stops at once\n".encode())
        if self.force_exit:
            # Interrupted twice: responses are cut off on purpose, so log no tracebacks.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port"
        ) from error
    return listener
