"""The best of all parts together are the best of the whole, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic_store import DIM, BagMethod, make_store
from torch.nn import functional as F

from eaglenet.search.shortlist import exact_shortlists, merge_shortlists


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("removed", [False, True])
def test_merged_shards_equal_the_whole_store(
    parts: int, removed: bool, bag: BagMethod, tmp_path: Path
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=9, clips_each=4)
    if removed:
        tables.remove_files(["/videos/3.mp4", "/videos/7.mp4"])
        store.publish(tables)
    snapshot = store.snapshot()
    queries = F.normalize(torch.randn(7, DIM, generator=torch.Generator().manual_seed(3)), dim=-1)
    generator = np.random.default_rng(0)
    masks = [generator.random(len(snapshot)) < share for share in (0.8, 0.15)]
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
    store, _ = make_store(tmp_path, bag, num_files=5, clips_each=8)
    snapshot = store.snapshot()
    query = torch.zeros(1, DIM)
    whole = exact_shortlists(snapshot, query, 11)[0]
    assert whole.rows.tolist() == list(range(11))
    pieces = [exact_shortlists(snapshot, query, 11, None, (number, 3))[0] for number in (3, 2, 1)]
    assert merge_shortlists(pieces, 11).rows.tolist() == whole.rows.tolist()


def test_shard_reads_its_own_vectors_only(bag: BagMethod, tmp_path: Path) -> None:
    store, _ = make_store(tmp_path, bag, num_files=4, clips_each=5)
    path = next((tmp_path / "snapshot").glob("vectors-*.f32"), None)
    assert path is not None
    with path.open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\xff\xff\xff\x7f")
    query = torch.ones(1, DIM)
    snapshot = store.snapshot()
    assert len(exact_shortlists(snapshot, query, 3, None, (1, 2))[0].rows) == 3
    with pytest.raises(Exception, match="damaged"):
        exact_shortlists(snapshot, query, 3, None, (2, 2))
