from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.settings import Settings


@pytest.fixture(scope="module")
def open_client(engine: Engine) -> Iterator[TestClient]:
    settings = Settings(allow_uploads=True, max_upload_bytes=400_000)
    with TestClient(create_app(engine, settings), base_url="http://localhost") as client:
        yield client


def test_nothing_can_be_uploaded_unless_allowed(client: TestClient) -> None:
    assert client.post("/api/search/image", content=b"x").status_code == 404
    assert "/api/search/image" not in client.get("/openapi.json").json()["paths"]
    assert client.get("/api/info").json()["uploads"] is False


def test_a_picture_and_a_video_find_what_they_show(
    open_client: TestClient, engine: Engine, clip_id: str
) -> None:
    path = engine.file_of(clip_id)
    found = open_client.post("/api/search/video", content=path.read_bytes(), params={"k": 3})
    expected = [hit.clip_id for hit in engine.search_video(path, k=3)]
    assert [hit["clip_id"] for hit in found.json()["hits"]] == expected
    picture = engine.thumbnail(clip_id)
    found = open_client.post("/api/search/image", content=picture, params={"k": 2})
    assert found.status_code == 200
    assert len(found.json()["hits"]) == 2


def test_bad_uploads_are_refused_without_telling_where_they_lay(open_client: TestClient) -> None:
    for content in (b"", b"not a picture", b"\xff\xd8\xff" + bytes(100)):
        for kind in ("image", "video"):
            answer = open_client.post(f"/api/search/{kind}", content=content)
            assert answer.status_code == 400, answer.text
            assert "/tmp" not in answer.text
    assert open_client.post("/api/search/image", content=bytes(400_001)).status_code == 413
