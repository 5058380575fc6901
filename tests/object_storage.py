"""An S3 server on this machine, and a gate before it that puts faults in between."""

from __future__ import annotations

import http.client
import logging
import random
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
