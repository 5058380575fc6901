"""A hub that lies: it chooses no path, and no download takes for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eaglenet.core.errors import ModelNotFoundError
from eaglenet.encoders import hub as hub_guard
from eaglenet.encoders.hub import find_hub_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZE = 100_000


@contextmanager
def serve(body: str, headers: dict[str, str]) -> Iterator[str]:
    """The address of a hub with one answer for every file."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.start()

        def do_GET(self) -> None:
            self.start()
            if body == "truncated":
                self.wfile.write(b"x" * 100)
                self.close_connection = True
                return
            while not over.is_set():
                self.wfile.write(b"x")
                self.wfile.flush()
                over.wait(0.02)

        def start(self) -> None:
            self.send_response(206 if "Range" in self.headers else 200)
            values = {"X-Repo-Commit": COMMIT, "ETag": f'"{"a" * 64}"', **headers}
            for name, value in values.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(SIZE))
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    folder = tmp_path / "a/b/c/cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return folder


def use_endpoint(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"../../../../../escaped"'},
        {"X-Linked-Etag": '"../../../../../escaped"'},
        {"ETag": 'W/"..\\\\..\\\\escaped"'},
        {"ETag": '"/tmp/escaped"'},
        {"ETag": '"."'},
        {"X-Repo-Commit": "../../../../../escaped"},
    ],
    ids=str,
)
def test_no_header_chooses_a_path(
    headers: dict[str, str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve("truncated", headers) as address:
        use_endpoint(address, monkeypatch)
        began = time.monotonic()
        with pytest.raises(ModelNotFoundError, match="not a hash"):
            find_hub_folder("some/model")
    assert time.monotonic() - began < 60
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and cache not in path.parents]
    assert outside == []


@pytest.mark.parametrize(("body", "reason"), [("truncated", "too often"), ("drip", "too slow")])
def test_a_body_that_never_ends_is_given_up(
    body: str, reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_guard, "SLOW_SECONDS", 1.0)
    monkeypatch.setattr(hub_guard, "MAX_RESPONSES", 3)
    with serve(body, {}) as address:
        use_endpoint(address, monkeypatch)
        began = time.monotonic()
        with pytest.raises(ModelNotFoundError, match=reason):
            find_hub_folder("some/model")
    assert time.monotonic() - began < 60


def test_a_download_is_guarded_while_another_thread_ends_one() -> None:
    """The library has one session for all threads."""
    from huggingface_hub.utils import get_session

    before, is_inside = get_session().event_hooks["response"], threading.Event()

    def download() -> None:
        with hub_guard.guard_downloads():
            is_inside.set()
            time.sleep(0.3)

    thread = threading.Thread(target=download)
    thread.start()
    assert is_inside.wait(10)
    with hub_guard.guard_downloads():
        thread.join()
        (guard,) = get_session().event_hooks["response"][len(before) :]
        assert isinstance(guard, hub_guard.ResponseGuard)
    assert get_session().event_hooks["response"] == before
