"""An S3 server on this machine, or one in memory, behind a gate that puts faults in between."""

from __future__ import annotations

import hashlib
import http.client
import logging
import random
import re
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

Fault = str
"""``overloaded`` (503), ``slow``, ``cut`` before the request arrives, ``lost``: its answer is."""


@dataclass
class Gate:
    """Forwards to a storage server; ``choose`` says what goes wrong with a request."""

    host: str
    port: int
    choose: Callable[[str, str], Fault | None] = lambda method, path: None
    seen: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    url: str = ""

    def open(self) -> Gate:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body are two writes: without this the body waits for the head to be
            # acknowledged, 40 ms at each request.
            disable_nagle_algorithm = True

            def _forward(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                gate.bytes_in += length
                fault = gate.choose(self.command, self.path)
                gate.seen[fault or "none"] += 1
                if fault == "overloaded":
                    self._answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
                    return
                if fault == "cut":
                    self._cut()
                    return
                if fault == "slow":
                    time.sleep(0.4)
                headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
                status, headers, content = gate.forward(self.command, self.path, headers, body)
                gate.bytes_out += len(content)
                if fault == "lost":
                    self._cut()
                    return
                self._answer(status, headers, content)

            def _cut(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(status)
                left_out = ("connection", "transfer-encoding", "server", "date")
                if self.command != "HEAD":
                    left_out += ("content-length",)
                    self.send_header("Content-Length", str(len(content)))
                for name, value in headers.items():
                    if name.lower() not in left_out:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815

            def log_message(self, *_: object) -> None:
                return None

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, ValueError):
                    return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self._server = server
        return self

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content that the storage server answers."""
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def close(self) -> None:
        self._server.shutdown()


@dataclass(frozen=True)
class StoredObject:
    """Content and properties of an object in memory."""

    content: bytes
    modified: datetime

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


@dataclass
class MemoryGate(Gate):
    """Answers from memory, in a tenth of the time of a storage server, whatever the bucket.

    Whole objects, ranges, listings and conditional writes, as far as the library uses them;
    ``tests/cluster/test_memory_gate.py`` compares the answers with those of a server.
    """

    host: str = ""
    port: int = 0
    objects: dict[str, StoredObject] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(path)
        name, query = unquote(address.path).strip("/"), parse_qs(address.query)
        conditions = {key.lower(): value for key, value in headers.items()}
        with self.lock:
            if "list-type" in query:
                return 200, {}, self._list(name, query.get("prefix", [""])[0])
            stored = self.objects.get(name)
            if method == "PUT":
                expected = conditions.get("if-match")
                if "if-none-match" in conditions and stored is not None:
                    return 412, {}, _error("PreconditionFailed")
                if expected is not None and (stored is None or stored.tag != expected):
                    return (412, {}, _error("PreconditionFailed")) if stored else _missing()
                stored = self.objects[name] = StoredObject(body, datetime.now(UTC))
                return 200, {"ETag": stored.tag}, b""
            if method == "POST" and address.query == "delete":
                return 200, {}, self._remove(name, body)
        if stored is None:
            return _missing()
        assert method in ("GET", "HEAD"), method
        found = {
            "ETag": stored.tag,
            "Last-Modified": stored.modified.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        }
        if method == "HEAD":
            return 200, {**found, "Content-Length": str(len(stored.content))}, b""
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", conditions.get("range", "")):
            content = stored.content[int(match[1]) : int(match[2]) + 1]
            end = int(match[1]) + len(content) - 1
            found["Content-Range"] = f"bytes {match[1]}-{end}/{len(stored.content)}"
            return 206, found, content
        return 200, found, stored.content

    def _remove(self, bucket: str, request: bytes) -> bytes:
        keys = re.findall(r"<Key>(.*?)</Key>", request.decode())
        for key in keys:
            self.objects.pop(f"{bucket}/{unescape(key)}", None)
        removed = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        return f"<DeleteResult>{removed}</DeleteResult>".encode()

    def _list(self, bucket: str, prefix: str) -> bytes:
        start = f"{bucket}/{prefix}"
        entries = [
            f"<Contents><Key>{escape(name.removeprefix(f'{bucket}/'))}</Key>"
            f"<LastModified>{stored.modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{escape(stored.tag)}</ETag><Size>{len(stored.content)}</Size></Contents>"
            for name, stored in sorted(self.objects.items())
            if name.startswith(start)
        ]
        return (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
            f"{''.join(entries)}</ListBucketResult>"
        ).encode()


def _missing() -> tuple[int, dict[str, str], bytes]:
    return 404, {}, _error("NoSuchKey")


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


def start_storage(gate: type[Gate] = Gate) -> tuple[Any, Gate]:
    """Moto's server with one bucket, and the gate before it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    request = urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")
    urllib.request.urlopen(request).close()
    return server, gate(host, port).open()


def at_random(seed: int, share: float, faults: tuple[Fault, ...]) -> Callable[[str, str], Any]:
    """A fault for a share of the requests."""
    chance = random.Random(seed)
    return lambda method, path: chance.choice(faults) if chance.random() < share else None
