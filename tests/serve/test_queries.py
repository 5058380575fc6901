"""Composed and temporal queries, and confidence, over HTTP."""

import pytest
from fastapi.testclient import TestClient

from eaglenet.encoders.catalogue import CARDS
from eaglenet.search.confidence import FEATURES, Calibration
from eaglenet.search.engine import Engine


def test_steps_over_http_are_those_of_the_engine(client: TestClient, engine: Engine) -> None:
    query = '"red" then "blue"'
    answer = client.get("/api/search", params={"q": query, "k": 3})
    assert answer.status_code == 200, answer.text
    hits = answer.json()["hits"]
    assert [hit["clip_id"] for hit in hits] == [hit.clip_id for hit in engine.search(query, k=3)]
    assert [step["query"] for step in hits[0]["steps"]] == ['"red"', '"blue"']
    assert hits[0]["steps"][0]["best"] < hits[0]["steps"][1]["best"]


def test_parts_over_http_are_those_of_the_engine(client: TestClient, engine: Engine) -> None:
    query = '"2: red" - "blue"'
    hits = client.get("/api/search", params={"q": query, "k": 3}).json()["hits"]
    assert [hit["clip_id"] for hit in hits] == [hit.clip_id for hit in engine.search(query, k=3)]
    assert hits[0]["steps"] == []


def test_bad_queries_are_answered_with_their_reason(client: TestClient) -> None:
    for query, reason in (
        ('"red" + /etc/secret.jpg', "upload"),
        ('- "red" - "blue"', "subtracted"),
        ('"red" then "blue" within soon', "duration"),
    ):
        answer = client.get("/api/search", params={"q": query})
        assert answer.status_code == 422, answer.text
        assert reason in answer.json()["error"]["message"]


def test_a_model_that_was_not_measured_says_so(client: TestClient) -> None:
    hit = client.get("/api/search", params={"q": "red", "k": 1}).json()["hits"][0]
    assert (hit["confidence"], hit["match"]) == (None, "not measured")


def test_a_query_in_another_language_gets_a_hint(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CARDS, engine.manifest.model, CARDS["small"])
    queries = ["ein roter Ball", "a red ball"]
    results = client.post("/api/search", json={"queries": queries}).json()["results"]
    assert ["German" in result["language_hint"] for result in results] == [True, False]


def test_a_negation_gets_a_hint_and_the_query_that_means_it(client: TestClient) -> None:
    queries = ["a ball but no girl", "a red ball"]
    results = client.post("/api/search", json={"queries": queries}).json()["results"]
    advice, none = (result["negation"] for result in results)
    assert (advice["text"], advice["negatives"], none) == ("a ball", ["girl"], None)
    assert advice["reason"].startswith("'no' hardly matters to a model")
    assert advice["query"] == '"a ball" - "girl"'
    for change in ({"negative": "girl"}, {"literal": "true"}, {"in": "speech"}):
        answer = client.get("/api/search", params={"q": queries[0], **change})
        assert answer.json()["negation"] is None


def test_an_unknown_parameter_is_answered_with_those_that_exist(client: TestClient) -> None:
    asked = client.get("/api/search", params={"q": "red", "kk": 3})
    sent = client.post("/api/search", json={"queries": ["red"], "kk": 3})
    for answer, name in ((asked, "q"), (sent, "queries")):
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert "kk" in error["message"]
        known = error["hint"].removeprefix("known: ").split(", ")
        assert {name, "k", "path", "in"} <= set(known)


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([7], "body.queries.0 should be a text or an object"),
        (["red", [""]], "body.queries.1 should be a text or an object"),
        ([""], "body.queries.0 should have at least 1 character"),
        (["red", " "], "body.queries.1 should be a text with a visible character"),
    ],
)
def test_a_wrong_query_of_a_list_is_explained_without_names_of_the_schema(
    client: TestClient, queries: list[object], message: str
) -> None:
    answer = client.post("/api/search", json={"queries": queries})
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, message)


def test_a_wrong_parameter_is_explained_without_its_pattern(client: TestClient) -> None:
    for name, value, meaning in (
        ("q", " ", "a text with a visible character"),
        ("within", "far", "a distance, like 5km, 800m or 3mi"),
    ):
        answer = client.get("/api/search", params={"q": "red", name: value})
        assert answer.status_code == 422
        assert answer.json()["error"]["message"] == f"query.{name} should be {meaning}"


def test_a_least_confidence_needs_a_measured_model(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = client.get("/api/search", params={"q": "red", "min_confidence": 0.3})
    assert (refused.status_code, "not measured" in refused.text) == (422, True)
    assert client.get("/api/info").json()["confidence_measured"] is False
    for value in (-1, 1.5, "nan", "high"):
        assert client.get("/api/search?q=red", params={"min_confidence": value}).status_code == 422
    sent = {"queries": ["red"], "min_confidence": "0.5"}
    assert client.post("/api/search", json=sent).status_code == 422
    weights = {**dict.fromkeys(FEATURES, 0.0), "score": 3.0}
    calibration = Calibration(
        engine.manifest.identity, str(engine.snapshot.hubness_bank), 30.0, weights
    )
    monkeypatch.setattr(Engine, "_load_calibration", lambda self, view: calibration)
    # Hits of this store have no confidence, because it has no hubness offsets.
    body = client.get("/api/search", params={"q": "red"}).json()
    assert body["hits"]
    assert body["note"] == ""
    asked = {"q": "red", "min_confidence": 0.1}
    assert client.get("/api/search", params=asked).json()["hits"] == []
    notice = "confidence was not measured for so few clips ("
    few = client.get("/api/search", params={"q": "red", "path": "beach"}).json()
    assert few["hits"]
    assert few["note"].startswith(notice)
    none = client.get("/api/search", params={**asked, "path": "beach"}).json()
    assert none["hits"] == []
    assert f"; {notice}" in none["note"]
    sent = {"queries": ["red", "\u200b"], "path": "beach"}
    results = client.post("/api/search", json=sent).json()["results"]
    assert [result["note"].startswith(notice) for result in results] == [True, False]


def test_a_text_that_is_longer_than_the_model_reads_has_a_note(
    client: TestClient, engine: Engine
) -> None:
    queries = ["a red ball " * 50, "a red ball"]
    results = client.post("/api/search", json={"queries": queries}).json()["results"]
    assert ["is longer than the model reads" in result["note"] for result in results] == [
        True, False,
    ]  # fmt: skip
