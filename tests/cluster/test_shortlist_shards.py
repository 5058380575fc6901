"""The best of all parts together are the best of the whole, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eaglenet.search.reranking import unit_vectors
from eaglenet.search.shortlist import exact_shortlists, merge_shortlists
from eaglenet.store import segments
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore
from synthetic_store import DIM, BagMethod, make_store


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("removed", [False, True])
def test_merged_shards_equal_the_whole_store(
    parts: int, removed: bool, bag: BagMethod, tmp_path: Path
) -> None:
    store = make_store(tmp_path, bag, num_files=9, clips_each=4)
    if removed:
        with LocalStore.write(tmp_path) as writer:
            writer.commit(Changes(removed_files=["/videos/3.mp4", "/videos/7.mp4"]))
    snapshot = store.snapshot()
    assert (snapshot.visible is not None) == removed
    generator = np.random.default_rng(0)
    queries = unit_vectors(generator.standard_normal((7, DIM), np.float32))
    masks = [generator.random(snapshot.num_rows) < share for share in (0.8, 0.15)]
    for allowed in (None, *masks):
        whole = exact_shortlists(snapshot, queries, 6, allowed)
        pieces = [
            exact_shortlists(snapshot, queries, 6, allowed, (number, parts))
            for number in range(1, parts + 1)
        ]
        for number, expected in enumerate(whole):
            found = merge_shortlists([piece[number] for piece in pieces], 6)
            assert found.rows.tolist() == expected.rows.tolist()
            assert found.cosines.tobytes() == expected.cosines.tobytes()


def test_equal_clips_are_ordered_by_row_in_shards_too(bag: BagMethod, tmp_path: Path) -> None:
    store = make_store(tmp_path, bag, num_files=5, clips_each=8)
    snapshot = store.snapshot()
    query = np.zeros((1, DIM), np.float32)
    whole = exact_shortlists(snapshot, query, 11)[0]
    assert whole.rows.tolist() == list(range(11))
    pieces = [exact_shortlists(snapshot, query, 11, None, (number, 3))[0] for number in (3, 2, 1)]
    assert merge_shortlists(pieces, 11).rows.tolist() == whole.rows.tolist()


def test_shard_reads_its_own_vectors_only(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "BLOCK", 5)
    store = make_store(tmp_path, bag, num_files=4, clips_each=5)
    (path,) = (tmp_path / "segments").glob("*.vectors")
    with path.open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\xff\xff\xff\x7f")
    query = np.ones((1, DIM), np.float32)
    snapshot = store.snapshot()
    assert len(exact_shortlists(snapshot, query, 3, None, (1, 2))[0].rows) == 3
    with pytest.raises(Exception, match=f"{path.name} .* damaged"):
        exact_shortlists(snapshot, query, 3, None, (2, 2))
