"""A store that changes or is replaced while it is searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import StoreError
from eaglenet.search.engine import Engine
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query
from eaglenet.store.records import Changes, Clip
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import LocalStore
from synthetic_store import BagMethod, make_manifest, make_store


def test_store_replaced_by_one_of_another_model_is_refused(
    tmp_path: Path,
) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    first, second = BagMethod(), BagMethod(seed=5)
    make_store(folder, first)
    make_store(other, second, num_files=2)
    engine = Engine.open(folder, first)
    assert len(engine.search("red", k=50, keep_duplicates=True)) == 18
    folder.rename(tmp_path / "old")
    assert len(engine.search("red", k=50, keep_duplicates=True)) == 18  # Gone, but still open.
    other.rename(folder)
    with pytest.raises(StoreError, match="another model"):
        engine.search("red")
    assert engine.manifest.identity == Engine.open(folder, second).manifest.identity
    assert len(Engine.open(folder, second).search("red", k=50, keep_duplicates=True)) == 6


def test_store_replaced_by_one_of_the_same_model_is_searched(tmp_path: Path) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    make_store(folder, BagMethod())
    make_store(other, BagMethod(), num_files=2)
    engine = Engine.open(folder, BagMethod())
    assert len(engine.search("red", k=50, keep_duplicates=True)) == 18
    folder.rename(tmp_path / "old")
    other.rename(folder)
    assert len(engine.search("red", k=50, keep_duplicates=True)) == 6


def remove(folder: Path, *numbers: int) -> None:
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(removed_files=[f"/videos/{number}.mp4" for number in numbers]))
        writer.finish()


def test_snapshot_is_read_again_after_a_commit_only(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=2)
    taken = []
    take = LocalStore.snapshot

    def counted(self: LocalStore) -> Snapshot:
        taken.append(self)
        return take(self)

    monkeypatch.setattr(LocalStore, "snapshot", counted)
    engine = Engine.open(tmp_path, bag)
    for _ in range(3):
        assert len(engine.search("red", k=50, keep_duplicates=True)) == 6
    assert len(taken) == 1
    remove(tmp_path, 0)
    taken.clear()
    for _ in range(3):
        assert len(engine.search("red", k=50, keep_duplicates=True)) == 3
    assert len(taken) == 1


@pytest.mark.parametrize("is_finished", [False, True], ids=["hidden", "compacted"])
def test_search_is_repeated_when_a_writer_removes_clips_meanwhile(
    is_finished: bool, bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=4)
    engine = Engine.open(tmp_path, bag)
    engine.warm_up()
    read = Snapshot.clips
    failures: list[str] = []

    def slow(self: Snapshot, rows: Any) -> list[Clip]:
        if not failures:
            failures.append("removed")
            with LocalStore.write(tmp_path) as writer:
                names = [f"/videos/{number}.mp4" for number in (0, 2)]
                writer.commit(Changes(removed_files=names))
                if is_finished:
                    writer.finish()
        return read(self, rows)

    monkeypatch.setattr(Snapshot, "clips", slow)
    hits = engine.search("red", k=50)
    assert failures
    assert {hit.path for hit in hits} == {"/videos/1.mp4", "/videos/3.mp4"}
    monkeypatch.undo()
    assert hits == Engine.open(tmp_path, bag).search("red", k=50)


def test_search_gives_up_when_every_attempt_is_outdated(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=1)
    engine = Engine.open(tmp_path, bag)

    def fail(self: Snapshot, rows: Any) -> list[Clip]:
        raise OutdatedError("changed during the search; search again")

    monkeypatch.setattr(Snapshot, "clips", fail)
    with pytest.raises(OutdatedError, match="search again"):
        engine.search("red")


def test_info_lists_each_folder_once(tmp_path: Path) -> None:
    bag = BagMethod()
    roots = ("/videos/june", "/videos", "/videos/a.mp4", "/videos-2", "s3://b/x/y", "s3://b/x")
    manifest = make_manifest(bag).with_roots(roots)
    with LocalStore.write(tmp_path / "store", manifest) as writer:
        writer.finish()
    info = Engine.open(tmp_path / "store", bag).info()
    assert info["folders"] == ["/videos", "/videos-2", "s3://b/x"]


def test_a_search_that_began_before_a_store_was_replaced_keeps_its_model(tmp_path: Path) -> None:
    """Another search has found the new store, and loads the model of that."""
    folder, other, first = tmp_path / "store", tmp_path / "other", BagMethod()
    make_store(folder, first)
    make_store(other, BagMethod(seed=5), num_files=2)
    engine = Engine.open(folder, first)
    hits = engine.search("red", k=50)
    view = engine._current_view()
    folder.rename(tmp_path / "old")
    other.rename(folder)
    assert engine.manifest.identity != view.manifest.identity
    with pytest.raises(StoreError, match="another model"):
        _ = engine.model
    engine._model = None
    assert engine._retriever(view).search([Query("red")], 50, SearchOptions()) == [hits]


def test_files_of_a_store_that_replaced_another_do_not_count_as_damage(tmp_path: Path) -> None:
    """A search that began before reads them where those of the old store were."""
    folder, other, bag = tmp_path / "store", tmp_path / "other", BagMethod()
    make_store(folder, bag)
    make_store(other, bag, seed=2)
    engine = Engine.open(folder, bag)
    view = engine._current_view()
    folder.rename(tmp_path / "old")
    other.rename(folder)
    with pytest.raises(OutdatedError):
        engine._retriever(view).search([Query("red")], 5, SearchOptions())
    assert len(engine.search("red")) == 10
