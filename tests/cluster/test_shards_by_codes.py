"""Shards of a store that is searched by codes give the hits of one machine, to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from torch.nn import functional as F

from eaglenet.cluster import shard_front
from eaglenet.cluster.bucket import BucketStore
from eaglenet.cluster.shard_front import RemoteShard, ShardQuery, ShardScan
from eaglenet.cluster.shards import NEAR_PATH, create_shard_app, pack, unpack, unpack_near
from eaglenet.indexing.model import encode_hubness_bank
from eaglenet.search import shortlist
from eaglenet.search.engine import Engine
from eaglenet.search.hit import Hit
from eaglenet.search.query import Query
from eaglenet.serve.app import create_app
from eaglenet.store import codes
from eaglenet.store.codes import MAX_SUM, merge_best, num_bits, weights_of
from eaglenet.store.records import Changes
from eaglenet.store.segments import MAPPED
from eaglenet.store.store import LocalStore, open_store
from sampling import slow
from synthetic_store import BagMethod, add_file, content_of, make_manifest, make_store

QUERIES = ["red car", "blue dog jumps", "slow ball sleeps"]
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"shortlist": 300},
    {"rerank": False},
    {"group_files": True},
    {"keep_duplicates": True},
    {"path": "/videos/1*"},
    {"path": "/videos/16.mp4"},
    {"tags": ("odd",)},
)


@pytest.fixture(params=[slow("whole codes"), "first halves first"])
def few_candidates(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Every store is searched by codes, with so few candidates that those decide the hits."""
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    monkeypatch.setattr(shortlist, "CANDIDATES", 30)
    monkeypatch.setattr(shortlist, "CANDIDATES_PER_RESULT", 1)
    monkeypatch.setattr(codes, "SCAN_BLOCK", 448)
    if request.param == "first halves first":
        # Codes of 256 bits, of which the store holds many.
        monkeypatch.setattr(codes, "WORD_BITS", 256)
        monkeypatch.setattr(codes, "PREFIX_ROWS", 1000)
        monkeypatch.setattr(codes, "PREFIX_FACTOR", 2)
    codes.rotation.cache_clear()
    yield
    codes.rotation.cache_clear()


