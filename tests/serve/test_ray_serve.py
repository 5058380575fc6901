"""The application of Ray Serve, with a stand-in for the package: what copies are handed works."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from demo_store import DemoStore
from fastapi.testclient import TestClient

from eaglenet.core.errors import UsageError

SCRIPT = Path(__file__).parents[2] / "deploy" / "ray_serve.py"
TOKEN = "a-token-that-only-the-driver-knows"


class Bound:
    """What ``Deployment.bind()`` gives."""

    def __init__(self, make_app: Callable[[], Any], options: dict[str, Any]) -> None:
        self.make_app, self.options = make_app, options


class Deployment:
    """A class that Ray would start copies of."""

    def __init__(self, wrapped: Any, options: dict[str, Any]) -> None:
        self.wrapped, self.options = wrapped, options

    def bind(self) -> Bound:
        return Bound(self.wrapped.make_app, self.options)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, loaded as Ray loads it; it and its variables are not on the cluster."""
    ray = pytest.importorskip("ray")
    stand_in = ModuleType("ray.serve")

    def ingress(make_app: Any) -> Any:
        return lambda wrapped: type(wrapped.__name__, (), {"make_app": staticmethod(make_app)})

    def deployment(**options: Any) -> Any:
        return lambda wrapped: Deployment(wrapped, options)

    vars(stand_in).update(ingress=ingress, deployment=deployment, Application=Bound)
    monkeypatch.setitem(sys.modules, "ray.serve", stand_in)
    monkeypatch.setattr(ray, "serve", stand_in, raising=False)
    spec = importlib.util.spec_from_file_location("ray_serve_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_replicas_have_the_store_and_token_of_the_driver(
    script: Any, demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import cloudpickle

    monkeypatch.setenv("EAGLENET_STORE", str(demo.folder))
    monkeypatch.setenv("EAGLENET_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    bound = script.application({})
    assert bound.options["num_replicas"] == 2
    sent = cloudpickle.dumps(bound.make_app)
    for name in ("EAGLENET_STORE", "EAGLENET_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "that of the cluster")
    app = cloudpickle.loads(sent)()
    assert script.os.environ["AWS_REGION"] == "eu-north-1"
    with TestClient(app) as client:
        assert client.get("/health").status_code == 200
        question = {"params": {"q": "red"}}
        assert client.get("/api/search", **question).status_code == 401
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/search", **question, headers=allowed).status_code == 200
        client.post("/login", data={"token": TOKEN}, follow_redirects=False)
        cookies = dict(client.cookies)
    # Any copy may get the next request of a page.
    with TestClient(cloudpickle.loads(sent)(), cookies=cookies) as other:
        assert other.get("/api/search", **question).status_code == 200


def test_arguments_override_variables(
    script: Any, demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLENET_STORE", "/no/such/store")
    monkeypatch.setenv("EAGLENET_TOKEN", "another")
    bound = script.application({"store": str(demo.folder), "token": TOKEN})
    with TestClient(bound.make_app()) as client:
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/search", params={"q": "red"}, headers=allowed).status_code == 200


def test_service_without_a_token_is_refused(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EAGLENET_TOKEN", raising=False)
    with pytest.raises(UsageError, match="EAGLENET_TOKEN is not set"):
        script.application({})
