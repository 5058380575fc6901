"""The shortlist by coarse vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from synthetic_store import (
    DIM,
    BagMethod,
    make_store,
)
from torch.nn import functional as F

from eaglenet.search.shortlist import exact_shortlists


def test_shortlist_is_exact_with_filters_and_removed_clips(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag, num_files=9, clips_each=4)
    tables.remove_files(["/videos/3.mp4", "/videos/7.mp4"])
    store.publish(tables)
    snapshot = store.snapshot()
    assert len(snapshot) == 7 * 4
    assert not snapshot.is_dense
    vectors = snapshot.vectors[torch.from_numpy(snapshot.columns["slot"])]
    queries = F.normalize(torch.randn(3, DIM, generator=torch.Generator().manual_seed(3)), dim=-1)
    generator = np.random.default_rng(0)
    for allowed in (None, generator.random(28) < 0.8, generator.random(28) < 0.15):
        together = exact_shortlists(snapshot, queries, 5, allowed)
        for query, found in zip(queries, together, strict=True):
            scores = vectors @ query
            if allowed is not None:
                scores[~torch.from_numpy(allowed)] = -torch.inf
            size = 5 if allowed is None else min(5, int(allowed.sum()))
            expected = scores.topk(size)
            assert found.rows.tolist() == expected.indices.tolist()
            torch.testing.assert_close(torch.from_numpy(found.cosines), expected.values)
            alone = exact_shortlists(snapshot, query[None], 5, allowed)[0]
            assert alone.rows.tolist() == found.rows.tolist()
