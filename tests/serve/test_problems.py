"""Which error becomes which answer."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from eaglenet.core.errors import StoreError, UnreachableError
from eaglenet.serve.problems import add_handlers
from eaglenet.store.object_storage import ObjectError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ObjectError("s3://bucket/store/rows-1: 503"), "unreachable"),
        (UnreachableError("no shard of the store answers: a: cut"), "unreachable"),
        (StoreError("vectors-1: damaged"), "store"),
    ],
)
def test_storage_that_does_not_answer_is_told_from_a_damaged_store(
    error: Exception, code: str
) -> None:
    app = FastAPI()
    add_handlers(app)

    @app.get("/search")
    def search() -> None:
        raise error

    answer = TestClient(app).get("/search")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == code
    assert int(answer.headers["retry-after"]) > 0
    assert "bucket" not in answer.text  # Where a store lies is the service's own affair.
