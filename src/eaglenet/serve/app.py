"""The service as one ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from eaglenet.search.engine import Engine
from eaglenet.serve import api, browsing, pages, uploads
from eaglenet.serve.counters import ServiceMetrics
from eaglenet.serve.library import Libraries
from eaglenet.serve.limits import LimitMiddleware
from eaglenet.serve.media import VideoFiles
from eaglenet.serve.problems import add_handlers
from eaglenet.serve.security import GuardMiddleware, ObserveMiddleware, TokenCheck
from eaglenet.serve.settings import Settings
from eaglenet.serve.state import State
from eaglenet.serve.streams import Streams
from eaglenet.version import __version__


def create_app(engine: Engine, settings: Settings | None = None) -> FastAPI:
    """Create an app that searches ``engine``. It answers searches after its lifespan is entered."""
    settings = settings or Settings()
    state = State(
        engine=engine,
        settings=settings,
        metrics=ServiceMetrics(),
        tokens=TokenCheck(settings.token, settings.session) if settings.token is not None else None,
        videos=VideoFiles(engine),
        streams=Streams(settings.max_conversions, settings.timeout),
        libraries=Libraries(),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.start()
        try:
            yield
        finally:
            await state.stop()

    app = FastAPI(
        title="eaglenet",
        summary="Search video with words.",
        version=__version__,
        lifespan=lifespan,
        # These pages load scripts from other sites, which the content-security policy forbids.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = state
    routers = [pages.router, api.router, browsing.router]
    routers.append(uploads.router if settings.allow_uploads else uploads.refusals)
    app.state.routes = [route for router in routers for route in router.routes]
    add_handlers(app)
    for router in routers:
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(LimitMiddleware, settings=settings, metrics=state.metrics)
    app.add_middleware(GuardMiddleware, settings=settings, tokens=state.tokens)
    app.add_middleware(ObserveMiddleware, metrics=state.metrics)
    return app
