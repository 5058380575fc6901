"""Stores are opened by what their location begins with; other packages may add kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from small_videos import colour_video
from synthetic_store import BagMethod, make_store

from eaglenet.core.errors import UnknownNameError
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.maintenance import repair
from eaglenet.search.engine import Engine
from eaglenet.search.store.base import STORES, kind_of, open_store
from eaglenet.search.store.local import StoreFolder
from eaglenet.search.store.manifest import Manifest


class Shelf(StoreFolder):
    """Stores by name on a shelf: ``shelf://NAME``."""

    top: Path

    @classmethod
    def _on_shelf(cls, location: str | Path) -> Path:
        return cls.top / str(location).removeprefix("shelf://")

    @property
    def location(self) -> str:
        return f"shelf://{self.folder.name}"

    @classmethod
    def exists(cls, location: str | Path) -> bool:
        return StoreFolder.exists(cls._on_shelf(location))

    @classmethod
    def require_room(cls, location: str | Path) -> None:
        StoreFolder.require_room(cls._on_shelf(location))

    @classmethod
    def open(cls, location: str | Path) -> Self:
        opened = StoreFolder.open(cls._on_shelf(location))
        return cls(opened.folder, opened.manifest)

    @classmethod
    @contextmanager
    def create(cls, location: str | Path, wanted: Manifest) -> Iterator[Self]:
        with StoreFolder.create(cls._on_shelf(location), wanted) as opened:
            yield cls(opened.folder, opened.manifest)


@pytest.mark.parametrize("location", ["store", "/a/b", "~/store", "a:b", "file:///a/b", Path("x")])
def test_plain_paths_are_folders(location: str | Path) -> None:
    assert kind_of(location) is StoreFolder


def test_a_file_address_is_the_folder_it_names(bag: BagMethod, tmp_path: Path) -> None:
    make_store(tmp_path, bag, num_files=1)
    assert open_store(f"file://{tmp_path}").location == str(tmp_path)


def test_a_kind_that_nobody_registered_is_told_with_those_that_are() -> None:
    with pytest.raises(UnknownNameError, match=r"kind of store 'gopher'.*known: file"):
        Engine.open("gopher://bucket/store")


def test_a_registered_kind_is_indexed_searched_and_repaired_by_its_address(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STORES._entries, "shelf", Shelf)
    monkeypatch.setattr(Shelf, "top", tmp_path / "shelf", raising=False)
    (tmp_path / "videos").mkdir()
    colour_video(tmp_path / "videos" / "first.mp4", ["red", "green"])
    options = IndexOptions(workers=0)
    report = index_videos([tmp_path / "videos"], "shelf://mine", "bag", method=bag, options=options)
    assert report.clips == 1
    engine = Engine.open("shelf://mine", bag)
    assert (engine.location, len(engine.search("red"))) == ("shelf://mine", 1)
    assert engine.info()["store"] == "shelf://mine"
    assert repair("shelf://mine") == 1
    assert (tmp_path / "shelf" / "mine" / "manifest.json").exists()
