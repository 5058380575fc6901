"""Several shards and a front give the hits of one machine; a shard may be slow, dead or lie."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_store import DemoStore
from fastapi.testclient import TestClient

import eaglenet
from eaglenet.cluster import shard_front
from eaglenet.cluster.shard_front import RemoteShard, ShardQuery, ShardScan
from eaglenet.cluster.shards import (
    OTHER_VERSION,
    ScanRequest,
    Shard,
    create_shard_app,
    pack,
    parse_shard,
)
from eaglenet.core.errors import StoreError, UsageError
from eaglenet.indexing.model import encode_hubness_bank
from eaglenet.search.engine import Engine
from eaglenet.search.query import Query
from eaglenet.serve.app import create_app, run_app
from eaglenet.serve.problems import Problem
from eaglenet.serve.settings import Settings
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore, Store, open_store

SHARDS = 3
QUERIES = ["a red ball", "two blue cars", "something green moves"]
TOKEN = "a-token-of-the-shards-and-the-front"


@dataclass
class Gate:
    """Proxy of a shard that can be slow (until ``go`` is set), dead (``broken``) or lie."""

    target: str
    go: threading.Event = field(default_factory=threading.Event)
    broken: bool = False
    lie: Callable[[bytes], bytes] | None = None
    """Replaces the answer of the shard."""
    asked: int = 0
    authorizations: set[str] = field(default_factory=set)
    """Values of the header that the front sent."""
    address: str = ""
    server: Any = field(default=None, repr=False)

    def open(self) -> Gate:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                gate.asked += 1
                gate.authorizations.add(self.headers["Authorization"] or "")
                body = self.rfile.read(int(self.headers["Content-Length"]))
                gate.go.wait(60)
                if gate.broken:
                    self.connection.close()
                    return
                host, port = gate.target.removeprefix("http://").rstrip("/").split(":")
                connection = HTTPConnection(host, int(port))
                kept = ("authorization", "content-type")
                headers = {k: v for k, v in self.headers.items() if k.lower() in kept}
                connection.request("POST", self.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
                if gate.lie is not None:
                    content = gate.lie(content)
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                connection.close()

            def log_message(self, *_: object) -> None:
                return None

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, ValueError):
                    return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self


@pytest.fixture(scope="module")
def gates(demo: DemoStore) -> Iterator[list[Gate]]:
    """Real services of every part, each behind a gate."""
    store, until, found = open_store(demo.folder), threading.Event(), []
    settings = Settings(token=TOKEN, search_rate=10_000.0)
    for number in range(1, SHARDS + 1):
        ready: threading.Event = threading.Event()
        addresses: list[str] = []

        def told(address: str, to: Any = addresses, event: Any = ready) -> None:
            to.append(address)
            event.set()

        def make(part: int = number) -> Any:
            return create_shard_app(store, (part, SHARDS), settings)

        options: dict[str, Any] = {"port": 0, "on_ready": told, "until": until}
        threading.Thread(target=run_app, args=(make, settings), kwargs=options).start()
        assert ready.wait(60)
        found.append(Gate(addresses[0]).open())
    yield found
    until.set()
    for gate in found:
        gate.server.shutdown()


@pytest.fixture
def scan(gates: list[Gate], demo: DemoStore) -> Iterator[ShardScan]:
    """Shortlists made by the shards, all of which answer."""
    for gate in gates:
        gate.go.set()
        gate.broken, gate.lie = False, None
    identity = open_store(demo.folder).manifest.identity
    made = ShardScan([gate.address for gate in gates], identity, token=TOKEN, timeout=60.0)
    yield made
    made.close()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_front_of_shards_returns_the_hits_of_one_machine(
    scan: ShardScan, gates: list[Gate], demo: DemoStore, engine: Engine
) -> None:
    front = Engine(open_store(demo.folder), scan=scan)
    for options in (
        {},
        {"shortlist": 3},
        {"group_files": True},
        {"path": "*1*"},
        {"rerank": False},
    ):
        expected = engine.search_many(QUERIES, 7, **options)
        assert front.search_many(QUERIES, 7, **options) == expected
        assert any(expected)
    clip = engine.search(QUERIES[0], k=1)[0].clip_id
    assert front.search(Query(clip_id=clip), 5) == engine.search(Query(clip_id=clip), 5)
    no_blue = Query(QUERIES[0], negatives=("blue",))
    assert front.search(no_blue) == engine.search(no_blue)
    assert front.missing_shards == ()
    assert all(gate.asked for gate in gates)


def test_front_warns_that_it_waits_for_shards(
    demo: DemoStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(demo.folder)
    scan = ShardScan(["http://127.0.0.1:1"], store.manifest.identity)
    send, rounds = scan._send, 0

    def answer_from_the_third_round_on(query: ShardQuery[Any], shards: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds < 3:
            return send(query, shards)
        for shard in shards:
            shard.record(None)
        return {}

    monkeypatch.setattr(scan, "_send", answer_from_the_third_round_on)
    try:
        scan.wait_until_up(store.snapshot(), seconds=60.0)
    finally:
        scan.close()
    told = [line for line in caplog.messages if "1 of 1 shards do not answer yet" in line]
    assert len(told) == 1


def test_shards_apply_the_same_hubness_offsets(
    demo: DemoStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(demo.folder, tmp_path / "store")
    engine = Engine.open(tmp_path / "store")
    plain = [hit.clip_id for hit in engine.search(QUERIES[0], 7)]
    store = open_store(tmp_path / "store")
    bank = encode_hubness_bank(["a red ball", "a car", "it moves"], eaglenet.load(demo.model))
    with LocalStore.write(tmp_path / "store") as writer:
        # Stronger than usual, so that the order changes.
        writer.set_hubness(dataclasses.replace(bank, weight=9.0))
    shards = [Shard(store, (number, SHARDS)) for number in range(1, SHARDS + 1)]
    asked: list[Any] = []

    def post(self: RemoteShard, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        asked.append(body)
        request = ScanRequest(**json.loads(json.dumps(body)))
        return shards[self.shard[0] - 1].scan(request)

    monkeypatch.setattr(RemoteShard, "_post", post)
    scan = ShardScan(["http://a", "http://b", "http://c"], store.manifest.identity, timeout=60.0)
    front = Engine(store, scan=scan)
    no_blue = [Query(text, negatives=("blue",)) for text in QUERIES]
    for queries, options in ((QUERIES, {}), (QUERIES, {"rerank": False}), (no_blue, {})):
        expected = engine.search_many(queries, 7, **options)
        assert front.search_many(queries, 7, **options) == expected
    assert [hit.clip_id for hit in front.search(QUERIES[0], 7)] != plain
    clip = plain[0]
    assert front.search(Query(clip_id=clip), 5) == engine.search(Query(clip_id=clip), 5)
    assert "hubness_weights" not in asked[-1]
    # Shards are asked in parallel: any may be the first.
    body = next(body for body in asked if body["shard"] == 1)
    with pytest.raises(Problem, match="hubness_weights: 1 for 3 vectors"):
        shards[0].scan(ScanRequest(**{**body, "hubness_weights": [1.0]}))
    scan.close()


def test_slow_shard_is_left_out_in_time_and_reported(
    scan: ShardScan, gates: list[Gate], demo: DemoStore, engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(shard_front, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(shard_front, "RECENT_SECONDS", 0.3)
    front = Engine(open_store(demo.folder), scan=scan)
    whole = {hit.clip_id for hit in front.search("red", k=100)}
    scan.timeout = 1.0
    slow, wait = scan.shards[1], shard_front.wait

    def wait_for_others(futures: Any, timeout: float) -> Any:
        """On a busy machine the others may be slow, too."""
        wait([future for future, shard in futures.items() if shard is not slow], timeout=60)
        return wait(futures, timeout=timeout)

    monkeypatch.setattr(shard_front, "wait", wait_for_others)
    gates[1].go.clear()
    with TestClient(create_app(front), base_url="http://localhost") as client:
        begun = time.monotonic()
        answer = client.get("/api/search", params={"q": "red", "k": 100}).json()
        assert time.monotonic() - begun < 30
        assert answer["missing"] == ["shard 2 of 3"]
        assert {hit["clip_id"] for hit in answer["hits"]} < whole
        # One that is known to be slow is sent probes only, so that no search waits for it again.
        submit, senders = slow.submit, set()

        def record(query: ShardQuery[Any]) -> Any:
            senders.add(threading.current_thread().name)
            return submit(query)

        monkeypatch.setattr(slow, "submit", record)
        assert client.get("/api/search", params={"q": "blue"}).json()["hits"]
        assert senders <= {"shards-probe"}
        gates[1].go.set()
        scan.timeout = 60.0
        assert until(lambda: front.missing_shards == ())
        answer = client.get("/api/search", params={"q": "red", "k": 100}).json()
        assert answer["missing"] == []
        assert {hit["clip_id"] for hit in answer["hits"]} == whole


def test_a_shard_that_answers_again_during_a_search_is_missing_from_its_results(
    scan: ShardScan, gates: list[Gate], demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranking may take longer than the shard is gone."""
    monkeypatch.setattr(shard_front, "RECENT_SECONDS", 0.0)
    front, merge = Engine(open_store(demo.folder), scan=scan), shard_front.merge_shortlists
    front.search("warm")
    gates[1].broken = True

    def slowly(*arguments: Any) -> Any:
        gates[1].broken = False
        assert until(lambda: scan.shards[1].failed_at is None)
        return merge(*arguments)

    monkeypatch.setattr(shard_front, "merge_shortlists", slowly)
    with TestClient(create_app(front), base_url="http://localhost") as client:
        answer = client.get("/api/search", params={"q": "red", "k": 100}).json()
        assert answer["missing"] == ["shard 2 of 3"]
        answer = client.get("/api/search", params={"q": "red", "k": 100}).json()
        assert answer["missing"] == []


