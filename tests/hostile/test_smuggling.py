"""Requests hidden in requests: through a real front to a real shard, over sockets."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from demo_store import make_demo_store

from eaglenet.cluster.shard_front import ShardScan
from eaglenet.cluster.shards import NEAR_PATH, SCAN_PATH, create_shard_app, shard_token
from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app, run_app
from eaglenet.serve.settings import Settings
from eaglenet.store.store import open_store

TOKEN = "the-token-of-the-front-and-its-shards"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\nX-Hidden: 1\r\n\r\n"


@dataclass
class Wire:
    """Proxy that keeps every byte that goes to its target, one entry per connection."""

    target: tuple[str, int]
    sent: list[bytearray] = field(default_factory=list)

    def open(self) -> str:
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return f"http://127.0.0.1:{self.server.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            shard = socket.create_connection(self.target)
            record = bytearray()
            self.sent.append(record)
            for source, sink, copy in ((client, shard, record), (shard, client, None)):
                threading.Thread(target=_pump, args=(source, sink, copy), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, record: bytearray | None) -> None:
    try:
        while content := source.recv(2**16):
            if record is not None:
                record += content
            sink.sendall(content)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def serve(make: Any, settings: Settings, end: threading.Event) -> str:
    """Run an app in a thread; returns its address."""
    ready = threading.Event()
    addresses: list[str] = []

    def on_ready(address: str) -> None:
        addresses.append(address.rstrip("/"))
        ready.set()

    options: dict[str, Any] = {"port": 0, "on_ready": on_ready, "until": end}
    threading.Thread(target=run_app, args=(make, settings), kwargs=options).start()
    assert ready.wait(60)
    return addresses[0]


def port_of(address: str) -> tuple[str, int]:
    return "127.0.0.1", int(address.rsplit(":", 1)[1])


@dataclass(frozen=True)
class Cluster:
    """A front with one shard behind a wire."""

    front: str
    shard: str
    wire: Wire

    def search(self) -> list[str]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(
            f"{self.front}/api/search", params={"q": "red ball", "k": 3}, headers=headers,
            timeout=60,
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        assert not answer.json().get("missing")
        return [hit["clip_id"] for hit in answer.json()["hits"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    base: Path = tmp_path_factory.mktemp("smuggling")
    demo = make_demo_store(base, base / "world")
    store, end = open_store(demo.folder), threading.Event()
    settings = Settings(token=TOKEN, search_rate=10_000.0, header_timeout=1.0, body_timeout=1.0)
    shard = serve(lambda: create_shard_app(store, (1, 1), settings), settings, end)
    wire = Wire(port_of(shard))
    scan = ShardScan([wire.open()], store.manifest.identity, token=TOKEN, timeout=60.0)
    front = serve(lambda: create_app(Engine(store, scan=scan), settings), settings, end)
    yield Cluster(front, shard, wire)
    end.set()
    scan.close()
    wire.server.close()


def attacks(path: bytes, token: str) -> dict[str, bytes]:
    """Requests whose end two servers may see in different places; each hides another one."""
    head = (
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
        b"Content-Type: application/json\r\n" % (path, token.encode())
    )
    chunks = b"0\r\n\r\n" + HIDDEN
    length = b"Content-Length: %d\r\n" % len(chunks)
    with_chunks = {
        "length and chunks": length + b"Transfer-Encoding: chunked\r\n",
        "chunks and length": b"Transfer-Encoding: chunked\r\n" + length,
        "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" + length,
        "unknown coding": b"Transfer-Encoding: xchunked\r\n" + length,
        "coding list": b"Transfer-Encoding: identity, chunked\r\n" + length,
        "space before colon": b"Transfer-Encoding : chunked\r\n" + length,
        "tab in value": b"Transfer-Encoding:\tchunked\r\n" + length,
        "vertical tab": b"Transfer-Encoding: \x0bchunked\r\n" + length,
        "quoted": b'Transfer-Encoding: "chunked"\r\n' + length,
        "folded": b"Transfer-Encoding:\r\n chunked\r\n" + length,
        "bare line feed": b"X: 1\nTransfer-Encoding: chunked\r\n" + length,
        "bare carriage return": b"X: 1\rTransfer-Encoding: chunked\r\n" + length,
        "null": b"X: \x00\r\nTransfer-Encoding: chunked\r\n" + length,
        "underscore": b"Transfer_Encoding: chunked\r\n" + length,
    }
    result = {name: head + lines + b"\r\n" + chunks for name, lines in with_chunks.items()}
    lengths = (b"0\r\nContent-Length: 5", b"0, 5", b"+0", b"-1", b"0x0", b"0 0", b"0\x0b", b"\xb2")
    for value in lengths:
        lines = b"Content-Length: " + value + b"\r\n\r\n"
        result[f"length {value!r}"] = head + lines + HIDDEN
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    sizes = (b"0x0\r\n\r\n", b"-0\r\n\r\n", b"0;a=\n\r\n\r\n", b"0\n\n", b"fffffffffffffffff0\r\n")
    for size in sizes:
        result[f"chunk {size!r}"] = chunked + size + HIDDEN
    line = b"POST " + path
    result["request line"] = head.replace(line, line + b"\x0b", 1) + b"\r\n" + HIDDEN
    result["old version"] = head.replace(b"1.1", b"1.0", 1) + b"Transfer-Encoding: chunked\r\n\r\n"
    result["old version"] += chunks
    return result


def exchange(address: str, request: bytes, *, seconds: float = 0.5) -> bytes:
    """All that comes back until the server ends the connection or is silent for ``seconds``.

    The connection stays open for writing: uvicorn answers nothing more once a client has closed
    its side, so a hidden request would never be answered.
    """
    answer = b""
    with socket.create_connection(port_of(address), timeout=seconds) as connection:
        connection.sendall(request)
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            while content := connection.recv(2**16):
                answer += content
    return answer


SERVERS = {
    "front": (b"/api/search", TOKEN),
    "shard": (SCAN_PATH.encode(), shard_token(TOKEN, (1, 1))),
}


@pytest.mark.parametrize("server", SERVERS)
def test_hidden_requests_are_not_answered(server: str, cluster: Cluster) -> None:
    """A request with two ends is refused or read with all that follows; none is answered twice."""
    before = cluster.search()
    address = cluster.front if server == "front" else cluster.shard
    requests = attacks(*SERVERS[server])
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(functools.partial(exchange, address), requests.values()))
    for name, answer in zip(requests, answers, strict=True):
        statuses = re.findall(rb"HTTP/1\.[01] (\d{3})", answer)
        assert len(statuses) <= 1, (name, answer)
        assert not statuses or statuses[0][:1] == b"4" or statuses[0] == b"501", (name, answer)
    assert cluster.search() == before
    check_wire(cluster.wire)


def check_wire(wire: Wire) -> None:
    """Every connection to the shard carried one request of the front, with nothing after it."""
    assert wire.sent
    for content in wire.sent:
        head, _, body = bytes(content).partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        assert first in [b"POST %s HTTP/1.1" % path.encode() for path in (SCAN_PATH, NEAR_PATH)]
        names = [line.partition(b":")[0].lower() for line in lines]
        assert len(set(names)) == len(names)
        assert b"transfer-encoding" not in names
        lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
        assert int(lengths[0].partition(b":")[2]) == len(body)
        assert b"idden" not in content
        assert TOKEN.encode() not in content


def test_queries_do_not_become_requests_to_a_shard(cluster: Cluster) -> None:
    """Line ends in texts, filters and headers of a query stay inside of the JSON that is sent."""
    evil = "red\r\nX-Hidden: 1\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    before = len(cluster.wire.sent)
    filters = {"tag": "odd", "path": "*\r\nX-Idden: 1*"}
    with httpx.Client(base_url=cluster.front, headers=headers, timeout=60) as client:
        for parameters in ({"q": evil}, {"q": "red", **filters}, {"q": "red", "path": evil[5:30]}):
            assert client.get("/api/search", params=parameters).status_code in (200, 400, 422)
    assert len(cluster.wire.sent) > before
    for content in cluster.wire.sent[before:]:
        head, _, body = bytes(content).partition(b"\r\n\r\n")
        assert b"idden" not in head
        assert b"\r" not in body
        assert b"\n" not in body


def test_a_request_that_is_not_hidden_would_be_answered(cluster: Cluster) -> None:
    """Control: after a request with one end, the second of a connection is answered."""
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for address in (cluster.front, cluster.shard):
        last = HIDDEN.replace(b"X-Hidden: 1", b"Connection: close")
        answer = exchange(address, first + last, seconds=15)
        assert len(re.findall(rb"HTTP/1\.[01] (\d{3})", answer)) == 2, answer
