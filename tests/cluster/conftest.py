"""Object storage on this machine, and a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglenet.cluster import bucket
from object_storage import Gate, MemoryGate

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))


@pytest.fixture(scope="session")
def storage() -> Iterator[Gate]:
    """Object storage behind a gate that can fail."""
    pytest.importorskip("obstore")
    gate = MemoryGate().open()
    yield gate
    gate.close()


@pytest.fixture
def location(
    storage: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> Iterator[str]:
    """A URL of its own for every test, with a cache of its own."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": storage.url,
        "EAGLENET_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket, "FRESH_SECONDS", 0.0)
    storage.choose = lambda method, path: None
    yield f"s3://bucket/{abs(hash(request.node.nodeid))}"
    storage.choose = lambda method, path: None
