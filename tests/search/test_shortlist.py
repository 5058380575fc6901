"""The shortlist by coarse vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eaglenet.search.reranking import unit_vectors
from eaglenet.search.shortlist import exact_shortlists
from eaglenet.store import segments
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore
from synthetic_store import DIM, BagMethod, make_store


@pytest.mark.parametrize("capacity", [10, 65_536])
def test_shortlist_is_exact_with_filters_and_removed_clips(
    capacity: int, bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "CAPACITY", capacity)
    make_store(tmp_path, bag, num_files=9, clips_each=4)
    with LocalStore.write(tmp_path) as writer:
        writer.commit(Changes(removed_files=["/videos/3.mp4", "/videos/7.mp4"]))
    snapshot = LocalStore.open(tmp_path).snapshot()
    assert (len(snapshot), snapshot.num_rows) == (7 * 4, 9 * 4)
    assert len(list(snapshot.vector_parts())) == (4 if capacity == 10 else 1)
    assert snapshot.visible is not None
    vectors = snapshot.vectors_at(np.arange(36)).astype(np.float64)
    generator = np.random.default_rng(3)
    queries = unit_vectors(generator.standard_normal((7, DIM), np.float32))
    for allowed in (None, generator.random(36) < 0.8, generator.random(36) < 0.2):
        mask = snapshot.visible if allowed is None else snapshot.visible & allowed
        together = exact_shortlists(snapshot, queries, 5, allowed)
        for query, found in zip(queries, together, strict=True):
            scores = np.where(mask, vectors @ query, -np.inf)
            expected = np.argsort(-scores, kind="stable")[: min(5, int(mask.sum()))]
            assert found.rows.tolist() == expected.tolist()
            np.testing.assert_allclose(found.cosines, scores[expected], atol=1e-6)
            (alone,) = exact_shortlists(snapshot, query[None], 5, allowed)
            assert alone.rows.tolist() == found.rows.tolist()
            assert alone.cosines.tobytes() == found.cosines.tobytes()
    assert exact_shortlists(snapshot, queries[:1], 5, np.zeros(36, bool))[0].rows.tolist() == []
