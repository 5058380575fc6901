"""A store in a folder: what is there, what is lost, and what is told of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from synthetic_store import (
    BagMethod,
    make_manifest,
    make_store,
)

from eaglenet.core.errors import StoreError
from eaglenet.indexing.maintenance import repair
from eaglenet.search.engine import Engine
from eaglenet.search.store.local import StoreFolder


def test_a_folder_without_a_store_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="eaglenet index"):
        Engine.open(tmp_path / "nothing")


def test_the_home_of_nobody_is_told() -> None:
    with pytest.raises(StoreError, match=r"--store ~of-nobody/store: .*home"):
        Engine.open("~of-nobody/store")


def test_a_place_where_no_store_can_be_made_is_told_when_it_is_searched(
    bag: BagMethod, tmp_path: Path
) -> None:
    """No command is told there that would be refused."""
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").touch()
    make_store(tmp_path / "lost", bag, num_files=2)
    (tmp_path / "lost" / "manifest.json").unlink()
    for place, told in (
        ("videos", "holds other files"),
        ("videos/a.mp4", "is a file"),
        ("lost", "holds a store's tables but no manifest"),
    ):
        with pytest.raises(StoreError, match=told) as refused:
            Engine.open(tmp_path / place)
        assert "eaglenet index" not in str(refused.value)


@pytest.mark.parametrize("is_emptied", [False, True], ids=["gone", "emptied"])
@pytest.mark.parametrize("table", ["clips", "files"])
def test_a_lost_table_is_told_and_not_made_anew(
    table: str, is_emptied: bool, bag: BagMethod, tmp_path: Path
) -> None:
    store, _ = make_store(tmp_path, bag, num_files=2)
    shutil.rmtree(tmp_path / f"{table}.lance")
    if is_emptied:
        (tmp_path / f"{table}.lance").mkdir()
    with pytest.raises(StoreError, match=rf"lost {table}\.lance; what can be searched"):
        repair(tmp_path)
    assert len(Engine.open(tmp_path, bag).search("red car", k=50)) == 6
    shutil.rmtree(tmp_path / "snapshot")
    with pytest.raises(StoreError, match=rf"lost {table}\.lance\. Restore"):
        store.tables()


def test_a_store_that_was_hardly_begun_is_made_whole(bag: BagMethod, tmp_path: Path) -> None:
    store = StoreFolder(tmp_path, make_manifest(bag))
    store.tables()
    shutil.rmtree(tmp_path / "files.lance")
    assert store.tables().files() == []
