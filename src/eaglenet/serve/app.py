"""The service as one ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI

from eaglenet.search.engine import Engine
from eaglenet.serve import api, browsing, pages, uploads
from eaglenet.serve.limits import LimitMiddleware
from eaglenet.serve.problems import add_handlers
from eaglenet.serve.security import GuardMiddleware, ObserveMiddleware
from eaglenet.serve.settings import Settings
from eaglenet.serve.state import State
from eaglenet.version import __version__


def create_app(engine: Engine, settings: Settings | None = None) -> FastAPI:
    """Create an app that searches ``engine``. It answers searches after its lifespan is entered."""
    settings = settings or Settings()
    state = State.make(engine, settings)
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
    if agents is not None:
        app.router.routes.append(agents.route)
        app.state.routes.append(agents.route)
    # The last one added is the outermost.
    app.add_middleware(LimitMiddleware, settings=settings, metrics=state.metrics)
    app.add_middleware(GuardMiddleware, settings=settings, tokens=state.tokens)
    app.add_middleware(ObserveMiddleware, metrics=state.metrics)
    return app
