"""The judge of a service: set by who runs it, never by a request, and never in anyone's way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from fastapi.testclient import TestClient

from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.serve import state as judging
from eaglenet.serve.app import create_app
from eaglenet.serve.settings import Settings
from stand_in_chat import StandInChat, serve_chat


@pytest.fixture
def chat() -> Iterator[StandInChat]:
    with serve_chat(lambda question, handler: '{"match": 4}') as server:
        yield server


def client_of(engine: Engine, judge: str) -> TestClient:
    # A judge may use half of the time of a request; to start a decoder takes seconds at times.
    app = create_app(engine, Settings(judge=judge, timeout=1200.0))
    return TestClient(app, base_url="http://localhost")


def test_first_results_carry_the_number_of_the_judge(engine: Engine, chat: StandInChat) -> None:
    with client_of(engine, judge=f"{chat.url}#first") as client:
        body = client.get("/api/search", params={"q": "a red ball", "k": 12}).json()
        assert [hit["judge_score"] for hit in body["hits"][:10]] == [4] * len(body["hits"][:10])
        assert all(hit["judge_score"] is None for hit in body["hits"][10:])
        assert body["note"] == ""
        count = len(chat.questions)
        assert count == len(body["hits"][:10])
        # Several texts would take too long, and other addresses cannot be named.
        client.post("/api/search", json={"queries": ["red", "blue"]}).raise_for_status()
        refusal = client.get("/api/search", params={"q": "red", "judge": "http://127.0.0.1:1"})
        assert refusal.status_code == 422
        assert len(chat.questions) == count


def test_slow_judge_delays_nobody_else(
    engine: Engine, chat: StandInChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "MAX_JUDGED", 1)
    monkeypatch.setattr(judging, "TIMEOUT", 300.0)
    release, asked = threading.Event(), threading.Event()

    def reply(question: dict[str, Any], handler: BaseHTTPRequestHandler) -> str:
        asked.set()
        release.wait(300)
        return '{"match": 4}'

    chat.reply = reply
    notes: list[str] = []
    with client_of(engine, judge=f"{chat.url}#slow") as client:

        def search() -> None:
            notes.append(
                client.get("/api/search", params={"q": "a blue box", "k": 2}).json()["note"]
            )

        first = threading.Thread(target=search)
        first.start()
        try:
            assert asked.wait(300)
            body = client.get("/api/search", params={"q": "a green box"}).json()
            assert body["note"] == judging.BUSY
            assert body["hits"]
            assert notes == [], "the first one still waits for the judge"
        finally:
            release.set()
            first.join()
        assert notes == [""]
        # The slot is free again.
        body = client.get("/api/search", params={"q": "a green box", "k": 1}).json()
        assert body["hits"][0]["judge_score"] == 4


def test_wrong_address_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="not the address of a chat server"):
        Settings(judge="file:///etc/passwd")


def test_descriptions_can_be_searched_alone(client: TestClient) -> None:
    """This store has none."""
    answer = client.get("/api/search", params={"q": "a red ball", "in": "descriptions"})
    assert (answer.status_code, answer.json()["hits"]) == (200, [])
    assert "descriptions" in client.get("/").text
