"""The service as a Ray Serve application with several replicas.

    EAGLENET_STORE=/mnt/store EAGLENET_TOKEN=... serve run deploy.ray_serve:application

``EAGLENET_SHARDS=URL,URL`` makes every replica a front of shards. Needs ``ray[serve]``. Variables
are read where this runs, including those for object storage, and passed to the replicas. Any
replica may get the next request of a page, so all of them use the same session cookie.
"""

from __future__ import annotations

import os
import secrets

from ray import serve
from starlette.types import ASGIApp

from eaglenet.cluster.ray_executor import storage_variables
from eaglenet.core.errors import UsageError
from eaglenet.core.platform import default_store


def application(arguments: dict[str, str]) -> serve.Application:
    """Build the application; ``arguments`` (store, token, shards) override variables."""
    store = arguments.get("store") or default_store()
    token = arguments.get("token") or os.environ.get("EAGLENET_TOKEN")
    shards = arguments.get("shards") or os.environ.get("EAGLENET_SHARDS", "")
    urls = [url for url in shards.split(",") if url]
    storage = storage_variables()
    session = os.environ.get("EAGLENET_SESSION") or secrets.token_urlsafe(32)
    if not token:
        raise UsageError("EAGLENET_TOKEN is not set; set it to a long random text")

    def make_app() -> ASGIApp:
        """Runs in each replica, because engines cannot be pickled; imports what it needs there."""
        os.environ.update(storage)
        from eaglenet.cluster.shard_front import ShardScan
        from eaglenet.search.engine import Engine
        from eaglenet.serve.app import create_app
        from eaglenet.serve.settings import Settings
        from eaglenet.store.store import open_store

        opened = open_store(store)
        scan = ShardScan(urls, opened.manifest.identity, token=token) if urls else None
        engine = Engine(opened, scan=scan)
        engine.warm_up()
        return create_app(engine, Settings(token=token, session=session, local=False))

    @serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})
    @serve.ingress(make_app)
    class Search:
        """One replica of the service."""

    return Search.bind()
