"""A file that Lance did not write to its end is never marked as whole, and the way back is open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from synthetic_store import DIM, FRAMES, BagMethod, clip_rows, content_of, make_manifest

from eaglenet.core.errors import StoreError
from eaglenet.indexing.commit import Commit
from eaglenet.indexing.maintenance import verify
from eaglenet.search.engine import Engine
from eaglenet.search.store.base import kind_of
from eaglenet.search.store.durability import ENDS, has_end
from eaglenet.search.store.lance import LanceStore
from eaglenet.search.store.local import StoreFolder
from eaglenet.search.store.tables import ClipRows, FileRow
from eaglenet.search.store.words import WordRow


def add(store: Path, number: int) -> list[str]:
    """Index one file."""
    bag = BagMethod()
    with kind_of(store).create(store, make_manifest(bag)) as opened:
        tables = opened.tables()
        if not opened.is_searched:
            opened.publish(tables)
        commit = Commit(opened, tables)
        frames = torch.randn(2, FRAMES, DIM, generator=torch.Generator().manual_seed(number))
        content, path = content_of(number), f"/videos/{number}.mp4"
        commit.add_clips(clip_rows(bag, opened.manifest.layout, content, path, frames))
        commit.add_row(FileRow(path, 100, 5, content, "done", duration=20.0, num_clips=2))
        return [row.path for row in commit.write().rows]


def found(store: Path) -> set[str]:
    return {hit.path for hit in Engine.open(store, BagMethod()).search("red", k=50)}


def test_a_write_that_got_lost_is_told_and_costs_only_what_was_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    assert add(store, 0) == ["/videos/0.mp4"]
    data = store / "clips.lance" / "data"
    whole = LanceStore.add_clips

    def lose_the_end(self: LanceStore, rows: ClipRows) -> None:
        before = set(data.iterdir())
        whole(self, rows)
        for path in set(data.iterdir()) - before:
            path.write_bytes(path.read_bytes()[:-40])

    with monkeypatch.context() as patch:
        patch.setattr(LanceStore, "add_clips", lose_the_end)
        with pytest.raises(StoreError, match=r"not written to its end.*make room"):
            add(store, 1)
    assert found(store) == {"/videos/0.mp4"}
    assert add(store, 1) == ["/videos/1.mp4"]
    assert found(store) == {"/videos/0.mp4", "/videos/1.mp4"}


def test_what_a_killed_writer_left_is_gone_after_the_next_one(tmp_path: Path) -> None:
    store = tmp_path / "store"
    add(store, 0)
    table = store / "clips.lance"
    left = [table / "data" / ".tmpAbCdEf", table / "_versions" / "18446744073709551600.manifest#1"]
    for path in left:
        path.write_bytes(b"begun")
    # Written to its end, but its version was not committed.
    left.append(table / "data" / "orphan.lance")
    shutil.copy(next((table / "data").glob("*.lance")), left[-1])
    add(store, 1)
    assert not left[0].exists()
    assert not left[1].exists()
    opened = StoreFolder.open(store)
    with opened.hold():
        opened.tables().optimize()
    assert not left[2].exists()
    assert found(store) == {"/videos/0.mp4", "/videos/1.mp4"}
    assert verify(store).stored_clips == 4


def test_a_torn_file_that_no_version_reads_does_not_stop_the_next_writer(tmp_path: Path) -> None:
    store = tmp_path / "store"
    add(store, 0)
    table = store / "clips.lance"
    index = table / "_indices" / "aa4c8d3d-4f4d-4ffb-b841-b5d9e1ff9eab"
    (table / "_deletions").mkdir(exist_ok=True)
    index.mkdir(parents=True)
    torn = [
        table / "data" / "torn.lance",
        table / "_deletions" / "0-2-17142918552654323374.arrow",
        index / "metadata.lance",
    ]
    for path in torn:
        path.write_bytes(b"torn")
    assert add(store, 1) == ["/videos/1.mp4"]
    assert not any(path.exists() for path in torn)
    assert found(store) == {"/videos/0.mp4", "/videos/1.mp4"}
    assert verify(store).stored_clips == 4


def test_a_torn_file_that_a_version_reads_stays(tmp_path: Path) -> None:
    """Of each kind that Lance writes: clips, rows that were deleted, an index over words."""
    store = StoreFolder(tmp_path / "store", make_manifest(BagMethod()))
    for number in range(2):
        add(store.folder, number)
    with store.hold():
        tables = store.tables()
        line = WordRow(content_of(0), "s", 0.0, 1.0, "speech", "en", "a walrus", "a walrus")
        tables.words().add_lines([line])
        bad = [FileRow(f"/videos/{name}.mp4", 1, 1, "", "failed") for name in "xy"]
        tables.put_files(bad)
        tables.remove_files([bad[0].path])
        tables.sync()
    files = [path for path in store.folder.glob("*.lance/**/*") if path.suffix in ENDS]
    folders = {path.relative_to(store.folder).parts[1] for path in files}
    assert folders >= {"data", "_deletions", "_indices", "_versions"}
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-4])
        with store.hold():
            pass
        assert path.exists(), path
        path.write_bytes(whole)
    assert verify(store.folder).stored_clips == 4


def test_of_a_bucket_nothing_is_removed_that_another_writer_may_be_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance removes such files once they are 7 days old."""
    add(tmp_path / "store", 0)
    tables = StoreFolder.open(tmp_path / "store").tables()
    assert isinstance(tables, LanceStore)
    monkeypatch.setattr(tables, "_is_remote", True)
    data = tmp_path / "store" / "clips.lance" / "data"
    shutil.copy(next(data.glob("*.lance")), data / "orphan.lance")
    tables.optimize()
    assert (data / "orphan.lance").exists()
    monkeypatch.setattr(tables, "_is_remote", False)
    tables.optimize()
    assert not (data / "orphan.lance").exists()


def test_all_files_of_a_table_have_their_ends(tmp_path: Path) -> None:
    add(tmp_path / "store", 0)
    files = [path for path in (tmp_path / "store").glob("*.lance/**/*") if path.is_file()]
    assert {path.suffix for path in files} >= {".lance", ".manifest"}
    assert all(has_end(path) for path in files)


def test_an_empty_file_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "a.lance").write_bytes(b"")
    (tmp_path / "a.other").write_bytes(b"")
    assert not has_end(tmp_path / "a.lance")
    assert has_end(tmp_path / "a.other"), "of other files nothing is known"
