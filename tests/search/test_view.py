"""A store that is replaced while it is searched."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_store import BagMethod, make_store

from eaglenet.errors import StoreError
from eaglenet.search.engine import Engine


def test_a_store_replaced_by_one_of_another_model_is_not_searched_with_the_old(
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


def test_a_store_replaced_by_one_of_the_same_model_is_searched(tmp_path: Path) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    make_store(folder, BagMethod())
    make_store(other, BagMethod(), num_files=2)
    engine = Engine.open(folder, BagMethod())
    assert len(engine.search("red", k=50)) == 18
    folder.rename(tmp_path / "old")
    other.rename(folder)
    assert len(engine.search("red", k=50)) == 6
