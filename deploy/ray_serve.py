"""The service as a Ray Serve application: as many copies as Ray starts, each with its own engine.

    EAGLENET_STORE=/mnt/store EAGLENET_TOKEN=... serve run deploy.ray_serve:application

``EAGLENET_SHARDS=URL,URL`` makes every copy a front of shards. Needs ``ray[serve]``.
"""

from __future__ import annotations

import os

from ray import serve
from starlette.types import ASGIApp

from eaglenet.user_folders import default_store
from eaglenet.search.engine import Engine
from eaglenet.search.store.base import open_store
from eaglenet.serve.app import create_app
from eaglenet.serve.service_settings import Settings
from eaglenet.serve.shards_front import ShardScan


def make_app() -> ASGIApp:
    """Built in the copy itself: engines do not travel."""
    token = os.environ["EAGLENET_TOKEN"]
    store = open_store(default_store())
    urls = [url for url in os.environ.get("EAGLENET_SHARDS", "").split(",") if url]
    scan = ShardScan(urls, store.manifest.identity, token=token) if urls else None
    engine = Engine(store, scan=scan)
    engine.warm_up()
    return create_app(engine, Settings(token=token, local=False))


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})
@serve.ingress(make_app)
class Search:
    """One copy of the service."""


application = Search.bind()
