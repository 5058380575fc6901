"""Codes of vectors, by which very large stores are searched."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic_store import DIM, BagMethod, make_store
from torch.nn import functional as F

from eaglenet.core.errors import StoreError
from eaglenet.indexing.maintenance import recall, repair, verify
from eaglenet.search import shortlist
from eaglenet.search import shortlist as approximate
from eaglenet.search.engine import Engine
from eaglenet.search.options import Filters
from eaglenet.search.shortlist import approximate_shortlists, exact_shortlists
from eaglenet.search.store import codes, near_codes
from eaglenet.search.store.checks import sealed, unsealed
from eaglenet.search.store.codes import code_bytes, codes_of, load_codes, num_bits, turning


def unit(count: int, dim: int, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    values = np.random.default_rng(seed).standard_normal((count, dim), np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.mark.parametrize("dim", [24, 64, 100, 512])
def test_rotation_preserves_cosines(dim: int) -> None:
    assert turning(dim).shape == (num_bits(dim), dim)
    np.testing.assert_allclose(turning(dim).T @ turning(dim), np.eye(dim), atol=1e-5)


def test_rotation_is_fixed() -> None:
    known = codes_of(np.sin(np.arange(1, 25)).astype(np.float32)[None])
    assert known.tobytes().hex() == "5dd78aba9cbffc66"


def test_fraction_of_differing_bits_is_the_angle() -> None:
    vectors = unit(300, 512)
    one, other = codes_of(vectors), codes_of(vectors[::-1].copy() + 2 * vectors)
    differing = np.bitwise_count(one ^ other).sum(axis=1) / 512
    moved = vectors[::-1] + 2 * vectors
    cosines = (vectors * moved).sum(axis=1) / np.linalg.norm(moved, axis=1)
    assert abs(differing - np.arccos(cosines) / np.pi).mean() < 0.02


def written(path: Path, vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> int:
    path.write_bytes(codes_of(vectors).tobytes())
    return zlib.crc32(path.read_bytes())


def test_nearest_codes_match_a_plain_comparison_for_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "BLOCK", 50)
    vectors = unit(333, 70)
    check = written(tmp_path / "codes", vectors)
    loaded = load_codes(tmp_path / "codes", 70, 333, check)
    query = unit(1, 70, seed=1)[0]
    expected = np.bitwise_count(codes_of(vectors) ^ codes_of(query[None])).sum(axis=1)
    assert (loaded.distances(query) == expected).all()
    order = np.argsort(expected, kind="stable")
    assert loaded.nearest(query, 17).tolist() == sorted(order[:17].tolist())
    wanted = np.random.default_rng(2).random(333) < 0.1
    kept = [slot for slot in order.tolist() if wanted[slot]]
    assert loaded.nearest(query, 17, wanted).tolist() == sorted(kept[:17])
    assert loaded.nearest(query, 999, wanted).tolist() == sorted(kept)
    assert loaded.nearest(query, 999).tolist() == list(range(333))


def test_second_half_of_many_codes_is_compared_if_the_first_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of them let through it is the plain comparison; with few, the nearest are found."""
    monkeypatch.setattr(codes, "BLOCK", 500)
    vectors = unit(3333, 256)
    near = np.random.default_rng(3).permutation(3333)[:20]
    query = unit(1, 256, seed=1)[0]
    vectors[near] = 0.2 * vectors[near] + query
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    check = written(tmp_path / "codes", vectors)
    loaded = load_codes(tmp_path / "codes", 256, 3333, check)
    wanted = np.random.default_rng(2).random(3333) < 0.1
    plain = [loaded.nearest(query, 200), loaded.nearest(query, 20, wanted)]
    monkeypatch.setattr(near_codes, "MANY", 1)
    monkeypatch.setattr(near_codes, "ONE_IN", 1)
    assert loaded.nearest(query, 3333).tolist() == list(range(3333))
    monkeypatch.setattr(near_codes, "ONE_IN", 20)
    halved = [loaded.nearest(query, 200), loaded.nearest(query, 20, wanted)]
    assert np.isin(near, halved[0]).all()
    assert loaded.nearest(query, 20).tolist() == sorted(near.tolist())
    for found, expected in zip(halved, plain, strict=True):
        assert len(found) == len(expected)
        assert np.isin(found, expected).mean() > 0.8
    assert wanted[halved[1]].all()
    few = np.zeros(3333, bool)
    few[:7] = True
    assert loaded.nearest(query, 20, few).tolist() == list(range(7))