def test_closing_waits_for_the_thread_that_probes(
    demo: DemoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would ask threads that have ended, and print a traceback."""
    monkeypatch.setattr(shard_front, "PROBE_SECONDS", 0.01)
    store, is_probing = open_store(demo.folder), threading.Event()
    scan = ShardScan(["http://127.0.0.1:1"], store.manifest.identity)
    scan.wait_until_up(store.snapshot(), seconds=0.0)
    (shard,) = scan.shards
    submit = shard.submit

    def submit_late(query: ShardQuery[Any]) -> Any:
        is_probing.set()
        assert scan._stop.wait(60)
        time.sleep(0.1)
        return submit(query)

    monkeypatch.setattr(shard, "submit", submit_late)
    assert is_probing.wait(60)
    scan.close()
    assert not scan._prober.is_alive()


def test_dead_shard_is_left_out_and_no_shard_is_an_error(
    scan: ShardScan, gates: list[Gate], demo: DemoStore
) -> None:
    front = Engine(open_store(demo.folder), scan=scan)
    front.search("warm")
    gates[0].broken = True
    assert front.search("red", k=100)
    assert front.missing_shards == ("shard 1 of 3",)
    for gate in gates:
        gate.broken = True
    with pytest.raises(StoreError, match=r"no shard of the store answers.*shard 2 of 3 at http"):
        front.search("red")


def with_arrays(content: bytes, rows: str | None = None, cosine: float = 0.5) -> bytes:
    """Replace the rows of each list by as many equal ones, or its cosines by ``cosine``."""
    lists = json.loads(content)["lists"]
    for each in lists:
        values = np.frombuffer(base64.b64decode(each["rows"]), "<i8")
        each["cosines"] = pack(np.full(len(values), cosine), "<f4")
        if rows == "equal":
            each["rows"] = pack(np.full(len(values), values[0]), "<i8")
    return json.dumps({"lists": lists}).encode()


LIES: dict[str, Callable[[bytes], bytes]] = {
    "nested": lambda content: b'{"lists": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no lists": lambda content: b'{"lists": []}',
    "too many lists": lambda content: json.dumps(
        {"lists": json.loads(content)["lists"] * 9}
    ).encode(),
    "endless": lambda content: content[:-1] + b" " * 2**23 + b"}",
    "other type": lambda content: b"[1, 2]",
    "other rows": lambda content: content.replace(b'"rows":"', b'"rows":"////////', 1),
    "equal rows": lambda content: with_arrays(content, rows="equal"),
    "infinite cosines": lambda content: with_arrays(content, cosine=float("inf")),
    "no numbers": lambda content: with_arrays(content, cosine=float("nan")),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_shard_is_left_out_and_costs_only_its_own_hits(
    lie: str, scan: ShardScan, gates: list[Gate], demo: DemoStore
) -> None:
    front = Engine(open_store(demo.folder), scan=scan)
    whole = {hit.clip_id for hit in front.search("red", k=100)}
    gates[1].lie = LIES[lie]
    hits = front.search("red", k=100)
    assert hits
    assert {hit.clip_id for hit in hits} < whole
    assert front.missing_shards == ("shard 2 of 3",)


def test_refuses_wrong_shards_tokens_and_stores(
    gates: list[Gate], demo: DemoStore, scan: ShardScan
) -> None:
    snapshot = open_store(demo.folder).snapshot()
    identity = open_store(demo.folder).manifest.identity
    addresses = [gate.address for gate in gates]
    for urls, name, token, reason in (
        (addresses[::-1], identity, TOKEN, "in the order of the shards"),
        (addresses, "another", TOKEN, "another store"),
        (addresses, identity, "wrong-token", "start it with the EAGLENET_TOKEN of the front"),
    ):
        other = ShardScan(urls, name, token=token, timeout=60.0)
        other.wait_until_up(snapshot, seconds=0.0)
        assert any(reason in shard.reason for shard in other.shards), reason
        other.close()


def test_a_shard_refuses_requests_for_another_shard(demo: DemoStore) -> None:
    store = open_store(demo.folder)
    shard = Shard(store, (1, SHARDS))
    scan = ShardScan(["http://a"] * SHARDS, store.manifest.identity)
    body = scan._probe_query(store.snapshot()).body
    scan.close()
    assert shard.scan(ScanRequest(**body, shard=1, num_shards=SHARDS))["lists"]
    with pytest.raises(Problem, match="this is shard 1 of 3, not 2 of 3"):
        shard.scan(ScanRequest(**body, shard=2, num_shards=SHARDS))


def test_rows_of_another_shard_are_refused(
    scan: ShardScan, gates: list[Gate], demo: DemoStore
) -> None:
    front = Engine(open_store(demo.folder), scan=scan)
    whole = {hit.clip_id for hit in front.search("red", k=100)}
    row = base64.b64encode(np.zeros(1, "<i8").tobytes()).decode()
    cosine = base64.b64encode(np.ones(1, "<f4").tobytes()).decode()
    lie = json.dumps({"lists": [{"rows": row, "cosines": cosine}]}).encode()
    gates[1].lie = lambda content: lie
    assert {hit.clip_id for hit in front.search("red", k=100)} < whole
    assert front.missing_shards == ("shard 2 of 3",)


def two_shards(folder: Path) -> tuple[Store, list[Shard]]:
    store, *copies = (open_store(folder) for _ in range(3))
    return store, [Shard(copy, (number, 2)) for number, copy in enumerate(copies, 1)]


def commit_change(folder: Path) -> None:
    with LocalStore.write(folder) as writer:
        file = writer.files()[0]
        writer.commit(Changes(files=[dataclasses.replace(file, size=file.size + 1)]))


def test_a_search_during_a_commit_is_begun_again_with_the_newer_version(
    demo: DemoStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(demo.folder, tmp_path / "store")
    store, shards = two_shards(tmp_path / "store")
    commits = 0

    def post(self: RemoteShard, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        nonlocal commits
        if commits < 1:
            commits += 1
            commit_change(tmp_path / "store")
        request = ScanRequest(**json.loads(json.dumps(body)))
        try:
            return shards[self.shard[0] - 1].scan(request)
        except Problem as problem:
            if problem.code != OTHER_VERSION:
                raise
            raise shard_front.OtherVersionError(problem.detail) from problem

    monkeypatch.setattr(RemoteShard, "_post", post)
    scan = ShardScan(["http://a", "http://b"], store.manifest.identity, timeout=60.0)
    front = Engine(store, scan=scan)
    before = front.snapshot.version
    hits = front.search(QUERIES[0], 7)
    assert front.missing_shards == ()
    assert front.snapshot.version > before
    assert hits == Engine.open(tmp_path / "store").search(QUERIES[0], 7)
    # A shard that says so for ever is left out, like any other that does not answer.
    monkeypatch.setattr(shards[1], "snapshot", lambda version: other_version())
    assert front.search(QUERIES[0], 7)
    assert front.missing_shards == ("shard 2 of 2",)
    scan.close()


def test_every_search_during_a_commit_is_begun_again(
    demo: DemoStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once: that the first begins again does not make the shard wrong for the second."""
    shutil.copytree(demo.folder, tmp_path / "store")
    store, shards = two_shards(tmp_path / "store")
    both = threading.Barrier(2)

    def post(self: RemoteShard, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        if body["version"] == before and self.shard[0] == 1:
            if both.wait(60) == 0:
                commit_change(tmp_path / "store")
            both.wait(60)
            raise shard_front.OtherVersionError("another version")
        return shards[self.shard[0] - 1].scan(ScanRequest(**json.loads(json.dumps(body))))

    monkeypatch.setattr(RemoteShard, "_post", post)
    scan = ShardScan(["http://a", "http://b"], store.manifest.identity, timeout=60.0)
    front = Engine(store, scan=scan)
    before = front.snapshot.version
    with ThreadPoolExecutor(2) as threads:
        lists = list(threads.map(lambda query: front.search(query, 7), QUERIES[:2]))
    assert front.missing_shards == ()
    one = Engine.open(tmp_path / "store")
    assert lists == [one.search(query, 7) for query in QUERIES[:2]]
    scan.close()


def other_version() -> Any:
    raise Problem(409, "another version", code=OTHER_VERSION)


def test_no_shard_learns_the_token_of_the_front_or_of_another_shard(
    gates: list[Gate], demo: DemoStore, scan: ShardScan
) -> None:
    for gate in gates:
        gate.authorizations.clear()
    scan.wait_until_up(open_store(demo.folder).snapshot(), seconds=20.0)
    assert not any(shard.reason for shard in scan.shards)
    sent = [value for gate in gates for value in gate.authorizations]
    assert len(set(sent)) == len(sent) == SHARDS
    assert not any(TOKEN in value for value in sent)
    # What one shard was sent opens neither another shard nor the service.
    host, port = gates[1].target.removeprefix("http://").rstrip("/").split(":")
    for value, is_own in ((sent[0], False), (sent[1], True), (f"Bearer {TOKEN}", False)):
        connection = HTTPConnection(host, int(port))
        headers = {"Authorization": value, "Content-Type": "application/json"}
        connection.request("POST", "/shard/scan", "{}", headers)
        assert (connection.getresponse().status != 401) is is_own
        connection.close()
    app = create_app(Engine(open_store(demo.folder)), Settings(token=TOKEN))
    with TestClient(app, base_url="http://localhost") as client:
        for value in sent:
            answer = client.get("/api/search?q=red", headers={"Authorization": value})
            assert answer.status_code == 401


@pytest.mark.parametrize(
    "url", ["http://a:99999", "http://[::1", "a:80:90", "ftp://a", "http://a:80/shard", "http://"]
)
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address; use http://HOST:PORT"):
        RemoteShard(url, (1, 1), None, 1.0)


def test_parses_shard_numbers() -> None:
    assert parse_shard("4/4") == (4, 4)
    for text in ("0/4", "5/4", "1", "1/0", "a/b", ""):
        with pytest.raises(UsageError, match="such as 1/4"):
            parse_shard(text)
