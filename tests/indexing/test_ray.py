"""A real Ray cluster of two nodes on this machine: what is lost is done again, and stored once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from index_cases import stored_clips

from eaglenet.cluster import ray_executor
from eaglenet.cluster import ray_executor as pacing
from eaglenet.cluster.ray_executor import RayExecutor
from eaglenet.core.errors import UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.encoders import hardware, int8
from eaglenet.indexing import run as commit
from eaglenet.indexing.executor import ExecutorSettings
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.options import ClusterOptions
from eaglenet.indexing.report import IndexProgress, IndexReport
from eaglenet.store.object_storage import ObjectFolder
from eaglenet.store.store import open_store
from object_storage import MemoryGate
from small_model import save_small_model
from small_videos import colour_video
from synthetic_store import BagMethod

pytestmark = pytest.mark.filterwarnings("ignore")
"""Ray warns of things of its own."""

SCRIPT = Path(__file__).with_name("index_on_ray.py")
NUM_FILES, NUM_CLIPS = 6, 6 * 6
TRIALS = int(os.environ.get("EAGLENET_KILL_TRIALS", "50"))
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class TwoNodes:
    """A head and a second node, which can be lost and comes back."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.cluster = RayCluster(
            initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
        )
        self.second = self.cluster.add_node(**NODE)
        self.address: str = self.cluster.address

    def workers(self) -> list[int]:
        """Processes that encode: children of one of the two raylets."""
        raylets = {
            info.process.pid
            for node in self.cluster.list_all_nodes()
            for info in node.all_processes["raylet"]
        }
        return [pid for pid in _pids("_Encoder") if _parent(pid) in raylets]

    def lose_node(self) -> None:
        """Without a word, as when the plug is pulled; another one comes."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self.cluster.add_node(**NODE)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


def _pids(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(f"ray::{name}".encode()):
                found.append(int(path.parent.name))
        except OSError:
            continue  # It ended meanwhile.
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """A cluster of two nodes on this machine."""
    pytest.importorskip("ray")
    chosen = pytest.MonkeyPatch()
    before = os.environ.get("PYTHONPATH", "")
    # Workers import the model of these tests, and the eaglenet that is tested.
    here = Path(__file__).parents[1]
    source = Path(ray_executor.__file__).parents[2]
    chosen.setenv("PYTHONPATH", os.pathsep.join([str(here), str(source), before]))
    chosen.setenv("EAGLENET_CACHE", str(tmp_path_factory.mktemp("cache")))
    cluster = TwoNodes()
    yield cluster
    cluster.close()
    chosen.undo()


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six films of six clips, and one that is broken."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(NUM_FILES):
        colours = [["red", "green", "blue"][(number + step) % 3] for step in range(4)]
        path = colour_video(folder / f"{number}.mp4", colours)
        path.write_bytes(path.read_bytes() + bytes([0, 0, 0, 8]) + b"free" + bytes(number))
    (folder / "broken.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(50))
    return folder


@pytest.fixture(scope="module")
def expected(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """Every clip with its vector, as this machine alone stores it."""
    store = tmp_path_factory.mktemp("alone") / "store"
    options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)
    report = index_videos([videos], store, "bag", method=BagMethod(), options=options)
    assert report.clips == NUM_CLIPS
    return stored_clips(store)


def require_same(store: Path, expected: dict[Any, Any]) -> None:
    """The same clips and vectors, none twice, and the store whole."""
    assert stored_clips(store) == expected
    verified = open_store(store).verify()
    assert verified.clips == verified.stored_clips == NUM_CLIPS


def index_here(
    nodes: TwoNodes, videos: str | Path, store: Path, on_progress: Any = None, workers: int = 2
) -> IndexReport:
    cluster = ClusterOptions(nodes.address)
    options = IndexOptions(
        splitting=Splitting(3.0, 1.0), workers=workers, executor="ray", cluster=cluster
    )
    return index_videos(
        [videos], store, "bag", method=BagMethod(), options=options, on_progress=on_progress
    )


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few clips at a time, so that a small test has many shards."""
    monkeypatch.setattr(pacing, "MAX_CALL", 4)
    monkeypatch.setattr(pacing, "FIRST_CALL", 4)
    monkeypatch.setattr(commit, "COMMIT_CLIPS", 4)
    monkeypatch.setattr(commit, "PAUSE_FACTOR", 0.0)


