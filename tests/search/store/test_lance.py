"""The durable tables, those that earlier versions made among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic_store import DIM, FRAMES, BagMethod, add_file, content_of, make_store
from torch.nn import functional as F

from eaglenet.indexing.maintenance import repair
from eaglenet.search.engine import Engine
from eaglenet.search.store import lance
from eaglenet.search.store.local import StoreFolder


def without_checks(schema: Any) -> Any:
    """A table as it was before rows had checksums."""
    return schema.remove(schema.get_field_index("check"))


def test_a_store_from_before_rows_had_checksums_is_searched_added_to_and_repaired(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips, files = lance.clip_schema, lance.file_schema
    with monkeypatch.context() as before:
        before.setattr(lance, "clip_schema", lambda *values: without_checks(clips(*values)))
        before.setattr(lance, "file_schema", lambda: without_checks(files()))
        make_store(tmp_path, bag, num_files=2)
    expected = Engine.open(tmp_path, bag).search("red car", k=6)
    assert len(expected) == 6
    store = StoreFolder.open(tmp_path)
    tables = store.tables()
    assert {row.path for row in tables.files()} == {"/videos/0.mp4", "/videos/1.mp4"}
    generator = torch.Generator().manual_seed(4)
    frames = F.normalize(torch.randn(2, FRAMES, DIM, generator=generator), dim=-1)
    add_file(tables, store.manifest, bag, "/videos/new.mp4", content_of(9), frames)
    assert store.publish(tables) == 8
    assert repair(tmp_path) == 8
    hits = Engine.open(tmp_path, bag).search("red car", k=8)
    kept = [(hit.clip_id, hit.score) for hit in hits if not hit.path.endswith("new.mp4")]
    assert kept == [(hit.clip_id, hit.score) for hit in expected]
