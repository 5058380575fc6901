"""Shards of a store that is searched by codes give the hits of one machine, to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from synthetic_store import BagMethod, add_file, clip_rows, content_of, make_store
from torch.nn import functional as F

from eaglenet.cluster import shard_front
from eaglenet.cluster.shard_front import RemoteShard, ShardQuery, ShardScan
from eaglenet.cluster.shards import NEAR_PATH, create_shard_app, pack, unpack_near
from eaglenet.core.types import Hit
from eaglenet.indexing.hubness import encode_hubness_bank, set_hubness_bank
from eaglenet.search import shortlist
from eaglenet.search import shortlist as approximate
from eaglenet.search.engine import Engine
from eaglenet.search.query import Query
from eaglenet.search.store import codes, near_codes
from eaglenet.search.store.base import open_store
from eaglenet.search.store.codes import code_bytes

QUERIES = ["red car", "blue dog jumps", "slow ball sleeps"]
ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"shortlist": 300},
    {"rerank": False},
    {"group_files": True},
    {"keep_duplicates": True},
    {"path": "/videos/1*"},
    {"path": "/videos/16.mp4"},
    {"tags": ("odd",)},
)


@pytest.fixture(params=["whole codes", "first halves first"])
def few_candidates(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Every store is searched by codes, with so few candidates that those decide the hits."""
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    monkeypatch.setattr(approximate, "CANDIDATES", 30)
    monkeypatch.setattr(approximate, "CANDIDATES_PER_RESULT", 1)
    monkeypatch.setattr(codes, "BLOCK", 448)
    if request.param == "first halves first":
        # Codes of 256 bits, of which the store holds many.
        monkeypatch.setattr(codes, "WORD", 256)
        monkeypatch.setattr(near_codes, "MANY", 1000)
        monkeypatch.setattr(near_codes, "WIDER", 2)
    codes.turning.cache_clear()
    yield
    codes.turning.cache_clear()


def frames_of(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, 5, 24, generator=generator), dim=-1)


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
    """With clips that are alike, that were removed, that came later and that have a level."""
    store, tables = make_store(tmp_path, bag, num_files=30, clips_each=60)
    # The same frames in several files: equal codes and equal cosines, in different parts.
    for number in range(30, 40):
        frames = frames_of(60, seed=number % 2)
        path = f"/videos/{number}.mp4"
        add_file(tables, store.manifest, bag, path, content_of(number), frames)
    store.publish(tables)
    one = Engine.open(tmp_path, bag)
    assert (one.info()["index"], len(one.snapshot)) == ("codes", 2400)
    several = fronts(tmp_path, bag, monkeypatch)
    plain = agree(one, several[:2])
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 1 << 30)
    assert Engine.open(tmp_path, bag).search_many(QUERIES, 7) != plain  # Codes decide.
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)

    tables.remove_files([f"/videos/{number}.mp4" for number in (0, 3, 17, 25, 26, 38)])
    add_file(tables, store.manifest, bag, "/videos/3.mp4", content_of(77), frames_of(90, seed=9))
    store.publish(tables)
    assert not one.snapshot.is_dense
    changed = agree(one, several, ASKED)
    assert changed != plain

    with store.hold():
        bank = encode_hubness_bank(["a red ball", "a car", "it jumps"], bag)
        store = set_hubness_bank(open_store(tmp_path), tables, bank)
        store.publish(tables)
    assert agree(Engine.open(tmp_path, bag), several) != changed
    assert all(engine.missing == () for engine in several)


def agree(
    one: Engine, several: list[Engine], asked: Sequence[dict[str, Any]] = ASKED[:1]
) -> list[list[Hit]]:
    """Ask all of them the same; what one machine answers.

    The first question goes to every front, each of the others to two of them in turn.
    """
    for number, options in enumerate(asked):
        expected = one.search_many(QUERIES, 7, **options)
        fronts_asked = {(number + more) % len(several) for more in (0, 1)}
        for place, engine in enumerate(several):
            if number == 0 or place in fronts_asked:
                assert engine.search_many(QUERIES, 7, **options) == expected
    clip = Query(clip_id=one.search(QUERIES[0], 1)[0].clip_id)
    no_dog = Query(QUERIES[0], negatives=("dog",))
    for engine in several[1:3]:
        assert engine.search(clip, 9) == one.search(clip, 9)
        assert engine.search(no_dog, 9) == one.search(no_dog, 9)
    return one.search_many(QUERIES, 7)