@pytest.mark.slow
def test_killed_worker_costs_only_time(
    nodes: TwoNodes, videos: Path, expected: dict[Any, Any], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one(progress: IndexProgress) -> None:
        if not killed and (workers := nodes.workers()):
            os.kill(workers[0], signal.SIGKILL)
            killed.append(workers[0])

    report = index_here(nodes, videos, tmp_path / "store", kill_one)
    assert killed
    assert (report.indexed, report.clips) == (NUM_FILES, NUM_CLIPS)
    assert [Path(problem.path).name for problem in report.problems] == ["broken.mp4"]
    require_same(tmp_path / "store", expected)


@pytest.fixture
def bucket(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Object storage that only this process is told of, after the cluster was started."""
    pytest.importorskip("obstore")
    gate = MemoryGate().open()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", gate.url)
    yield "s3://bucket/films"
    gate.close()


@pytest.mark.slow
def test_workers_use_the_storage_variables_of_the_driver(
    nodes: TwoNodes, bucket: str, videos: Path, tmp_path: Path
) -> None:
    ObjectFolder(bucket).write("0.mp4", (videos / "0.mp4").read_bytes())
    report = index_here(nodes, bucket, tmp_path / "store", workers=1)  # starting one takes seconds
    assert report.problems == ()
    assert (report.indexed, report.clips) == (1, NUM_CLIPS // NUM_FILES)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that takes no connection, as behind a firewall."""
    monkeypatch.setattr(ray_executor, "CONNECT_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        place = server.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # as many as wait there, and more
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(place)
        yield f"127.0.0.1:{place[1]}"
        for each in waiting:
            each.close()


@pytest.mark.parametrize("form", ["{0}", "ray://{0}", "auto", None])
def test_address_without_a_cluster_is_an_error(
    form: str | None, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would try for minutes. Where none is given, that of the environment is tried."""
    ray = pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    where = form and form.format(address)
    options = IndexOptions(executor="ray", cluster=ClusterOptions(where))
    told = rf"no Ray cluster at (ray://)?{address} \(Connection refused\); start one with"
    with pytest.raises(UsageError, match=told):
        index_videos([videos], tmp_path / "store", "bag", method=BagMethod(), options=options)


def test_silent_address_is_an_error_within_seconds(
    silent: str, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked"))
    options = IndexOptions(executor="ray", cluster=ClusterOptions(silent))
    with pytest.raises(UsageError, match=rf"no Ray cluster at {silent} \(timed out\)"):
        index_videos([videos], tmp_path / "store", "bag", method=BagMethod(), options=options)


@pytest.mark.slow
def test_web_server_is_not_a_cluster(nodes: TwoNodes) -> None:
    """The address of the dashboard is easily given in the place of that of the cluster."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    with pytest.raises(ConnectionError, match="not the port of a Ray head"):
        ray_executor._require_answer(f"127.0.0.1:{server.server_address[1]}")
    thread.join()
    server.server_close()
    ray_executor._require_answer(nodes.address)


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:ray", "head:66000", "ray://"])
def test_invalid_address_is_an_error(address: str, videos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    options = IndexOptions(executor="ray", cluster=ClusterOptions(address))
    told = f"no Ray cluster at {address} .the address must be HOST:PORT.*--ray-address HOST:PORT"
    with pytest.raises(UsageError, match=told):
        index_videos([videos], tmp_path / "store", "bag", method=BagMethod(), options=options)


@pytest.mark.slow
@pytest.mark.skipif(
    hardware.choose_precision("cpu") != "int8" or not int8.is_installed(),
    reason="this machine does not take int8 by itself",
)
def test_workers_encode_in_int8(
    nodes: TwoNodes, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An int8 model travels, and gives the vectors that it gives here."""
    monkeypatch.setattr("eaglenet.indexing.encoding.MIN_INT8_BYTES", 1)
    # A machine that does not answer in time counts as slow in int8.
    monkeypatch.setattr(ray_executor, "CAPABILITY_TIMEOUT", 300.0)
    model, film = str(save_small_model(tmp_path / "model")), videos / "0.mp4"
    found = {}
    for name, changes in {
        "ray": {"executor": "ray", "workers": 1, "cluster": ClusterOptions(nodes.address)},
        "here": {"workers": 0},
        "fp32": {"workers": 0, "precision": "fp32"},
    }.items():
        options = IndexOptions(device="cpu", **changes)  # type: ignore[arg-type]
        report = index_videos([film], tmp_path / name, model, options=options)
        assert report.precision == ("fp32" if name == "fp32" else "int8")
        found[name] = [vector for vector, *_ in stored_clips(tmp_path / name).values()]
    assert found["ray"] == found["here"]
    assert found["ray"] != found["fp32"]


@pytest.mark.slow
def test_one_machine_without_fast_int8_decides_for_all(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    second = nodes.second.node_id

    def is_first() -> bool:
        return str(ray.get_runtime_context().get_node_id()) != second

    monkeypatch.setattr(ray_executor, "_is_fast_in_int8", lambda: True)
    try:
        assert RayExecutor.supports_int8(ClusterOptions(nodes.address))
        monkeypatch.setattr(ray_executor, "_is_fast_in_int8", is_first)
        assert not RayExecutor.supports_int8(ClusterOptions(nodes.address))
        assert not RayExecutor.supports_int8(ClusterOptions(nodes.address, gpus_per_worker=1))
    finally:
        ray.shutdown()
        RayExecutor._is_connected_here = False


def test_gpus_refuse_int8() -> None:
    pytest.importorskip("ray")
    setting = ExecutorSettings(
        BagMethod(), None, (), precision="int8", cluster=ClusterOptions(gpus_per_worker=1)
    )  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="int8 is for CPUs"):
        RayExecutor(setting)


def test_negative_gpus_are_an_error(videos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    options = IndexOptions(executor="ray", cluster=ClusterOptions(gpus_per_worker=-1))
    with pytest.raises(UsageError, match="--gpus-per-worker must be 0 or more, not -1"):
        index_videos([videos], tmp_path / "store", "bag", method=BagMethod(), options=options)


def test_missing_ray_error_names_the_extra(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    options = IndexOptions(executor="ray")
    with pytest.raises(UsageError, match=r"pip install 'eaglenet\[ray\]'"):
        index_videos([videos], tmp_path / "store", "bag", method=BagMethod(), options=options)


def killed_driver(nodes: TwoNodes, videos: Path, store: Path, chance: random.Random) -> None:
    """Start a driver of its own and kill it after some of its clips are stored."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), nodes.address, str(videos), str(store)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(chance.choice([0, 1, 2, 4])):
        process.stdout.readline()
    time.sleep(chance.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    process.wait()


def disturbed(nodes: TwoNodes, what: str, chance: random.Random, stop: threading.Event) -> None:
    """Kill workers or the second node at random moments."""
    while not stop.wait(chance.uniform(0.2, 3.0)):
        if what == "node" and chance.random() < 0.5:
            nodes.lose_node()
        elif workers := nodes.workers():
            os.kill(chance.choice(workers), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(TRIALS))
def test_workers_nodes_and_drivers_killed_at_random_leave_every_row_once(
    seed: int, nodes: TwoNodes, videos: Path, expected: dict[Any, Any], tmp_path: Path
) -> None:
    chance, store = random.Random(seed), tmp_path / "store"
    what = ["worker", "node", "driver", "worker", "driver"][seed % 5]
    if what == "driver":
        killed_driver(nodes, videos, store, chance)
        report = index_here(nodes, videos, store)
    else:
        stop = threading.Event()
        thread = threading.Thread(target=disturbed, args=(nodes, what, chance, stop))
        # Not for ever: with a kill every second nothing could ever be finished.
        threading.Timer(12.0, stop.set).start()
        thread.start()
        try:
            report = index_here(nodes, videos, store)
        finally:
            stop.set()
            thread.join()
    assert report.clips == NUM_CLIPS
    require_same(store, expected)
    shutil.rmtree(store)
