"""Repairing never makes it worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_store import (
    BagMethod,
    content_of,
    make_store,
)

from eaglenet.errors import StoreError
from eaglenet.search.engine import Engine
from eaglenet.search.upkeep import repair


@pytest.mark.parametrize("table", ["clips", "files"])
def test_repairing_from_damaged_tables_keeps_what_can_be_searched(
    table: str, bag: BagMethod, tmp_path: Path
) -> None:
    make_store(tmp_path, bag, num_files=2)
    expected = [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")]
    for path in (tmp_path / f"{table}.lance" / "data").iterdir():
        path.write_bytes(b"garbage")
    with pytest.raises(StoreError, match=r"tables of .* are damaged"):
        repair(tmp_path)
    assert [hit.clip_id for hit in Engine.open(tmp_path, bag).search("red car")] == expected


def test_repairing_never_leaves_less_than_can_be_searched(bag: BagMethod, tmp_path: Path) -> None:
    _, tables = make_store(tmp_path, bag, num_files=2)
    tables.remove_contents([content_of(0)])
    tables.sync()
    with pytest.raises(StoreError, match="lack 3 clips of 1 files"):
        repair(tmp_path)
    tables.remove_files(["/videos/0.mp4"])
    tables.sync()
    with pytest.raises(StoreError, match="hold 3 clips, but 6 can be searched"):
        repair(tmp_path)
    assert len(Engine.open(tmp_path, bag).search("red car", k=50)) == 6