def test_reads_added_codes_and_refuses_changed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "BLOCK", 50)
    path, vectors = tmp_path / "codes", unit(230, 64)
    check = written(path, vectors[:170])
    first = load_codes(path, 64, 170, check)
    with path.open("ab") as stream:
        stream.write(codes_of(vectors[170:]).tobytes())
    more = load_codes(path, 64, 230, zlib.crc32(path.read_bytes()))
    assert more.blocks[0] is first.blocks[0]
    assert (more.distances(vectors[3]) == load_fresh(path, 230).distances(vectors[3])).all()
    assert load_codes(path, 64, 170, check).num_slots == 170
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not as it was written"):
        load_codes(path, 64, 230, check)
    with pytest.raises(ValueError, match="not as it was written"):
        load_codes(path, 64, 999, check)


def test_codes_of_another_file_with_the_same_inode_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "BLOCK", 50)
    path, vectors = tmp_path / "codes", unit(300, 64)
    load_codes(path, 64, 170, written(path, vectors[:170]))
    # Written over in place, as a file is that got the inode of one that was removed.
    check = written(path, vectors[100:])
    found = load_codes(path, 64, 200, check)
    assert (found.distances(vectors[3]) == load_fresh(path, 200).distances(vectors[3])).all()


def load_fresh(path: Path, count: int) -> codes.Codes:
    codes._READ.clear()
    return load_codes(path, 64, count, zlib.crc32(path.read_bytes()))


def test_large_stores_use_codes_and_exact_cosines(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=20, clips_each=15)
    tables.remove_files(["/videos/3.mp4", "/videos/7.mp4"])
    store.publish(tables)
    snapshot = store.snapshot()
    assert (len(snapshot), snapshot.num_slots) == (18 * 15, 20 * 15)
    queries = F.normalize(torch.randn(3, DIM, generator=torch.Generator().manual_seed(3)), dim=-1)
    allowed = np.random.default_rng(0).random(270) < 0.3
    # More candidates than clips: nothing can be missing, and cosines are the same to the bit.
    for which in (None, allowed):
        exact = exact_shortlists(snapshot, queries, 10, which)
        for found, expected in zip(
            approximate_shortlists(snapshot, queries, 10, which), exact, strict=True
        ):
            assert found.rows.tolist() == expected.rows.tolist()
            assert found.cosines.tobytes() == expected.cosines.tobytes()
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == "exact scan"
    plain = [hit.clip_id for hit in engine.search("red car", k=5)]
    few = Filters(path="/videos/1*")
    filtered = engine.shortlists(queries, 5, few)[1]
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    assert engine.info()["index"] == "codes"
    assert [hit.clip_id for hit in engine.search("red car", k=5)] == plain
    coded = engine.shortlists(queries, 5, few)[1]
    assert [each.rows.tolist() for each in coded] == [each.rows.tolist() for each in filtered]
    # Few candidates are a matter of luck, which is what recall measures.
    monkeypatch.setattr(approximate, "CANDIDATES", 60)
    monkeypatch.setattr(approximate, "CANDIDATES_PER_RESULT", 1)
    measured = recall(tmp_path, k=10, num_queries=7)
    assert (measured.index, measured.queries) == ("codes", 7)
    assert 0.3 < measured.recall <= 1.0


def test_store_without_codes_is_scanned_until_repaired(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=4, clips_each=5)
    path = tmp_path / "snapshot" / "current.json"
    values = unsealed(json.loads(path.read_bytes()))
    del values["codes_check"], values["format"]
    path.write_bytes(sealed({**values, "index": None}))
    (tmp_path / "snapshot" / "codes-1.bits").unlink()
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    tables.remove_files(["/videos/2.mp4"])
    store.publish(tables)
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == "exact scan"
    assert len(engine.search("red car", k=50)) == 15
    verify(tmp_path)
    repair(tmp_path)
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == "codes"
    assert len(engine.search("red car", k=50)) == 15


def test_reports_damaged_codes_with_the_repair_command(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=4, clips_each=5)
    path = tmp_path / "snapshot" / "codes-1.bits"
    assert path.stat().st_size == 20 * code_bytes(DIM)
    content = bytearray(path.read_bytes())
    content[33] ^= 4
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"codes-1.bits .* eaglenet store repair"):
        verify(tmp_path)
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    with pytest.raises(StoreError, match=r"codes-1.bits .* eaglenet store repair"):
        Engine.open(tmp_path, bag).search("red car", k=5)
    repair(tmp_path)
    assert Engine.open(tmp_path, bag).search("red car", k=5)