def test_shards_have_the_nearest_codes_of_the_store(
    few_candidates: None, bag: BagMethod, tmp_path: Path
) -> None:
    """In however many parts; and a part tells little more than it must."""
    make_store(tmp_path, bag, num_files=20, clips_each=60)
    snapshot = open_store(tmp_path).snapshot()
    generator = np.random.default_rng(0)
    asked = codes.codes_of(generator.standard_normal((2, 24), np.float32))
    for allowed in (None, generator.random(1200) < 0.3, generator.random(1200) < 0.01):
        for count, parts in ((1, 3), (40, 2), (40, 7), (300, 3), (2000, 2)):
            whole = approximate.nearest_in_shard(snapshot, asked, count, (1, 1), allowed)
            found = [
                approximate.nearest_in_shard(snapshot, asked, count, (number, parts), allowed)
                for number in range(1, parts + 1)
            ]
            for query, expected in enumerate(whole):
                near = [each[query] for each in found]
                kept = near_codes.nearest_of(near, count, 1200)
                assert kept.tolist() == near_codes.nearest_of([expected], count, 1200).tolist()
                assert all(len(each.slots) <= 5 * count for each in near)
    # A part without a clip.
    (empty,) = approximate.nearest_in_shard(snapshot, asked[:1], 40, (1, 2000))
    assert not len(empty.slots)


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


def test_shard_reads_its_own_codes_and_added_ones(
    few_candidates: None, bag: BagMethod, tmp_path: Path
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=40, clips_each=50)
    app = create_shard_app(store, (2, 4))
    snapshot = app.state.shard.snapshot()
    assert snapshot.part(2, 4) == (500, 1000)
    held = snapshot.codes_between(500, 1000)
    assert [block.shape[1] for block in held.blocks] == [448, 448]
    assert not snapshot._checked_parts  # No vector is read.
    rows = clip_rows(bag, store.manifest.layout, content_of(90), "/videos/90.mp4", frames_of(8, 1))
    tables.add_clips(rows)
    add_file(tables, store.manifest, bag, "/videos/91.mp4", content_of(91), frames_of(400, 2))
    store.publish(tables)
    newer = store.snapshot()
    assert newer.part(2, 4) == (600, 1200)
    more = newer.codes_between(600, 1200)
    assert more.blocks[0] is held.blocks[0]
    assert [block.shape[1] for block in more.blocks] == [448, 448]
    whole = newer.codes.distances(np.ones(24, np.float32))
    assert (more.distances(np.ones(24, np.float32)) == whole[600:1200]).all()


def test_refuses_requests_and_responses_of_another_store(
    few_candidates: None, bag: BagMethod, tmp_path: Path
) -> None:
    store, _ = make_store(tmp_path, bag, num_files=20, clips_each=60)
    snapshot, size = store.snapshot(), code_bytes(24)
    client = TestClient(create_shard_app(store, (1, 2)), base_url="http://localhost")
    body = {
        "identity": store.manifest.identity,
        "version": snapshot.version,
        "shard": 1,
        "num_shards": 2,
        "dim": 24,
        "count": 40,
        "codes": pack(np.zeros(size), "u1"),
    }
    answer = client.post(NEAR_PATH, json=body)
    assert answer.status_code == 200
    for change, status in (
        ({"codes": pack(np.zeros(size + 1), "u1")}, 422),
        ({"codes": pack(np.zeros(65 * size), "u1")}, 422),
        ({"codes": "not base64"}, 422),
        ({"count": 0}, 422),
        ({"identity": "another"}, 409),
        ({"shard": 2}, 409),
    ):
        assert client.post(NEAR_PATH, json={**body, **change}).status_code == status, change
    (near,) = answer.json()["lists"]
    is_half = near["halves"] is not None
    assert len(unpack_near(near, 1200, is_half).slots) >= 40
    for wrong in (
        {"rows": pack(np.full(40, 1200), "<i8")},
        {"rows": pack(np.full(40, -1), "<i8")},
        {"distances": pack(np.zeros(39), "<u2")},
    ):
        with pytest.raises(ValueError, match="outside of the store"):
            unpack_near({**near, **wrong}, 1200, is_half)
    if not is_half:
        with pytest.raises(TypeError):
            unpack_near(near, 1200, True)