@pytest.fixture(autouse=True)
def _no_scan_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A scan whose shard failed would probe it through the stand-ins of later tests."""
    opened: list[ShardScan] = []
    init = ShardScan.__init__

    def record(self: ShardScan, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        opened.append(self)

    monkeypatch.setattr(ShardScan, "__init__", record)
    yield
    for scan in opened:
        scan.close()


def frames_of(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, 5, 24, generator=generator), dim=-1)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def fronts(folder: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Fronts of one to four shards, each the real application but for the wire."""
    store = open_store(folder)
    clients: dict[tuple[int, int], TestClient] = {}

    def post(self: RemoteShard, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        if self.shard not in clients:
            app = create_shard_app(store, self.shard)
            clients[self.shard] = TestClient(app, base_url="http://localhost")
        answer = clients[self.shard].post(query.path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    monkeypatch.setattr(RemoteShard, "_post", post)
    identity = store.manifest.identity
    scans = [ShardScan([f"http://{n}" for n in range(parts)], identity) for parts in (1, 2, 3, 4)]
    for scan in scans:
        scan.timeout = 60.0
        for shard in scan.shards:
            shard.timeout = 60.0
    return [Engine(store, model=bag, scan=scan) for scan in scans]


def test_hits_equal_those_of_one_machine(
    few_candidates: None, bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With clips that are alike, removed, hidden, added later, and corrected for hubness."""
    make_store(tmp_path, bag, num_files=30, clips_each=60)
    with LocalStore.write(tmp_path) as writer:
        # The same frames in several files: equal codes and equal cosines, in different shards.
        for number in range(30, 40):
            frames = frames_of(60, seed=number % 2)
            add_file(writer, bag, f"/videos/{number}.mp4", content_of(number), frames)
        writer.finish()
    one = Engine.open(tmp_path, bag)
    assert (one.info()["index"], len(one.snapshot)) == ("codes", 2400)
    several = fronts(tmp_path, bag, monkeypatch)
    plain = agree(one, several[:2])
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 1 << 30)
    assert Engine.open(tmp_path, bag).search_many(QUERIES, 7) != plain  # Codes decide.
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)

    removed = [f"/videos/{number}.mp4" for number in (0, 3, 17, 25, 26, 38)]
    with LocalStore.write(tmp_path) as writer:
        writer.commit(Changes(removed_files=removed))
        add_file(writer, bag, "/videos/3.mp4", content_of(77), frames_of(90, seed=9))
    assert one.snapshot.visible is not None
    changed = agree(one, several, OPTIONS)
    assert changed != plain
    with LocalStore.write(tmp_path) as writer:
        writer.finish()
    assert agree(one, several) == changed

    with LocalStore.write(tmp_path) as writer:
        writer.set_hubness(encode_hubness_bank(["a red ball", "a car", "it jumps"], bag))
    assert agree(Engine.open(tmp_path, bag), several) != changed
    assert all(engine.missing_shards == () for engine in several)


def agree(
    one: Engine, several: list[Engine], all_options: Sequence[dict[str, Any]] = OPTIONS[:1]
) -> list[list[Hit]]:
    """Search the same with all of them; returns the hits of one machine.

    The first options go to every front, each of the others to two of them in turn.
    """
    results: list[list[Hit]] = []
    for number, options in enumerate(all_options):
        expected = one.search_many(QUERIES, 7, **options)
        results = results or expected
        fronts_asked = {(number + more) % len(several) for more in (0, 1)}
        for place, engine in enumerate(several):
            if number == 0 or place in fronts_asked:
                assert engine.search_many(QUERIES, 7, **options) == expected
    others = [Query(clip_id=results[0][0].clip_id), Query(QUERIES[0], negatives=("dog",))]
    expected = one.search_many(others, 9)
    for engine in several[1:3]:
        assert engine.search_many(others, 9) == expected
    return results


def test_shards_have_the_nearest_codes_of_the_store(
    few_candidates: None, bag: BagMethod, tmp_path: Path
) -> None:
    """Whatever their number; and a shard reports few rows more than it must."""
    make_store(tmp_path, bag, num_files=20, clips_each=60)
    snapshot = open_store(tmp_path).snapshot()
    generator = np.random.default_rng(0)
    queries = generator.standard_normal((2, 24), np.float32)
    asked = np.stack([weights_of(query) for query in queries])
    for allowed in (None, generator.random(1200) < 0.3, generator.random(1200) < 0.01):
        for count, parts in ((1, 3), (40, 2), (40, 7), (300, 3), (2000, 2)):
            whole = shortlist.nearest_in_shard(snapshot, asked, count, (1, 1), allowed)
            found = [
                shortlist.nearest_in_shard(snapshot, asked, count, (number, parts), allowed)
                for number in range(1, parts + 1)
            ]
            for query, expected in enumerate(whole):
                near = [each[query] for each in found]
                rows = merge_best(near, count, 1200)
                assert rows.tolist() == merge_best([expected], count, 1200).tolist()
                assert all(len(each.rows) <= 5 * codes.num_ranked(count) for each in near)
    # A part without a clip.
    (empty,) = shortlist.nearest_in_shard(snapshot, asked[:1], 40, (1, 2000))
    assert not len(empty.rows)


def test_long_lists_of_queries_are_sent_in_chunks(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a shard takes at once, whose body or answer would else be too large."""
    make_store(tmp_path, bag, num_files=6, clips_each=5)
    one, (_, two, *_) = Engine.open(tmp_path, bag), fronts(tmp_path, bag, monkeypatch)
    queries = [f"{QUERIES[number % 3]} {number}" for number in range(70)]
    # Shards are asked before anything is ranked again, which takes most of a search's time.
    expected = one.search_many(queries, 3, rerank=False)
    assert two.search_many(queries, 3, rerank=False) == expected
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    monkeypatch.setattr(shard_front, "CANDIDATES", 5000)
    expected = one.search_many(queries, 3, rerank=False)
    assert two.search_many(queries, 3, rerank=False) == expected
    clip = one.search("red", 1)[0].clip_id
    assert two.search(Query(clip_id=clip), 10_000) == one.search(Query(clip_id=clip), 10_000)


def test_results_say_that_a_shard_is_missing_whatever_its_error(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a thread for its request, for instance, which no list of errors foresees."""
    make_store(tmp_path, bag, num_files=6, clips_each=5)
    _, front, *_ = fronts(tmp_path, bag, monkeypatch)
    post = RemoteShard._post

    def fail_on_first(self: RemoteShard, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        if self.shard == (1, 2):
            raise RuntimeError("can't start new thread")
        return post(self, query, body)

    monkeypatch.setattr(RemoteShard, "_post", fail_on_first)
    hits = front.search("red car", 30, rerank=False)
    assert {hit.path for hit in hits} == {f"/videos/{number}.mp4" for number in (3, 4, 5)}
    assert front.missing_shards == ("shard 1 of 2",)


def test_results_say_that_a_shard_was_missing_after_it_answers_again(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge, or features from object storage, may take longer than the shard is down."""
    monkeypatch.setattr(shard_front, "RECENT_SECONDS", 0.0)
    make_store(tmp_path, bag, num_files=6, clips_each=5)
    _, front, *_ = fronts(tmp_path, bag, monkeypatch)
    assert isinstance(front._scan, ShardScan)
    post, down = RemoteShard._post, [front._scan.shards[0]]

    def fail_once(self: RemoteShard, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        if self in down:
            down.clear()
            raise ConnectionError("no answer")
        return post(self, query, body)

    def wait_for_shards(self: Engine, *_: object) -> str:
        assert until(lambda: self.missing_shards == ())
        return ""

    monkeypatch.setattr(RemoteShard, "_post", fail_once)
    monkeypatch.setattr(Engine, "few_clips_notice", wait_for_shards)
    with TestClient(create_app(front), base_url="http://localhost") as client:
        for missing, num_files in ((["shard 1 of 2"], 3), ([], 6)):
            answer = client.get("/api/search", params={"q": "red car", "k": 30}).json()
            assert answer["missing"] == missing
            assert len({hit["path"] for hit in answer["hits"]}) == num_files


def test_a_shard_without_a_thread_for_requests_fails_no_search_and_is_probed_until_it_has_one(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_front, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(shard_front, "RECENT_SECONDS", 0.0)
    make_store(tmp_path, bag, num_files=6, clips_each=5)
    _, front, *_ = fronts(tmp_path, bag, monkeypatch)
    assert isinstance(front._scan, ShardScan)
    shard, submit, failures = front._scan.shards[0], RemoteShard.submit, []

    def fail_thrice(self: RemoteShard, query: ShardQuery[Any]) -> Any:
        if self is shard and len(failures) < 3:
            failures.append(query)
            raise RuntimeError("can't start new thread")
        return submit(self, query)

    monkeypatch.setattr(RemoteShard, "submit", fail_thrice)
    start = time.perf_counter()
    hits = front.search("red car", 30, rerank=False)
    assert {hit.path for hit in hits} == {f"/videos/{number}.mp4" for number in (3, 4, 5)}
    assert front.missing_shards_since(start) == ("shard 1 of 2",)
    assert until(lambda: front.missing_shards == ())
    assert len(failures) == 3
    assert len(front.search("red car", 30, keep_duplicates=True)) == 30


def test_shard_reads_its_own_codes_and_no_vectors(
    few_candidates: None, bag: BagMethod, tmp_path: Path
) -> None:
    store = make_store(tmp_path, bag, num_files=40, clips_each=50)
    snapshot = create_shard_app(store, (2, 4)).state.shard.snapshot()
    (segment,) = snapshot.segments
    is_checked = dict(zip(MAPPED, segment._is_checked.any(axis=0), strict=True))
    assert is_checked["codes"]
    assert not is_checked["vectors"]
    assert shortlist.rows_of_shard(snapshot, (2, 4)) == (500, 1000)
    shard_codes, weights = snapshot.codes(500, 1000), weights_of(np.ones(24, np.float32))
    near = shard_codes.best_in_part(weights, 2000)
    whole = snapshot.codes().best_in_part(weights, 2000)
    is_inside = (whole.rows >= 500) & (whole.rows < 1000)
    assert near.rows.tolist() == whole.rows[is_inside].tolist() == [*range(500, 1000)]
    assert near.distances.tolist() == whole.distances[is_inside].tolist()
    assert near.scores is not None
    assert whole.scores is not None
    assert near.scores.tolist() == whole.scores[is_inside].tolist()


def test_refuses_requests_and_responses_of_another_store(
    few_candidates: None, bag: BagMethod, tmp_path: Path
) -> None:
    store = make_store(tmp_path, bag, num_files=20, clips_each=60)
    snapshot, size = store.snapshot(), num_bits(24)
    client = TestClient(create_shard_app(store, (1, 2)), base_url="http://localhost")
    body = {
        "identity": store.manifest.identity,
        "version": snapshot.version,
        "shard": 1,
        "num_shards": 2,
        "dim": 24,
        "count": 40,
        "weights": pack(np.zeros(size), "<i2"),
    }
    answer = client.post(NEAR_PATH, json=body)
    assert answer.status_code == 200
    for change, status in (
        ({"weights": pack(np.zeros(size + 1), "<i2")}, 422),
        ({"weights": pack(np.zeros(65 * size), "<i2")}, 422),
        ({"weights": "not base64"}, 422),
        ({"count": 0}, 422),
        ({"identity": "another"}, 409),
        ({"shard": 2}, 409),
    ):
        assert client.post(NEAR_PATH, json={**body, **change}).status_code == status, change
    (near,) = answer.json()["lists"]
    has_prefixes, bounds = "prefix_distances" in near, (0, 600)
    assert len(unpack_near(near, bounds, has_prefixes).rows) >= 40
    for wrong in (
        {"rows": pack(np.full(len(unpack(near["rows"], "<i8")), 600), "<i8")},
        {"rows": pack(np.full(40, -1), "<i8")},
        {"distances": pack(np.zeros(39), "<u2")},
        {"scores": pack(np.zeros(39), "<i4")},
    ):
        with pytest.raises(ValueError, match="outside the shard"):
            unpack_near({**near, **wrong}, bounds, has_prefixes)
    impossible = {"scores": pack(np.full(len(unpack(near["rows"], "<i8")), MAX_SUM), "<i4")}
    with pytest.raises(ValueError, match="impossible scores"):
        unpack_near({**near, **impossible}, bounds, has_prefixes)
    if not has_prefixes:
        with pytest.raises(KeyError):
            unpack_near(near, bounds, True)


@pytest.mark.parametrize("way", ["codes", slow("vectors")])
def test_shards_of_a_store_on_object_storage_have_copies_of_their_own(
    way: str, bag: BagMethod, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy is made by itself; one of them is damaged when its shard starts."""
    if way == "codes":
        monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    with BucketStore.write(location, make_manifest(bag)) as writer:
        for number in range(12):
            path = f"/videos/{number}.mp4"
            add_file(writer, bag, path, content_of(number), frames_of(20, number))
        writer.commit(Changes(removed_files=["/videos/2.mp4", "/videos/7.mp4"]))
        writer.finish()
    clients = []
    for number in (1, 2, 3):
        monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / f"machine {number}"))
        store = open_store(location)
        if number == 2:
            store.snapshot()
            (path,) = (tmp_path / "machine 2" / "stores").glob(f"*/segments/*.{way}")
            path.write_bytes(bytes(path.stat().st_size))
            store = open_store(location)
        app = create_shard_app(store, (number, 3))
        clients.append(TestClient(app, base_url="http://localhost"))
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "front"))

    def post(self: RemoteShard, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        answer = clients[self.shard[0] - 1].post(query.path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    monkeypatch.setattr(RemoteShard, "_post", post)
    store = open_store(location)
    scan = ShardScan(["http://a", "http://b", "http://c"], store.manifest.identity, timeout=60.0)
    front, one = Engine(store, model=bag, scan=scan), Engine(open_store(location), model=bag)
    assert front.search_many(QUERIES, 7) == one.search_many(QUERIES, 7)
    with BucketStore.write(location) as writer:
        add_file(writer, bag, "/videos/50.mp4", content_of(50), frames_of(20, 50))
    assert len(front.snapshot) == 11 * 20
    assert front.search_many(QUERIES, 7) == one.search_many(QUERIES, 7)
    assert front.missing_shards == ()
    scan.close()
