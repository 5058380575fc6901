"""How much a client may ask for, and how it is told."""

import asyncio
import functools
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from loops import run_apart
from starlette.responses import PlainTextResponse
from starlette.types import Message
from typer.testing import CliRunner

from eaglenet.cli.main import app as command
from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app
from eaglenet.serve.limits import MAX_CLIENTS, LimitMiddleware, ServiceMetrics, TokenBuckets
from eaglenet.serve.settings import FILE_SETTINGS, MAX_QUERIES, Settings, read_settings


def test_a_bucket_fills_with_time_and_each_client_has_its_own() -> None:
    now = 0.0
    buckets = TokenBuckets(rate=2, burst=3, clock=lambda: now)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b") == 0
    now = 0.5
    assert buckets.take("a") == 0
    assert buckets.take("a") == pytest.approx(0.5)
    now = 100.0
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    for number in range(2 * MAX_CLIENTS):
        buckets.take(f"client {number}")
    assert len(buckets._buckets) == MAX_CLIENTS


def test_too_fast_a_client_is_told_when_to_come_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the bucket would fill between two requests.
    stopped = functools.partial(TokenBuckets, clock=lambda: 0.0)
    monkeypatch.setattr("eaglenet.serve.limits.TokenBuckets", stopped)
    app = create_app(engine, Settings(search_rate=0.5, burst_seconds=8))
    with TestClient(app, base_url="http://localhost") as client:
        statuses = [client.get("/api/search?q=red&k=1").status_code for _ in range(6)]
        assert statuses == [200] * 4 + [429] * 2
        answer = client.get("/api/info")
        assert answer.json()["error"]["code"] == "rate_limited"
        assert answer.headers["retry-after"] == "2"
        assert client.get("/health").status_code == 200
        assert client.get("/static/style.css").status_code == 200


