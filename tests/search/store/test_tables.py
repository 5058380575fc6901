"""Rows that cross the border of a store."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from synthetic_store import BagMethod, clip_rows, content_of, make_manifest
from torch.nn import functional as F

from eaglenet.search.store.tables import ClipRows, clip_id_of


@pytest.fixture
def rows(bag: BagMethod) -> ClipRows:
    """Four clips with random features."""
    frames = F.normalize(torch.randn(4, 5, 24, generator=torch.Generator().manual_seed(0)), dim=-1)
    layout = make_manifest(bag).layout
    return clip_rows(bag, layout, content_of(3), "/videos/3.mp4", frames)


def test_chosen_rows_joined_again_are_the_rows(rows: ClipRows) -> None:
    joined = ClipRows.concatenate([rows[[0, 1]], rows[[2]], rows[[3]]])
    assert (joined.keys, joined.paths, joined.thumbnails) == (
        rows.keys,
        rows.paths,
        rows.thumbnails,
    )
    for name in ("starts", "ends", "coarse", "records"):
        assert np.array_equal(getattr(joined, name), getattr(rows, name)), name


def test_rows_are_given_in_the_order_they_are_asked_for(rows: ClipRows) -> None:
    chosen = rows[[2, 0]]
    assert len(chosen) == 2
    assert chosen.keys == [rows.keys[2], rows.keys[0]]
    assert chosen.starts.tolist() == [20.0, 0.0]
    assert np.array_equal(chosen.records[0], rows.records[2])
    assert len(rows[[]]) == 0


def test_clip_ids_are_of_the_content_and_the_number() -> None:
    assert clip_id_of((content_of(7), 12)) == f"{content_of(7)[:16]}-12"
