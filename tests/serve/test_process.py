"""The command as a process: where it listens, and how it ends."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from eaglenet.core.errors import UsageError
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.serve.app import reachable_host, run
from eaglenet.serve.settings import Settings
from processes import descendants
from sampling import one_in
from small_videos import colour_video


class Service:
    """``eaglenet serve`` on a free port."""

    def __init__(self, store: Path, *options: str) -> None:
        command = [sys.executable, "-m", "eaglenet", "serve", "--store", str(store), "--port", "0"]
        command += options
        environment = {key: os.environ[key] for key in os.environ if key != "EAGLENET_TOKEN"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + self.process.communicate()[1]
        self.address = found.group()

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the packaged model, which a process opens without importing torch."""
    folder = tmp_path_factory.mktemp("light")
    video = colour_video(folder / "red.mp4", ["red", "green"])
    options = IndexOptions(workers=0, device="cpu", precision="fp32")
    assert index_videos([video], folder / "store", "small", options=options).indexed == 1
    return folder / "store"


@pytest.fixture
def service(store: Path) -> Iterator[Service]:
    """The command in a process of its own."""
    made = Service(store)
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.communicate()


def begun(metrics: str) -> float:
    """Searches that have arrived, answered or not."""
    active = re.search(r'^eaglenet_active_requests\{kind="search"\} (.+)$', metrics, re.M)
    done = re.search(r'^eaglenet_requests_total\{.*"/api/search".*\} (.+)$', metrics, re.M)
    return sum(float(found.group(1)) for found in (active, done) if found)


def test_a_terminated_service_answers_what_it_began_and_exits_cleanly(service: Service) -> None:
    answers: list[httpx.Response] = []
    queries = ["a red ball"] * 12

    def ask() -> None:
        body = {"queries": queries, "k": 11}
        answers.append(httpx.post(f"{service.address}api/search", json=body, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    with httpx.Client(base_url=service.address, timeout=60) as client:
        assert client.get("/health").json() == {"status": "ok"}
        for thread in threads:
            thread.start()
        while begun(client.get("/metrics").text) < len(threads):
            time.sleep(0.001)
    code, errors = service.end(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert code == 0, errors
    assert errors == ""
    assert [answer.status_code for answer in answers] == [200] * 6
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.address}health")


def slow_jpeg() -> bytes:
    """A JPEG with thousands of scans, each of which a decoder applies to the whole image."""
    buffer = io.BytesIO()
    Image.effect_noise((2500, 2500), 60).save(buffer, "JPEG", progressive=True, quality=5)
    content = buffer.getvalue()
    scan = content.rindex(b"\xff\xda")
    # The last scan without its values: refinements of nothing.
    return content[:-2] + content[scan : scan + 40] * 4000 + content[-2:]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_service_is_ready_for_uploads_and_ends_without_waiting_for_one(store: Path) -> None:
    """Loaded with the first upload, image tower and decoder would delay it by seconds."""
    service = Service(store, "--allow-uploads")
    answers: list[httpx.Response] = []

    def upload() -> None:
        address = f"{service.address}api/search/image"
        answers.append(httpx.post(address, content=slow_jpeg(), timeout=60))

    thread = threading.Thread(target=upload)
    deadline = time.monotonic() + 300
    try:
        maps = Path(f"/proc/{service.process.pid}/maps")
        while not ("onnxruntime" in maps.read_text() and descendants(service.process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        thread.start()
        # The host of the decoder, and the process of the file.
        while len(descendants(service.process.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
    finally:
        began = time.monotonic()
        code, errors = service.end(signal.SIGTERM)
        seconds = time.monotonic() - began
    thread.join(60)
    assert (code, errors) == (0, "")
    assert seconds < 9  # It would wait for 10 s.
    assert answers[0].status_code == 503


@pytest.mark.parametrize("delay", one_in(2, [0, 0.05, 0.4, 0.2]))
def test_a_service_that_has_just_begun_ends_cleanly(store: Path, delay: float) -> None:
    """While uvicorn installs its handlers, and while the image tower loads."""
    service = Service(store, "--allow-uploads")
    time.sleep(delay)
    assert service.end(signal.SIGTERM) == (0, "")


def test_an_interrupted_service_says_what_it_waits_for_and_ends_at_once_the_second_time(
    service: Service,
) -> None:
    """Without uploads, it has loaded no image tower until then."""
    with httpx.Client(base_url=service.address, timeout=60) as client:
        assert client.get("/api/search", params={"q": "red"}).status_code == 200
    if sys.platform == "linux":
        time.sleep(1)
        assert "onnxruntime" not in Path(f"/proc/{service.process.pid}/maps").read_text()
    port = int(service.address.rsplit(":", 1)[1].strip("/"))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        # A request whose body never comes keeps the service from ending by itself.
        head = f"POST /api/search HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head.encode())
        with httpx.Client(base_url=service.address, timeout=60) as client:
            while begun(client.get("/metrics").text) < 2:
                time.sleep(0.01)
        service.process.send_signal(signal.SIGINT)
        assert service.process.stderr is not None
        line = service.process.stderr.readline()
        began = time.monotonic()
        code, errors = service.end(signal.SIGINT)
        seconds = time.monotonic() - began
    assert (code, errors) == (0, "")
    # Two if the request for the metrics is still being closed.
    waiting = r"stopping; waiting up to 10 s for open requests \([12]\); Ctrl-C again stops at once"
    assert re.fullmatch(waiting + "\n", line)
    assert seconds < 9  # It would wait for 10 s.


def test_a_taken_port_is_told(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}"):
            run(engine, Settings(), port=port)


def test_the_printed_address_can_be_opened_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reachable_host("192.0.2.7") == "192.0.2.7"
    for wildcard in ("0.0.0.0", "::"):
        assert reachable_host(wildcard) not in ("", wildcard)

    def refuse(self: socket.socket, address: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert reachable_host("0.0.0.0") == socket.gethostname()