class HeldEngine:
    """An engine whose searches wait until told."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def search_many(self, *arguments: Any, **options: Any) -> Any:
        assert self.go.wait(60)
        return self._engine.search_many(*arguments, **options)


def held_requests(
    engine: Engine, settings: Settings, count: int, seconds: float = 0.3
) -> list[httpx.Response]:
    """``count`` searches at once; those still held after ``seconds`` are let go."""
    held = HeldEngine(engine)
    app = create_app(held, settings)  # type: ignore[arg-type]

    async def scenario() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            tasks = [
                asyncio.create_task(client.get("/api/search", params={"q": f"red {n}", "k": 2}))
                for n in range(count)
            ]
            await asyncio.wait(tasks, timeout=seconds)
            assert (await client.get("/health")).status_code == 200
            held.go.set()
            return await asyncio.gather(*tasks)

    return run_apart(scenario())


def test_too_many_at_once_are_turned_away_and_the_others_answered(engine: Engine) -> None:
    answers = held_requests(engine, Settings(max_searches=5), 8)
    assert [answer.status_code for answer in answers] == [200] * 5 + [503] * 3
    assert answers[7].json()["error"]["code"] == "overloaded"
    assert answers[7].headers["retry-after"] == "1"
    assert all(len(answer.json()["hits"]) == 2 for answer in answers[:5])


def test_page_and_thumbnails_are_answered_while_searches_are_refused(
    engine: Engine, clip_id: str
) -> None:
    held = HeldEngine(engine)
    app = create_app(held, Settings(max_searches=1, max_other=0))  # type: ignore[arg-type]

    async def scenario() -> tuple[list[int], int, float]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            searches = [asyncio.create_task(client.get("/api/search?q=red&k=1")) for _ in range(9)]
            await asyncio.sleep(0.1)
            paths = ["/", "/health", "/static/style.css", f"/api/clips/{clip_id}/thumbnail"]
            answers = await asyncio.gather(*(client.get(path) for path in 20 * paths))
            began = asyncio.get_running_loop().time()
            other = await client.get("/api/info")
            pause = asyncio.get_running_loop().time() - began
            held.go.set()
            await asyncio.gather(*searches)
            return [answer.status_code for answer in answers], other.status_code, pause

    statuses, other, pause = run_apart(scenario())
    assert statuses == [200] * 80
    assert other == 503
    assert pause >= 0.9  # A client that does not wait is slowed down.


def test_an_answer_that_takes_too_long_is_given_up(engine: Engine) -> None:
    answers = held_requests(engine, Settings(timeout=0.1), 2, seconds=8)
    assert [answer.status_code for answer in answers] == [504, 504]
    assert answers[0].json()["error"]["code"] == "timeout"


async def reads(limited: LimitMiddleware, client: str, is_slow: bool = True) -> int:
    """The status of a video that a client asks for; a slow one takes its body never."""
    status = 0

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif is_slow and status == 200:
            await asyncio.sleep(1000)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    path = "/api/clips/a/video"
    scope = {"type": "http", "path": path, "method": "GET", "headers": [], "client": (client, 1)}
    try:
        await limited(scope, receive, send)
    except TimeoutError:
        assert is_slow
    return status


def test_readers_that_are_slow_on_purpose_leave_room_for_others_and_are_hung_up_on() -> None:
    settings = Settings(max_streams_per_client=3, max_streams=7, stall_timeout=0.4)
    app = PlainTextResponse("a piece of video")
    limited = LimitMiddleware(app, settings, ServiceMetrics())

    async def scenario() -> tuple[list[int], int, int]:
        slow = [asyncio.create_task(reads(limited, "10.0.0.1")) for _ in range(5)]
        await asyncio.sleep(0.1)
        other = await reads(limited, "10.0.0.2", is_slow=False)
        statuses = await asyncio.gather(*slow)
        return list(statuses), other, await reads(limited, "10.0.0.1", is_slow=False)

    statuses, other, later = run_apart(scenario())
    assert statuses == [200] * 3 + [503] * 2
    assert (other, later) == (200, 200)


def test_bodies_and_batches_have_a_limit(client: TestClient) -> None:
    queries = ["red"] * (MAX_QUERIES + 1)
    assert client.post("/api/search", json={"queries": queries}).status_code == 422
    assert client.post("/api/search", json={"queries": []}).status_code == 422
    large = client.post("/api/search", content=b" " * 300_000)
    assert large.status_code == 413
    assert large.json()["error"]["code"] == "too_large"

    def pieces() -> Any:
        for _ in range(300):
            yield b" " * 1024

    headers = {"content-type": "application/json"}
    assert client.post("/api/search", content=pieces(), headers=headers).status_code == 413


def test_a_fault_of_our_own_is_an_error_of_the_same_shape(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(engine)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("/secret/path in a message")

    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        monkeypatch.setattr(engine, "search_many", fail)
        answer = client.get("/api/search?q=red")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal"
        assert "secret" not in answer.text
        assert answer.headers["content-security-policy"]
        monkeypatch.undo()
        assert client.get("/api/search?q=red").status_code == 200


def test_a_file_changes_the_limits_that_have_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("max_searches = 3\nstall_timeout = 5\n")
    served: list[Settings] = []
    monkeypatch.setattr(
        "eaglenet.serve.app.run", lambda engine, settings, **_: served.append(settings)
    )
    words = ["serve", "--store", engine.location, "--rate", "7", "--settings", str(file)]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    assert (served[0].max_searches, served[0].stall_timeout, served[0].search_rate) == (3, 5.0, 7.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_serches = 3", "no setting 'max_serches'"),
        ("token = 'x'", "no setting 'token'"),
        ("max_searches = 0", "expected a number above 0"),
        ("max_searches = 'many'", "max_searches"),
        ("max_searches 3", "line 1"),
        ("max_searches = " + "[" * 10_000, "recursion"),
        (None, "no such file"),
    ],
)
def test_a_wrong_file_of_limits_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "limits.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=problem):
        read_settings(file)


def test_every_limit_is_reached_by_an_option_or_by_the_file() -> None:
    options = {"token", "session", "local", "search_rate", "timeout", "allow_uploads", "agents",
               "save_folder", "judge", "workers"}  # fmt: skip
    assert {*FILE_SETTINGS, *options} == set(Settings.__dataclass_fields__)
