"""The HTTP service answers as the engine does."""

import csv
import io
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from demo_store import HOSTILE_NAME, SCENES, DemoStore
from fastapi.testclient import TestClient

from eaglenet.search.engine import Engine
from eaglenet.search.query import Query


def test_a_search_over_http_gives_what_the_engine_gives(client: TestClient, engine: Engine) -> None:
    body = client.get("/api/search", params={"q": "a red ball", "k": 5}).json()
    hits = engine.search("a red ball", k=5)
    assert [hit["clip_id"] for hit in body["hits"]] == [hit.clip_id for hit in hits]
    assert [hit["rank"] for hit in body["hits"]] == [1, 2, 3, 4, 5]
    first = body["hits"][0]
    assert first["score"] == pytest.approx(hits[0].score, abs=1e-6)
    assert first["path"] == hits[0].path
    assert first["moment"]["start"] <= first["moment"]["best"] <= first["moment"]["end"]
    assert body["milliseconds"] > 0


def test_several_queries_in_one_request(client: TestClient) -> None:
    queries = ["a red ball", "\u200b\u200e", "a blue square"]
    body = client.post("/api/search", json={"queries": queries, "k": 3}).json()
    assert [result["query"] for result in body["results"]] == queries
    assert [len(result["hits"]) for result in body["results"]] == [3, 0, 3]
    alone = client.get("/api/search", params={"q": "a blue square", "k": 3}).json()
    together = [hit["clip_id"] for hit in body["results"][2]["hits"]]
    assert together == [hit["clip_id"] for hit in alone["hits"]]


def test_filters_that_no_file_can_meet_are_refused(client: TestClient) -> None:
    for bounds in (
        {"min_duration": 5, "max_duration": 1},
        {"after": "2026-05-31", "before": "2026-05-01"},
    ):
        answer = client.get("/api/search", params={"q": "red", **bounds})
        assert answer.status_code == 422
        assert "swap" in answer.json()["error"]["message"]
    answer = client.get("/api/search", params={"q": "red", "near": "91,0"})
    assert answer.status_code == 422
    assert "'91,0' is not a place" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"q": "red", "k": 0}, 422),
        ({"q": "red", "kk": 1}, 422),
        ({"q": "red", "after": "soon"}, 422),
        ({"q": "red", "within": "5km"}, 422),
        ({"q": "red", "near": "48.1,200"}, 422),
        ({"q": "red", "min_confidence": 0.5}, 422),
        ({"q": '"red" then "blue" within soon'}, 422),
        ({"q": "red", "near": "Atlantis"}, 404),
        ({"q": 'clip:ffffffff-1 + "red"'}, 404),
    ],
)
def test_a_wrong_value_is_422_and_what_is_not_here_is_404(
    client: TestClient, parameters: dict[str, object], status: int
) -> None:
    answer = client.get("/api/search", params=parameters)
    assert (answer.status_code, answer.json()["error"]["code"]) == (
        status,
        "invalid" if status == 422 else "not_found",
    )


def test_head_answers_like_get_without_a_body(client: TestClient, clip_id: str) -> None:
    for name in ("thumbnail", "frame"):
        got, asked = (
            getattr(client, method)(f"/api/clips/{clip_id}/{name}") for method in ("get", "head")
        )
        assert (asked.status_code, got.status_code) == (200, 200)
        for header in ("content-type", "content-length", "cache-control"):
            assert asked.headers[header] == got.headers[header]
        unknown = f"/api/clips/ffffffff-1/{name}"
        assert client.head(unknown).status_code == client.get(unknown).status_code == 404


def test_filters_negatives_and_groups_reach_the_engine(client: TestClient, engine: Engine) -> None:
    def names(**parameters: object) -> set[str]:
        answer = client.get("/api/search", params={"q": "red", "k": 50, **parameters})
        assert answer.status_code == 200, answer.text
        return {hit["path"].split("/")[-2] for hit in answer.json()["hits"]}

    assert names() == {"beach", "town"}
    assert names(path="beach") == {"beach"}
    assert names(path="*/town/*") == {"town"}
    assert names(min_duration=3600) == set()
    assert names(before="2001-02-03") == set()
    assert names(after="2001-02-03T04:05:06Z") == {"beach", "town"}
    assert names(tag="nowhere") == set()
    empty = client.get("/api/search", params={"q": "red", "tag": "nowhere"}).json()
    assert empty["note"].endswith("has the tag 'nowhere'")
    assert client.get("/api/search", params={"q": "red"}).json()["note"] == ""
    odd = client.get("/api/search", params={"q": "red", "k": 50, "tag": "odd"}).json()["hits"]
    assert {tag for hit in odd for tag in hit["tags"]} == {"odd"}
    grouped = client.get("/api/search", params={"q": "red", "k": 50, "group": True}).json()["hits"]
    assert len({hit["path"] for hit in grouped}) == len(grouped) == SCENES
    body = client.get("/api/search", params={"q": "red", "negative": ["blue", "green"]}).json()
    expected = engine.search(Query("red", negatives=("blue", "green")), k=24)
    assert [hit["clip_id"] for hit in body["hits"]] == [hit.clip_id for hit in expected]


