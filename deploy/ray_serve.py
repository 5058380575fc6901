"""The service as a Ray Serve application: as many copies as Ray starts, each with its own engine.

    EAGLENET_STORE=/mnt/store EAGLENET_TOKEN=... serve run deploy.ray_serve:application

``EAGLENET_SHARDS=URL,URL`` makes every copy a front of shards. Needs ``ray[serve]``. The variables
are read where this is run, with those of object storage: copies on a cluster do not know them. Any
copy may get the next request of a page, so all give the same cookie for the token.
"""

from __future__ import annotations

import os
import secrets

from ray import serve
from starlette.types import ASGIApp

from eaglenet.errors import UsageError
from eaglenet.search.indexing.cluster import storage_variables
from eaglenet.user_folders import default_store


def application(arguments: dict[str, str]) -> serve.Application:
    """Called by Ray; ``arguments`` (``store``, ``token``, ``shards``) stand before variables."""
    store = arguments.get("store") or default_store()
    token = arguments.get("token") or os.environ.get("EAGLENET_TOKEN")
    shards = arguments.get("shards") or os.environ.get("EAGLENET_SHARDS", "")
    urls = [url for url in shards.split(",") if url]
    storage = storage_variables()
    session = os.environ.get("EAGLENET_SESSION") or secrets.token_urlsafe(32)
    if not token:
        raise UsageError("EAGLENET_TOKEN is not set; set it to a long random text")

    def make_app() -> ASGIApp:
        """Run in the copy itself: engines do not travel. All that it needs is imported there."""
        os.environ.update(storage)
        from eaglenet.search.engine import Engine
        from eaglenet.search.store.base import open_store
        from eaglenet.serve.app import create_app
        from eaglenet.serve.service_settings import Settings
        from eaglenet.serve.shards_front import ShardScan

        opened = open_store(store)
        scan = ShardScan(urls, opened.manifest.identity, token=token) if urls else None
        engine = Engine(opened, scan=scan)
        engine.warm_up()
        return create_app(engine, Settings(token=token, session=session, local=False))

    @serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})
    @serve.ingress(make_app)
    class Search:
        """One copy of the service."""

    return Search.bind()
