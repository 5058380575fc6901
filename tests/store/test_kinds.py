"""Stores are opened by the scheme of their location; other packages may add kinds."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import pytest

from eaglenet.core.errors import UnknownNameError
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.store.records import Repaired
from eaglenet.store.store import STORES, LocalStore, kind_of, open_store
from small_videos import colour_video
from synthetic_store import BagMethod, make_store


class Shelf(LocalStore):
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
        return LocalStore.exists(cls._on_shelf(location))

    @classmethod
    def open(cls, location: str | Path) -> Self:
        store = LocalStore.open(cls._on_shelf(location))
        return cls(store.folder, store.database)

    @classmethod
    def write(  # type: ignore[override]
        cls, location: str | Path, *arguments: Any
    ) -> AbstractContextManager[Any]:
        return LocalStore.write(cls._on_shelf(location), *arguments)

    @classmethod
    def repair(cls, location: str | Path) -> Repaired:
        return LocalStore.repair(cls._on_shelf(location))


@pytest.mark.parametrize("location", ["store", "/a/b", "~/store", "a:b", "file:///a/b", Path("x")])
def test_plain_paths_are_local_stores(location: str | Path) -> None:
    assert kind_of(location) is LocalStore


def test_a_file_url_is_the_folder_it_names(tmp_path: Path) -> None:
    make_store(tmp_path, BagMethod(), num_files=1)
    assert open_store(f"file://{tmp_path}").location == str(tmp_path)


def test_an_unknown_kind_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"kind of store 'gopher'.*known: .*file"):
        Engine.open("gopher://bucket/store")


def test_a_local_store_loads_nothing_of_object_storage() -> None:
    program = (
        "import sys; from eaglenet.store.store import kind_of; kind_of('/a'); "
        "print([name for name in sys.modules "
        "if name.split('.')[0] in ('torch', 'obstore', 'lancedb', 'pyarrow') "
        "or name.startswith('eaglenet.cluster')])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert output.stdout.strip() == "[]", output


def test_an_added_kind_is_indexed_searched_and_repaired_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bag = BagMethod()
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
    assert kind_of("shelf://mine").repair("shelf://mine").clips == 1
    assert (tmp_path / "shelf" / "mine" / "store.db").exists()
