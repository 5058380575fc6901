"""A store that is replaced while it is searched."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_store import BagMethod, make_store

from eaglenet.core.errors import StoreError
from eaglenet.search.engine import Engine
from eaglenet.search.store.snapshot import Snapshot


def test_store_replaced_by_one_of_another_model_is_refused(
    tmp_path: Path,
) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    first, second = BagMethod(), BagMethod(seed=5)
    make_store(folder, first)
    make_store(other, second, num_files=2)
    engine = Engine.open(folder, first)
    assert len(engine.search("red", k=50)) == 18
    folder.rename(tmp_path / "old")
    assert len(engine.search("red", k=50)) == 18  # Gone, but still open.
    other.rename(folder)
    with pytest.raises(StoreError, match="another model"):
        engine.search("red")
    assert engine.manifest.identity == Engine.open(folder, second).manifest.identity
    assert len(Engine.open(folder, second).search("red", k=50)) == 6


def test_store_replaced_by_one_of_the_same_model_is_searched(tmp_path: Path) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    make_store(folder, BagMethod())
    make_store(other, BagMethod(), num_files=2)
    engine = Engine.open(folder, BagMethod())
    assert len(engine.search("red", k=50)) == 18
    folder.rename(tmp_path / "old")
    other.rename(folder)
    assert len(engine.search("red", k=50)) == 6


def test_snapshot_is_read_again_after_a_commit_only(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=2)
    read = []
    load = Snapshot._load

    def counted(self: Snapshot) -> None:
        read.append(self)
        load(self)

    monkeypatch.setattr(Snapshot, "_load", counted)
    engine = Engine.open(tmp_path, bag)
    for _ in range(3):
        assert len(engine.search("red", k=50)) == 6
    assert len(read) == 1
    tables.remove_files(["/videos/0.mp4"])
    store.publish(tables)
    read.clear()
    for _ in range(3):
        assert len(engine.search("red", k=50)) == 3
    assert len(read) == 1
