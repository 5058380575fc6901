"""Searching with a picture or a video that is sent."""

import io
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image, features
from slow_decoding import decode_slowly

from eaglenet.search.engine import Engine
from eaglenet.search.query import Query
from eaglenet.serve import readers
from eaglenet.serve.app import create_app
from eaglenet.serve.problems import Problem
from eaglenet.serve.readers import UploadFolder
from eaglenet.serve.settings import Settings


@pytest.fixture(scope="module")
def open_client(engine: Engine) -> Iterator[TestClient]:
    """A client of a service that takes uploads."""
    settings = Settings(allow_uploads=True, max_upload_bytes=400_000)
    with TestClient(create_app(engine, settings), base_url="http://localhost") as client:
        yield client


def test_nothing_can_be_uploaded_unless_allowed(client: TestClient) -> None:
    answer = client.post("/api/search/image", content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "uploads_off")
    assert "--allow-uploads" in answer.json()["error"]["hint"]
    assert "/api/search/image" not in client.get("/openapi.json").json()["paths"]
    assert client.get("/api/info").json()["uploads"] is False


def test_a_picture_and_a_video_find_what_they_show(
    open_client: TestClient, engine: Engine, clip_id: str
) -> None:
    path = engine.file_of(clip_id)
    found = open_client.post("/api/search/video", content=path.read_bytes(), params={"k": 3})
    expected = [hit.clip_id for hit in engine.search(Query(video=path), k=3)]
    assert [hit["clip_id"] for hit in found.json()["hits"]] == expected
    picture = engine.thumbnail(clip_id)
    found = open_client.post("/api/search/image", content=picture, params={"k": 2})
    assert found.status_code == 200
    assert len(found.json()["hits"]) == 2


def test_a_cancelled_upload_is_no_error_of_the_service(
    open_client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [{"type": "http.request", "body": b"abc", "more_body": True}]
    responses = []

    async def receive() -> dict[str, object]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        responses.append(message)

    path = "/api/search/image"
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": None,
    }  # fmt: skip
    assert open_client.portal is not None
    open_client.portal.call(open_client.app, scope, receive, send)
    assert responses[0]["status"] == 499
    assert not caplog.records
    assert 'status="499"' in open_client.get("/metrics").text


def test_bad_uploads_are_refused_without_telling_where_they_lay(open_client: TestClient) -> None:
    for content in (b"", b"not a picture", b"\xff\xd8\xff" + bytes(100)):
        for kind in ("image", "video"):
            answer = open_client.post(f"/api/search/{kind}", content=content)
            assert answer.status_code == (415 if content else 422), answer.text
            assert "/tmp" not in answer.text
    assert open_client.post("/api/search/image", content=bytes(400_001)).status_code == 413


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_damaged_pictures_are_refused_or_searched_with(open_client: TestClient, kind: str) -> None:
    """Never a fault of the service, whatever a decoder makes of them."""
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow writes no AVIF")
    chance = random.Random(kind)
    buffer = io.BytesIO()
    Image.frombytes("RGB", (32, 24), chance.randbytes(32 * 24 * 3)).save(buffer, kind)
    statuses = {open_client.post("/api/search/image", content=buffer.getvalue()).status_code}
    assert statuses == {200}
    for _ in range(8):
        content = bytearray(buffer.getvalue())
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        if chance.random() < 0.3:
            del content[chance.randrange(20, len(content)) :]
        statuses.add(open_client.post("/api/search/image", content=bytes(content)).status_code)
    assert statuses <= {200, 415}


def test_a_form_is_told_how_to_send_the_file(open_client: TestClient) -> None:
    """As ``curl -F picture=@FILE`` sends it."""
    answer = open_client.post("/api/search/image", files={"picture": b"\xff\xd8\xff"})
    assert answer.status_code == 415
    assert "--data-binary" in answer.json()["error"]["hint"]


def test_searches_do_not_wait_for_an_upload_that_never_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglenet.serve.readers.decode_query", decode_slowly)
    app = create_app(engine, Settings(allow_uploads=True, timeout=60.0))
    with TestClient(app, base_url="http://localhost") as client, ThreadPoolExecutor(1) as pool:
        upload = pool.submit(client.post, "/api/search/video", content=b"film")
        time.sleep(0.5)
        assert client.get("/api/search?q=red&k=1").status_code == 200
        assert not upload.done()
        app.state.service.uploads.stop()
        assert upload.result(60).status_code == 503


def test_an_upload_that_never_ends_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglenet.serve.readers.decode_query", decode_slowly)
    app = create_app(engine, Settings(allow_uploads=True, timeout=1.0))
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.post("/api/search/video", content=b"film")
        assert answer.status_code in (415, 504)


def test_a_slow_upload_does_not_hold_up_another(
    engine: Engine, clip_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglenet.serve.readers.decode_query", decode_slowly)
    app = create_app(engine, Settings(allow_uploads=True, timeout=60.0))
    image = engine.thumbnail(clip_id)
    with TestClient(app, base_url="http://localhost") as client, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, "/api/search/video", content=b"film")
        assert client.post("/api/search/image", content=image).status_code == 200
        assert client.post("/api/search/image", content=image).status_code == 200
        # A third of the same client would leave too few for others.
        more = pool.submit(client.post, "/api/search/video", content=b"film")
        time.sleep(0.5)
        assert not slow.done()
        app.state.service.uploads.stop()
        assert slow.result(30).status_code == 503
        assert more.result(30).status_code == 503


def test_one_client_cannot_take_all_decoders(tmp_path: Path) -> None:
    place = UploadFolder(5.0, tmp_path)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(place.receive("greedy"))
        with pytest.raises(Problem, match="too many"):
            stack.enter_context(place.receive("greedy"))
        stack.enter_context(place.receive("other"))
    place.close()


def test_what_a_killed_service_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "eaglenet-uploads-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "upload").write_bytes(b"x")
    place = UploadFolder(5.0, tmp_path)
    assert not left.exists()
    other = UploadFolder(5.0, tmp_path)
    assert place.folder.exists()
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(place.receive(str(number)))
        with pytest.raises(Problem, match="too many"):
            stack.enter_context(place.receive("5"))
    place.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_two_services_that_start_at_once_have_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second looks for stale folders while the first has not locked its own yet."""
    lock, is_first = readers.try_lock, [True]

    def lock_late(descriptor: int) -> bool | None:
        if is_first:
            is_first.clear()
            readers._remove_stale_folders(tmp_path)
        return lock(descriptor)

    monkeypatch.setattr(readers, "try_lock", lock_late)
    place = UploadFolder(5.0, tmp_path)
    with place.receive() as upload:
        assert Path(upload.path).exists()
    place.close()
    assert list(tmp_path.iterdir()) == []
