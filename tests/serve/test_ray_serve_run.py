"""The application of Ray Serve, run for real: two copies, one of which is killed and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from demo_store import DemoStore

from eaglenet.search.engine import Engine
from processes import free_port

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-application"
COPY = "ray::ServeReplica"
# ``serve run`` alone has no option for a port.
START = """
import sys
import ray
from ray import serve
from ray.serve.scripts import cli

ray.init("local", num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False)
serve.start(http_options={"port": int(sys.argv[1])})
cli(["run", "deploy.ray_serve:application"])
"""

pytestmark = pytest.mark.slow


@dataclass
class Application:
    """What was started, and a client of it."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    log: Path
    seen: set[int] = field(default_factory=set)

    def copies(self) -> set[int]:
        """Processes of the copies."""
        self.seen |= descendants(self.process.pid)
        return {number for number in self.seen if command_of(number).startswith(COPY)}

    def wait_for(self, seconds: float, copies: int) -> None:
        """Until so many copies are there and it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            if len(self.copies()) == copies and self.is_up():
                return
            time.sleep(0.5)
        pytest.fail(f"{self.copies()} after {seconds} s: {self.log.read_text()[-3000:]}")

    def is_up(self) -> bool:
        try:
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False


def command_of(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def descendants(ancestor: int) -> set[int]:
    """All processes below one, by what Linux tells of their parents."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = set(), [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found |= {*below}
        waiting += below
    return found


@pytest.fixture
def application(demo: DemoStore, tmp_path: Path) -> Iterator[Application]:
    """Two copies over the store of these tests, on a port of their own."""
    reason = "needs Ray Serve: pip install 'eaglenet[ray-serve]'"
    pytest.importorskip("ray.serve", reason=reason, exc_type=ImportError)
    port = free_port()
    # Names of sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {
        **kept,
        "EAGLENET_STORE": str(demo.folder),
        "EAGLENET_TOKEN": TOKEN,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(port)],
            cwd=ROOT,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0)
    started = Application(process, client, log)
    try:
        started.wait_for(240, copies=2)
        yield started
    finally:
        started.copies()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        for number in started.seen:
            if "ray" in command_of(number):
                os.kill(number, signal.SIGKILL)
        client.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_replicas_answer_as_the_engine_does_and_restart(
    application: Application, engine: Engine
) -> None:
    client, allowed = application.client, {"Authorization": f"Bearer {TOKEN}"}

    def search(query: str) -> list[tuple[str, float]]:
        answer = client.get("/api/search", params={"q": query, "k": 5}, headers=allowed)
        assert answer.status_code == 200, answer.text
        return [(hit["clip_id"], hit["score"]) for hit in answer.json()["hits"]]

    assert client.get("/api/search", params={"q": "red"}).status_code == 401
    queries = ["a red ball", "two blue cars", "something green moves"]
    expected = [[(hit.clip_id, hit.score) for hit in engine.search(each, 5)] for each in queries]
    # Often enough for both copies to be asked.
    for _ in range(4):
        assert [search(each) for each in queries] == expected
    # The page's cookie is good for both.
    assert client.post("/login", data={"token": TOKEN}).status_code == 303
    assert [client.get("/api/info").status_code for _ in range(12)] == [200] * 12
    before = application.copies()
    os.kill(min(before), signal.SIGKILL)
    end, statuses = time.monotonic() + 120, []
    while time.monotonic() < end and len(application.copies() - before) < 1:
        statuses.append(client.get("/api/search", params={"q": "red"}).status_code)
        time.sleep(0.2)
    application.wait_for(60, copies=2)
    # The other copy answered; what the dead one had in hand is lost.
    assert statuses.count(200) >= len(statuses) - 2
    for _ in range(4):
        assert [search(each) for each in queries] == expected
