"""Connections of clients who are slow, many or unclear: over real sockets on this machine."""

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from eaglenet.search.engine import Engine
from eaglenet.serve.app import run
from eaglenet.serve.settings import Settings

HALF = b"GET /api/info HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
CONNECTIONS = 12


class Running:
    """A service in a thread of this process."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.address = ""
        ready, self._stop = threading.Event(), threading.Event()

        def on_ready(address: str) -> None:
            self.address = address
            ready.set()

        self.thread = threading.Thread(
            target=run,
            args=(engine, settings),
            kwargs={"port": 0, "on_ready": on_ready, "until": self._stop},
        )
        self.thread.start()
        assert ready.wait(60)
        self.port = int(self.address.rsplit(":", 1)[1].strip("/"))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, request: bytes) -> bytes:
        """Everything that comes back until the service hangs up."""
        with self.connect() as connection:
            connection.sendall(request)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer

    def end(self) -> None:
        self._stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def running(engine: Engine) -> Iterator[Running]:
    """A service that waits shortly and takes few connections."""
    settings = Settings(
        header_timeout=0.6,
        body_timeout=0.6,
        max_connections=4 * CONNECTIONS,
        max_connections_per_client=CONNECTIONS,
    )
    made = Running(engine, settings)
    yield made
    made.end()


def is_hung_up(connection: socket.socket, seconds: float = 60) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_sent_requests_do_not_lock_others_out(running: Running) -> None:
    held = [running.connect() for _ in range(5 * CONNECTIONS)]
    try:
        for connection in held:
            try:
                connection.sendall(HALF)
            except OSError:
                continue  # Given up for a newer one.
        assert httpx.get(f"{running.address}health", timeout=60).status_code == 200
    finally:
        for connection in held:
            connection.close()


def test_a_request_whose_headers_never_end_is_hung_up_on(running: Running) -> None:
    with running.connect() as silent, running.connect() as dripping:
        deadline, is_open = time.monotonic() + 60, True
        dripping.sendall(HALF)
        while is_open:
            assert time.monotonic() < deadline
            try:
                dripping.sendall(b"a")
            except OSError:
                is_open = False
            time.sleep(0.1)
        assert is_hung_up(silent)


def test_a_body_that_does_not_come_is_not_waited_for(running: Running) -> None:
    head = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    answer = running.ask(head)
    assert answer.startswith(b"HTTP/1.1 408")


def test_an_answer_given_before_the_body_came_ends_the_connection(running: Running) -> None:
    def seconds() -> float:
        began = time.monotonic()
        head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        assert running.ask(head).startswith(b"HTTP/1.1 404")
        return time.monotonic() - began

    # An idle connection is kept for five seconds. A busy machine may take some for an answer, too.
    assert any(seconds() < 4 for _ in range(5))


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Host: evil.example\r\n",
        b"Content-Length: +4\r\n",
    ],
)
def test_requests_framed_in_two_ways_are_refused(running: Running, headers: bytes) -> None:
    begin = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\n"
    answer = running.ask(begin + headers + b"\r\n4\r\nbody\r\n0\r\n\r\n")
    assert answer[9:12] in (b"400", b"501"), answer
    assert answer.count(b"HTTP/1.1") == 1


def test_headers_have_a_limit_in_size_and_number(running: Running) -> None:
    begin = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(200))
    assert running.ask(begin + many + b"\r\n").startswith(b"HTTP/1.1 431")
    long = b"X-Long: " + b"a" * 40_000 + b"\r\n"
    assert running.ask(begin + long + b"\r\n").startswith(b"HTTP/1.1 4")
