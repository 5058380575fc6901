"""The index of very large stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_store import (
    BagMethod,
    make_store,
)

from eaglenet.search import shortlist
from eaglenet.search.engine import Engine
from eaglenet.search.upkeep import build_index, recall


def test_large_stores_use_an_index_whose_recall_can_be_measured(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=20, clips_each=15)
    exact = Engine.open(tmp_path, bag)
    assert exact.info()["index"] == "exact scan"
    assert recall(tmp_path, k=10, num_queries=3).recall == 1.0
    expected = [hit.clip_id for hit in exact.search("red car", k=5)]
    kind = build_index(tmp_path)
    monkeypatch.setattr(shortlist, "EXACT_BYTES", 0)
    engine = Engine.open(tmp_path, bag)
    assert engine.info()["index"] == kind
    assert "IVF" in kind.upper()
    # All partitions are looked into here, so the index finds everything.
    assert [hit.clip_id for hit in engine.search("red car", k=5)] == expected
    measured = recall(tmp_path, k=10, num_queries=7)
    assert (measured.index, measured.queries) == (kind, 7)
    assert measured.recall > 0.9