def test_similar_moments_are_in_other_files(
    client: TestClient, engine: Engine, clip_id: str
) -> None:
    body = client.get(f"/api/similar/{clip_id}", params={"k": 4}).json()
    assert len(body["hits"]) == 4
    assert engine.file_of(clip_id).name not in {hit["name"] for hit in body["hits"]}


def test_a_clip_its_picture_and_the_store_are_described(
    client: TestClient, engine: Engine, clip_id: str
) -> None:
    body = client.get(f"/api/clips/{clip_id}").json()
    assert (body["start"], body["end"]) == engine.span_of(clip_id)
    picture = client.get(body["thumbnail"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content == engine.thumbnail(clip_id)
    assert picture.content.startswith(b"\xff\xd8")
    short_id = engine.short_id(clip_id)
    assert len(short_id) < len(clip_id)
    assert client.get(f"/api/clips/{short_id}").json() == body
    assert client.get(f"/api/similar/{short_id}").status_code == 200
    short = client.get(f"/api/clips/{short_id}/thumbnail")
    assert (short.content, short.headers["cache-control"]) == (picture.content, "no-store")
    assert "max-age" in picture.headers["cache-control"]
    assert client.get("/api/clips/012-0").status_code == 422
    frames = [client.get(f"/api/clips/{clip_id}/frame?side={side}") for side in (640, 640, 1600)]
    assert [frame.status_code for frame in frames] == [200, 200, 200]
    sides = [max(PIL.Image.open(io.BytesIO(frame.content)).size) for frame in frames]
    assert sides[0] == sides[2] == max(body["width"], body["height"])  # Never enlarged.
    info = client.get("/api/info").json()
    assert info["files"] == SCENES
    assert info["tags"] == ["even", "odd"]
    assert client.get("/health").json() == {"status": "ok"}
    assert [client.head(address).status_code for address in ("/health", "/")] == [200, 200]


def test_selected_moments_are_written_as_timelines(client: TestClient, clip_id: str) -> None:
    moment = {"clip_id": clip_id, "start": 0.5, "end": 1.5, "score": 0.3, "confidence": 0.9}
    body = {"moments": [moment, {**moment, "start": 0.0}], "title": "=red, blue"}
    path = client.get(f"/api/clips/{clip_id}").json()["path"]
    for kind in ("csv", "edl", "fcpxml", "xml", "otio", "m3u8", "srt"):
        answer = client.post("/api/export", json={**body, "format": kind})
        assert answer.status_code == 200, answer.text
        assert f'filename="moments.{kind}"' in answer.headers["content-disposition"]
        assert ".mp4" in answer.text
        if kind == "csv":
            rows = list(csv.DictReader(io.StringIO(answer.text)))
            assert [row["path"] for row in rows] == [path, path]
            assert [float(row["start_seconds"]) for row in rows] == [0.5, 0.0]
            assert (rows[0]["query"], rows[0]["confidence"]) == ("'=red, blue", "0.9000")


@pytest.mark.parametrize(
    ("status", "change"),
    [
        (422, {"moments": []}),
        (422, {"format": "exe"}),
        (422, {"path": "/etc/passwd"}),
        (422, {"moments": [{"clip_id": "../../etc/passwd", "start": 0, "end": 1}]}),
        (422, {"moments": [{"clip_id": "0" * 16 + "-0", "start": 0, "end": "inf"}]}),
        (422, {"moments": [{"clip_id": "0" * 16 + "-0", "start": 0, "end": 1}] * 201}),
        (404, {"moments": [{"clip_id": "0" * 16 + "-0", "start": 0, "end": 1}]}),
    ],
)
def test_bad_exports_are_refused(client: TestClient, status: int, change: dict[str, Any]) -> None:
    body = {"format": "edl", "moments": [{"clip_id": "0" * 16 + "-1", "start": 0, "end": 1}]}
    assert client.post("/api/export", json={**body, **change}).status_code == status


def test_exported_moments_are_inside_their_file(client: TestClient, clip_id: str) -> None:
    duration = client.get(f"/api/clips/{clip_id}").json()["duration"]
    last = duration - 0.25

    def export(start: float, end: float) -> tuple[int, str]:
        moments = [{"clip_id": clip_id, "start": 0, "end": 1}]
        moments.append({"clip_id": clip_id, "start": start, "end": end})
        answer = client.post("/api/export", json={"moments": moments, "format": "csv"})
        return answer.status_code, answer.text

    status, text = export(1.5, 0.5)
    assert status == 422
    assert "body.moments.1: 1.5 to 0.5 s ends before it starts" in text
    status, text = export(duration + 1, duration + 9)
    assert status == 422
    assert f"is outside this file, which lasts {duration:.2f} s" in text
    # Rounded times of hits and links are cut at the end of the file.
    for start, end in [(last, duration + 0.01), (duration, duration), (duration + 0.05, 1e4)]:
        status, text = export(start, end)
        assert status == 200, text
        assert float(list(csv.DictReader(io.StringIO(text)))[1]["end_seconds"]) <= duration + 0.01


def test_metrics_count_requests_by_route_and_not_by_address(
    client: TestClient, clip_id: str
) -> None:
    client.get(f"/api/clips/{clip_id}")
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    route = 'eaglenet_requests_total{method="GET",route="/api/clips/{clip_id}",status="200"}'
    assert route in text
    assert 'route="other",status="404"' in text
    assert f"eaglenet_clips {float(client.get('/api/info').json()['clips'])}" in text
    assert "eaglenet_batch_queries_bucket" in text
    assert clip_id not in text


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/search", 422, "invalid"),
        ("/api/search?q=", 422, "invalid"),
        ("/api/search?q=%20%09", 422, "invalid"),
        ("/api/search?q=%00%1f%7f", 422, "invalid"),
        ("/api/search?q=red&negative=%00", 422, "invalid"),
        ("/api/search?q=red&k=0", 422, "invalid"),
        ("/api/search?q=red&k=201", 422, "invalid"),
        ("/api/search?q=red&k=ten", 422, "invalid"),
        ("/api/search?q=red&after=yesterday", 422, "invalid"),
        ("/api/search?q=red&after=0", 422, "invalid"),
        ("/api/search?q=red&min_duration=nan", 422, "invalid"),
        ("/api/search?q=red&pathh=x", 422, "invalid"),
        ("/api/search?q=" + "x" * 1001, 422, "invalid"),
        ("/api/search?q=red&path=" + "*a" * 200, 422, "invalid"),
        ("/api/search?q=red" + "&negative=blue" * 9, 422, "invalid"),
        ("/api/clips/0000000000000000-0", 404, "not_found"),
        ("/api/similar/0000000000000000-0", 404, "not_found"),
        ("/api/clips/0000000000000000-0/video", 404, "not_found"),
        ("/api/clips/0000000000000000-0/frame", 404, "not_found"),
        ("/api/clips/0000000000000000-0/frame?side=641", 422, "invalid"),
        ("/api/clips/none", 422, "invalid"),
        ("/docs", 404, "not_found"),
    ],
)
def test_errors_have_one_shape(client: TestClient, path: str, status: int, code: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == code
    assert error["message"]
    assert error["hint"]


def test_a_body_as_curl_sends_it_is_told_the_header_it_lacks(client: TestClient) -> None:
    for kind in (
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {},
    ):
        answer = client.post("/api/search", content=b"q=red", headers=kind)
        assert answer.status_code == 400
        assert "Content-Type: application/json" in answer.json()["error"]["hint"]


def test_wrong_methods_and_bodies_have_the_same_shape(client: TestClient) -> None:
    refused = client.delete("/api/search")
    assert refused.json()["error"]["code"] == "method_not_allowed"
    assert refused.headers["allow"] == "GET, POST"
    for name, value in {"k": "5", "group": "yes", "min_duration": True, "after": 0}.items():
        body = {"queries": ["red"], name: value}
        assert client.post("/api/search", json=body).status_code == 422, name
    contents = {
        b"{": 400,
        b"\xff\xfe": 400,
        b"[" * 60_000: 400,
        b'{"queries": ["\\ud800"]}': 422,
        b"null": 422,
    }
    for content, status in contents.items():
        answer = client.post(
            "/api/search", content=content, headers={"content-type": "application/json"}
        )
        assert answer.status_code == status, content[:20]
        assert set(answer.json()["error"]) == {"code", "message", "hint"}


def test_dates_at_the_ends_of_time_are_taken(client: TestClient) -> None:
    parameters = {"q": "red", "after": "0001-01-01", "before": "9999-12-31T23:59:59"}
    assert client.get("/api/search", params=parameters).json()["hits"]


def test_names_that_look_like_markup_stay_text(client: TestClient, demo: DemoStore) -> None:
    hits = client.get("/api/search", params={"q": "red", "k": 50}).json()["hits"]
    assert HOSTILE_NAME in {hit["name"] for hit in hits}


def test_errors_of_the_table_of_places_do_not_say_where_it_is(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "towns.txt"
    monkeypatch.setenv("EAGLENET_PLACES", str(table))
    for content in (None, "", "Munich\n"):
        if content is not None:
            table.write_text(content, "utf-8")
        answer = client.get("/api/search", params={"q": "red", "near": "Munich"})
        assert answer.status_code == 404
        assert "towns.txt" in answer.text
        assert str(tmp_path) not in answer.text
