"""Shortlists by codes, in stores that are too large to compare all vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eaglenet.core.errors import StoreError
from eaglenet.search import shortlist
from eaglenet.search.engine import Engine
from eaglenet.search.options import Filters
from eaglenet.search.reranking import unit_vectors
from eaglenet.search.shortlist import approximate_shortlists, exact_shortlists
from eaglenet.store.codes import code_bytes
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore
from synthetic_store import DIM, BagMethod, make_store


def test_large_stores_use_codes_and_exact_cosines(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=20, clips_each=15)
    with LocalStore.write(tmp_path) as writer:
        writer.commit(Changes(removed_files=["/videos/3.mp4", "/videos/7.mp4"]))
    snapshot = LocalStore.open(tmp_path).snapshot()
    assert (len(snapshot), snapshot.num_rows) == (18 * 15, 20 * 15)
    generator = np.random.default_rng(0)
    queries = unit_vectors(generator.standard_normal((3, DIM), np.float32))
    # More candidates than clips: nothing can be missing, and cosines are the same to the bit.
    for allowed in (None, generator.random(300) < 0.3):
        exact = exact_shortlists(snapshot, queries, 10, allowed)
        by_codes = approximate_shortlists(snapshot, queries, 10, allowed)
        for found, expected in zip(by_codes, exact, strict=True):
            assert found.rows.tolist() == expected.rows.tolist()
            assert found.cosines.tobytes() == expected.cosines.tobytes()
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == "exact scan"
    plain = [hit.clip_id for hit in engine.search("red car", k=5)]
    few = Filters(path="/videos/1*")
    filtered = shortlist.make_shortlists(engine.snapshot, queries, 5, few)
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    assert engine.info()["index"] == "codes"
    assert [hit.clip_id for hit in engine.search("red car", k=5)] == plain
    coded = shortlist.make_shortlists(engine.snapshot, queries, 5, few)
    assert [each.rows.tolist() for each in coded] == [each.rows.tolist() for each in filtered]
    # Few candidates are a matter of luck, which is what recall measures.
    monkeypatch.setattr(shortlist, "CANDIDATES", 15)
    monkeypatch.setattr(shortlist, "CANDIDATES_PER_RESULT", 1)
    measured = shortlist.measure_recall(LocalStore.open(tmp_path), k=10, num_queries=7)
    assert (measured.index, measured.queries) == ("codes", 7)
    assert 0.3 < measured.recall < 1.0


def test_reports_damaged_codes_with_the_repair_command(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, bag, num_files=4, clips_each=5)
    (path,) = (tmp_path / "segments").glob("*.codes")
    assert path.stat().st_size == 20 * code_bytes(DIM)
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    expected = Engine.open(tmp_path, bag).search("red car", k=5)
    content = bytearray(path.read_bytes())
    content[33] ^= 4
    path.write_bytes(content)
    message = r"\.codes .* is damaged.* eaglenet store repair"
    with pytest.raises(StoreError, match=message):
        store.verify()
    with pytest.raises(StoreError, match=message):
        Engine.open(tmp_path, bag).search("red car", k=5)
    LocalStore.repair(tmp_path)
    assert Engine.open(tmp_path, bag).search("red car", k=5) == expected
